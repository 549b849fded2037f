"""Every task at its smallest, and what its predictors take: the cases of tests/tasks/test_predictor_law.py."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from helpers.causal import byte_level
from helpers.runs import tiny_run
from helpers.whisper import LANGUAGES, TEXT, control_ids, write_multilingual
from PIL import Image

import regard
from regard.data.sources.boxes import boxed_images
from regard.data.sources.data_files import evaluation_files
from regard.messages.texts import LanguageResult, TranslateResult
from regard.metrics.detection import detection_metrics
from regard.metrics.retrieval import retrieval_metrics
from regard.processors.sound.read import Samples
from regard.synthetic import morse

TINY: dict[str, Any] = {
    "train.steps": 2, "train.warmup": 1, "train.eval_every": 9, "train.save_every": 9, "train.log_every": 9,
    "train.metric": "loss", "train.tensorboard": False, "device": "cpu",
}  # fmt: skip
SMALL = {"model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 2, "model.inner": 48}
LETTERS = {**SMALL, "tokenizer.kind": "char", "train.tokens": 200}
Rows = Sequence[Any]
Decode = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A task and what its predictors take."""

    task: str
    rows: Rows  # examples to train on and to evaluate
    items: Sequence[Any]
    settings: Mapping[str, Any]
    decode: Sequence[Decode]  # ways to ask, each other than the run's own
    answer: Callable[[Any, Decode], Any]  # what predict returns, from its record and the way to ask
    write: Callable[[Rows, Path], Any]  # the rows as files, and the value of evaluate for them
    metrics: Callable[[Any, Rows], dict[str, Any]]  # recomputed from other methods
    forms: Callable[[Any, Path], list[Any]] = lambda item, folder: []  # the first item in other forms
    wrong: Callable[[Path], list[tuple[Any, str]]] = lambda folder: []  # what is no item, and words of the error
    wrong_decode: Sequence[tuple[Decode, str]] = ()  # settings that cannot be, and words of the error
    targets: Sequence[str] | None = None  # of the first items, for score; None: the task has none
    pair: Sequence[str] = ("two texts", "texts", "targets")  # what score takes, in its errors
    unknown: str = ""  # words of the error of a target that there is not
    noticed: Sequence[tuple[Any, str, Any, dict[str, Any]]] = ()  # items, their warning, answer and part of a record
    check: Callable[[Any, Any, Any, Decode], None] = lambda *_: (
        None
    )  # predictor, item, record, way: laws of its records
    whole: bool = False  # score takes the items alone: their own probability
    look: str | None = None  # a target for look, where the task has one
    rounded: Sequence[str] = ()  # fields of a record that the last digits of a number may change
    sharp: float = 4.0  # larger weights than those of a short training: answers depend on items
    load: Mapping[str, Any] = field(default_factory=dict)
    folder: Callable[[Path], None] | None = None  # writes a folder of weights, in place of a run


def known_items(case: Case) -> list[Any]:
    """The items that score takes."""
    return [*case.items] if case.targets is None else [*case.items[: len(case.targets)]]


@cache
def predictor_of(name: str) -> Any:
    """The predictor of a case, for all tests of a process."""
    case = CASES[name]
    if case.folder is not None:
        with TemporaryDirectory() as folder:
            case.folder(Path(folder))
            return regard.load(folder, dict(case.load))
    data = {"train": [*case.rows], "valid": [*case.rows]}
    found = regard.load(tiny_run(case.task, data=data, **TINY, **case.settings), dict(case.load))
    with torch.no_grad():
        for weight in found.module.parameters():
            weight.mul_(case.sharp if weight.dim() > 1 else 1)
    return found


# --- texts -----------------------------------------------------------------------------------------------------------

TEXTS = ["so good", "so bad", "a very good day", "bad"]
GREEDY: Decode = {"kind": "greedy", "max_tokens": 5}
BEAM: Decode = {"kind": "beam", "beam": 3, "nbest": 2, "max_tokens": 6, "length_penalty": 0.5}
SAMPLE: Decode = {"kind": "sample", "seed": 3, "nbest": 2, "max_tokens": 5, "temperature": 0.8}
SOME: Decode = {**SAMPLE, "nbest": 3, "top_k": 9, "top_p": 0.9, "min_p": 0.02}  # samples of some tokens
RULES: Decode = {"kind": "greedy", "max_tokens": 7, "min_tokens": 3, "repetition_penalty": 1.3}
NO_SPLIT = {"split": True}, "decode.split is not a key"
CANDIDATES = {"nbest": 2, "kind": "greedy"}, "decode.strategy.n does not belong to decode.strategy=greedy"


def texts_of(record: Any, decode: Decode) -> Any:
    return [each["text"] for each in record["nbest"]] if decode.get("nbest", 1) > 1 else record["text"]


def label_of(record: Any, decode: Decode) -> Any:
    pairs = [(each["label"], each["probability"]) for each in record["top"]]
    return pairs if decode.get("top") else record["label"]


def masks_of(record: Any, decode: Decode) -> Any:
    pairs = [(each["token"], each["probability"]) for mask in record["masks"] for each in mask]
    return pairs if decode.get("top") else record["text"]


def check_text(predictor: Any, item: Any, record: Any, decode: Decode) -> None:
    """A text obeys the settings."""
    written = len(record["tokens"]) - record.get("given", 0)
    assert record["text"].startswith(prefix := decode.get("prefix", "")) and record.get("given") in (None, len(prefix))
    assert all(phrase in record["text"] for phrase in decode.get("include", ()))
    assert not any(phrase in record["text"] for phrase in [*decode.get("exclude", ()), *decode.get("stop", ())])
    assert decode.get("min_tokens", 0) <= written <= decode.get("max_tokens", 999) + len(decode.get("stop", ()))
    if not decode.get("split"):
        assert [each["text"] for each in record["nbest"]][0] == record["text"]
        assert len(record["nbest"]) == decode.get("nbest", 1)
    if decode == GREEDY:
        assert sum(record["logprobs"]) == pytest.approx(record["logprob"], abs=1e-4)


def check_aligned(predictor: Any, item: Any, record: Any, decode: Decode) -> None:
    """A text for an item has an alignment of every token to a token, a patch or a time."""
    check_text(predictor, item, record, decode)
    alignment = record["alignment"]
    assert len(alignment[ALIGNED[alignment["kind"]]]) == len(record["tokens"])


ALIGNED = {"tokens": "positions", "patches": "patches", "times": "times"}


def check_translation(predictor: Any, item: Any, record: Any, decode: Decode) -> None:
    check_text(predictor, item, record, decode)
    assert {*record} == {field.name for field in fields(TranslateResult)}
    assert bool(record["sentences"]) == decode.get("split", False)


def check_continuation(predictor: Any, item: Any, record: Any, decode: Decode) -> None:
    check_text(predictor, item, record, decode)
    assert {*record} == {field.name for field in fields(LanguageResult)}
    started = decode.get("add_start", True) or not item
    assert len(record["prompt_tokens"]) == record["usage"]["input"] == len(item) + started
    assert record["finish"] in ("end", "length", "stop")


def check_labels(predictor: Any, item: Any, record: Any, decode: Decode) -> None:
    """The likeliest labels come first; those of a text are all, unless so many are asked for."""
    values = [each["probability"] for each in record["top"]]
    assert values == sorted(values, reverse=True) and len({each["label"] for each in record["top"]}) == len(values)
    assert (record["label"], record["probability"]) == (record["top"][0]["label"], values[0])
    assert len(values) == decode["top"] if "top" in decode else sum(values) == pytest.approx(1, abs=1e-5)


def check_tags(predictor: Any, item: Any, record: Any, decode: Decode) -> None:
    assert record["words"] == [*item] and len(record["tags"]) == len(record["probabilities"]) == len(item)
    assert bool(record["top"]) == ("top" in decode)
    if "top" in decode:
        best = [(each[0]["label"], each[0]["probability"]) for each in record["top"]]
        assert best == [*zip(record["tags"], record["probabilities"], strict=True)]
        assert {len(each) for each in record["top"]} == {decode["top"]}


def check_masks(predictor: Any, item: Any, record: Any, decode: Decode) -> None:
    assert len(record["masks"]) == len(re.findall("<mask>|.MASK.", item)) and not re.search(
        "<mask>|MASK", record["text"]
    )
    assert record["text"].startswith(re.split("<mask>|.MASK.", item)[0].strip())
    for candidates in record["masks"]:
        values = [each["probability"] for each in candidates]
        assert len(values) == decode.get("top", 1) and values == sorted(values, reverse=True)


def lines(rows: Rows, folder: Path, name: str = "a.tsv") -> Path:
    (folder / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder / name


def plain_lines(rows: Rows, folder: Path) -> Path:
    return lines(rows, folder, "a.txt")


def json_lines(rows: Rows, folder: Path) -> Path:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for (text,) in rows))
    return folder / "a.jsonl"


def two_files(rows: Rows, folder: Path) -> str:
    for number, name in enumerate(("a.low", "a.up")):
        (folder / name).write_text("".join(f"{row[number]}\n" for row in rows))
    return f"{folder}/a.low,{folder}/a.up"


def columns(rows: Rows, folder: Path) -> Path:
    sentences = ["".join(f"{word} {tag}\n" for word, tag in zip(*row, strict=True)) for row in rows]
    (folder / "a.txt").write_text("\n".join(sentences))
    return folder / "a.txt"


def labels_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    found = predictor.predict([row[0] for row in rows], details=True)
    hits = [each["label"] == row[1] for each, row in zip(found, rows, strict=True)]
    return {"accuracy": np.mean(hits), "examples": len(rows)}


def tag_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    found = predictor.predict([words for words, _ in rows])
    hits = [one == other for own, (_, tags) in zip(found, rows, strict=True) for one, other in zip(own, tags)]  # noqa: B905
    return {"accuracy": np.mean(hits), "words": sum(len(words) for words, _ in rows)}


def text_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    """Of pairs: exact matches, and the loss per token from the scores."""
    items, targets = [row[0] for row in rows], [row[1] for row in rows]
    found = predictor.predict(items, nbest=1)
    logprobs = [value for each in predictor.score(items, targets, details=True) for value in each["logprobs"]]
    exact = np.mean([one == other for one, other in zip(found, targets, strict=True)])
    return {"exact": exact, "loss": -np.mean(logprobs), "perplexity": np.exp(-np.mean(logprobs)), "examples": len(rows)}


def language_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    logprobs = [
        value for each in predictor.score([text for (text,) in rows], details=True) for value in each["logprobs"]
    ]
    words = sum(len(text.split()) for (text,) in rows)
    return {"tokens": len(logprobs), "loss": -np.mean(logprobs), "words": words}


def loss_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    """Of a corruption that no other method makes."""
    metrics = predictor.evaluate(rows)
    return {"perplexity": np.exp(metrics["loss"]), "examples": len(rows)}


PAIRS = [(text, text.upper()) for text in TEXTS] * 2
LABELED = [(text, "neg" if "bad" in text else "pos") for text in TEXTS] * 2
SENTENCES = [(tuple(text.split()), tuple("AB"[len(word) % 2] for word in text.split())) for text in TEXTS] * 2
LINES = [(text,) for text in TEXTS] * 2
SEQ2SEQ = {**LETTERS, "model.decoder_layers": 1, "decode.max_tokens": 8}
TRANSLATIONS = [
    GREEDY,
    BEAM,
    SAMPLE,
    RULES,
    {"max_tokens": 4, "prefix": "SO"},
    {"max_tokens": 6, "exclude": ["A", "O"]},
]
TRANSLATIONS += [{"max_tokens": 5, "split": True}]

CNN = {key: value for key, value in SEQ2SEQ.items() if key != "model.inner"} | {"model.family": "cnn"}
WIDER = {"model.size": "tiny", "tokenizer.kind": "char", "train.tokens": 200, "data.ngrams.order": 0}  # packed weights
WIDER |= {"data.max_tokens": 40}
NAT = {**SEQ2SEQ, "decode.max_tokens": 0}  # lengths of their own, below the limit
BYTES = {"tokenizer.kind": "byte"}  # a larger vocabulary
T5 = {**LETTERS, "model.head_width": 16, "decode.max_tokens": 8}
TARGETS = ["A", "SO", "", "B D"]
EMPTY = [("", "", "", {"score": None, "tokens": []}), (" ", "", "", {})]  # without a warning

# --- images ----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(2)
IMAGES = [RNG.integers(0, 256, (20 + 9 * number, 30, 3), np.uint8) for number in range(4)]
CAPTIONS = ["a red circle", "a dog", "the red dog", "circle"]
BOXES = [[[2.0, 3.0, 12.0, 15.0]], [[1.0, 1.0, 20.0, 20.0], [5.0, 5.0, 30.0, 25.0]], [[0.0, 0.0, 9.0, 9.0]], []]
NAMES = [["cat"], ["dog", "cat"], ["dog"], []]


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def image_forms(image: Any, folder: Path) -> list[Any]:
    path = folder / "a.png"
    path.write_bytes(png(image))
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    return [path, str(path), path.read_bytes(), Image.fromarray(image), tensor, image]


def image_table(rows: Rows, folder: Path) -> Path:
    for number, (image, _) in enumerate(rows):
        (folder / f"{number}.png").write_bytes(png(image))
    return lines([("path", "caption"), *((f"{number}.png", row[1]) for number, row in enumerate(rows))], folder)


def image_tree(rows: Rows, folder: Path) -> Path:
    for number, (image, label) in enumerate(rows):
        (folder / "tree" / label).mkdir(parents=True, exist_ok=True)
        (folder / "tree" / label / f"{number}.png").write_bytes(png(image))
    return folder / "tree"


def coco(rows: Rows, folder: Path) -> str:
    names = sorted({name for row in rows for name in row[2]})
    index: dict[str, Any] = {"images": [], "annotations": []}
    index["categories"] = [{"id": number + 1, "name": name} for number, name in enumerate(names)]
    (folder / "images").mkdir()
    for number, (image, boxes, labels) in enumerate(rows):
        (folder / "images" / f"{number}.png").write_bytes(png(image))
        sizes = {"width": image.shape[1], "height": image.shape[0]}
        index["images"].append({"id": number, "file_name": f"{number}.png", **sizes})
        for (left, top, right, bottom), label in zip(boxes, labels, strict=True):
            box = [left, top, right - left, bottom - top]
            own = {"id": len(index["annotations"]) + 1, "image_id": number, "category_id": names.index(label) + 1}
            index["annotations"].append({**own, "bbox": box, "area": box[2] * box[3], "iscrowd": 0})
    (folder / "a.json").write_text(json.dumps(index))
    return f"{folder}/images,{folder}/a.json"


def detect_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    found = [each.objects for each in predictor.predict([row[0] for row in rows], threshold=0.0, top=100)]
    examples = boxed_images(evaluation_files(rows), predictor.run.data)
    metrics = detection_metrics([examples[number][1] for number in range(len(rows))], found)
    return {**metrics, "examples": len(rows), "objects": sum(len(row[1]) for row in rows)}


def pair_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    texts = [*dict.fromkeys(text for _, text in rows)]
    pairs = [(number, texts.index(text)) for number, (_, text) in enumerate(rows)]
    vectors = predictor.embed([image for image, _ in rows]), predictor.embed(texts)
    found = predictor.predict([image for image, _ in rows])
    accuracy = np.mean([one == other for one, (_, other) in zip(found, rows, strict=True)])
    return {**retrieval_metrics(*vectors, pairs), "accuracy": accuracy, "examples": len(rows), "texts": len(texts)}


def bad_images(folder: Path) -> list[tuple[Any, str]]:
    (folder / "text.png").write_text("a text")
    return [
        (folder / "none.png", "none.png does not exist; give the path of an image"),
        (str(folder / "text.png"), "text.png cannot be read as an image"),
        (b"a text", "cannot be read as an image"),
    ]


def check_objects(predictor: Any, image: Any, record: Any, decode: Decode) -> None:
    height, width, _ = image.shape
    scores = [each["score"] for each in record["objects"]]
    assert [*record] == ["width", "height", "objects", "notices"] and (record["width"], record["height"]) == (
        width,
        height,
    )
    assert scores == sorted(scores, reverse=True) and min(scores, default=1) >= decode.get("threshold", 0)
    assert len(scores) == decode.get("top", 5) or "threshold" in decode
    for each in record["objects"]:
        left, top, right, bottom = each["box"]
        assert each["label"] in predictor.labels.names and 0 <= left <= right <= width and 0 <= top <= bottom <= height


PATCHES = {**SMALL, "model.image": 16, "model.patch": 8, "model.pool": "first", "train.batch": 4}
DETR = {key: value for key, value in SMALL.items() if key != "model.layers"}
DETR |= {"model.decoder_layers": 2, "model.stem": 8, "model.stages": [8, 16], "data.size": 32, "train.batch": 4}
DETR |= {"decode.threshold": 0.0, "decode.top": 5}
ENCODER = {"image": 16, "patch": 8, "width": 24, "layers": 1, "pool": "first"}
CAPTIONER = {key: value for key, value in LETTERS.items() if key not in ("model.size", "model.heads")}
CAPTIONER |= BYTES | {f"model.encoder.{name}": value for name, value in ENCODER.items()} | {"decode.max_tokens": 8}
TOWER = {"width": 16, "heads": 2, "layers": 1, "inner": 24}
CLIP = {f"model.{side}.{name}": value for side in ("source", "text") for name, value in TOWER.items()}
CLIP |= {
    "model.width": 12,
    "model.source.image": 16,
    "model.source.patch": 8,
    "tokenizer.kind": "char",
    "train.batch": 4,
}
CLIP |= {"data.crop": 1, "decode.labels": CAPTIONS}

# --- sound -----------------------------------------------------------------------------------------------------------

RATE = morse.RATE
WORDS = ["E", "CQ", "SOS", "A"]
SOUNDS = [
    morse.encode_morse(text, np.random.default_rng(number), morse.MorseSettings(24)).samples
    for number, text in enumerate(WORDS)
]
SPEECH = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 32, "model.channels": 4, "data.bins": 12,
    "data.hop": 10, "train.tokens": 1200, "decode.max_tokens": 8, "decode.beam": 3,
}  # fmt: skip


def sound_forms(rate: int) -> Callable[[Any, Path], list[Any]]:
    def forms(sound: Any, folder: Path) -> list[Any]:
        path = folder / "a.wav"
        soundfile.write(path, sound, rate, "FLOAT")
        found = [path, str(path), path.read_bytes(), (sound, rate), Samples(sound, rate), torch.from_numpy(sound)]
        return [*found, np.stack([sound, sound]), np.stack([sound, sound], 1), sound]

    return forms


def sound_table(rows: Rows, folder: Path) -> Path:
    for number, ((sound, rate), _) in enumerate(rows):
        soundfile.write(folder / f"{number}.wav", sound, rate, "FLOAT")
    return lines([("path", "text"), *((f"{number}.wav", text) for number, (_, text) in enumerate(rows))], folder)


def bad_sounds(folder: Path) -> list[tuple[Any, str]]:
    (folder / "text.wav").write_text("a text")
    return [
        (str(folder / "none.wav"), "none.wav does not exist; give the path of a sound file"),
        (folder / "text.wav", "text.wav cannot be read as sound: it is text; give WAV"),
        (np.zeros(0, np.float32), "a sound has no samples; expected at least one"),
        (np.array([0.1, np.nan], np.float32), "has a sample that is no finite number after 0.00 s"),
        ((np.zeros(RATE, np.float32), 10), "a sound has 10 samples per second; expected 1000 to"),
        (np.zeros((2, 3, 4)), r"an array of shape \(2, 3, 4\) is no sound; expected"),
    ]


SILENT = {"text": "", "score": None, "segments": [], "alignment": None}
SILENCE = [(np.zeros(RATE, np.float32), "2 of 3 recordings are silent and have no transcript", "", SILENT)]


def check_transcript(predictor: Any, sound: Any, record: Any, decode: Decode) -> None:
    if "segment" in decode:
        assert (len(record["segments"]) > 1) == (len(sound) > decode["segment"] * RATE)
    else:
        check_text(predictor, sound, record, decode)
        assert len(record["alignment"]["times"]) == len(record["tokens"]) and len(record["segments"]) == 1


# --- Whisper ---------------------------------------------------------------------------------------------------------

SECONDS = 2
FAST: Decode = {
    "temperatures": (0.0,), "compression_ratio_threshold": 0, "logprob_threshold": 0, "no_speech_threshold": 1.0,
}  # fmt: skip  # the first text is good enough
AGAIN: Decode = {"logprob_threshold": -0.001, "no_speech_threshold": 1.0, "temperatures": (0.0, 1.2), "seed": 3}


def noise(seconds: float, seed: int = 1) -> np.ndarray:
    """Noise that swells and fades."""
    rng, count = np.random.default_rng(seed), int(seconds * 16000)
    return (rng.normal(0, 0.1, count) * (1 + np.sin(np.arange(count) / 7000))).astype(np.float32)


NOISES = [noise(seconds, seed) for seed, seconds in enumerate((1.2, 0.3, 2.3))]


def unreadable_tokens() -> list[int]:
    """Tokens that are no letters: random weights would write half characters."""
    ids = control_ids(SECONDS)
    control = [number for number in ids.values() if ids["<|endoftext|>"] < number < ids["<|0.00|>"]]
    names = byte_level(TEXT).get_vocab()
    return [number for name, number in names.items() if not re.fullmatch("Ġ?[a-z]+", name)] + control


def check_segments(predictor: Any, sound: Any, record: Any, decode: Decode) -> None:
    """All windows of a recording have texts, in order; the model tells the language where it is not given."""
    seconds, segments = round(len(sound) / 16000, 3), record["segments"]
    spans = [(each["start"], each["end"]) for each in segments]
    assert record["text"] and record["seconds"] == seconds and spans == sorted(spans)
    assert all(0 <= start <= end <= seconds for start, end in spans) and seconds - spans[-1][1] < SECONDS
    assert record["language"] in ((decode["language"],) if "language" in decode else LANGUAGES)
    assert "".join(record["text"].split()) == "".join("".join(each["nbest"][0]["text"].split()) for each in segments)
    assert len(record["tokens"]) == len(record["logprobs"]) == len(record["alignment"]["times"]) > 0


def write_whisper(folder: Path) -> None:
    """A folder of transformers with random weights."""
    end, heads = control_ids(SECONDS)["<|endoftext|>"], [[0, 1], [1, 2]]
    rules = {"suppress_tokens": unreadable_tokens(), "begin_suppress_tokens": [end], "alignment_heads": heads}
    write_multilingual(folder, SECONDS, 24, 3, **rules)


# --- several kinds ---------------------------------------------------------------------------------------------------

SOUND = (RNG.normal(0, 0.1, 4000).astype(np.float32), 8000)
SQUARE = RNG.integers(0, 256, (16, 16, 3), np.uint8)
MANIFEST = [
    *({"text": text, "target": text[::-1], "task": "reverse"} for text in ("abc", "bca", "cab", "acb")),
    *({"text": text, "target": text, "task": "copy"} for text in ("abc", "ccb", "bab")),
    *({"image": RNG.integers(0, 256, (16, 16, 3), np.uint8), "target": "abba"} for _ in range(3)),
    *({"audio": (RNG.normal(0, 0.1, 3000).astype(np.float32), 8000), "target": "cc"} for _ in range(3)),
]

OMNI = {
    **LETTERS,
    "model.layers": 1,
    "model.decoder_layers": 1,
    "model.channels": 4,
    "model.image": 16,
    "model.patch": 8,
}
OMNI |= {"data.rate": 8000, "data.bins": 20, "data.crop": 1, "data.flip": False, "decode.kind": "greedy"}
OMNI |= {"decode.max_tokens": 5}


def manifest(rows: Rows, folder: Path) -> Path:
    table = []
    for number, row in enumerate(rows):
        row = dict(row)
        if "image" in row:
            (folder / f"{number}.png").write_bytes(png(row["image"]))
            row["image"] = f"{number}.png"
        if "audio" in row:
            soundfile.write(folder / f"{number}.wav", *row["audio"], "FLOAT")
            row["audio"] = f"{number}.wav"
        table.append(json.dumps(row) + "\n")
    (folder / "a.jsonl").write_text("".join(table))
    return folder / "a.jsonl"


def mixed_metrics(predictor: Any, rows: Rows) -> dict[str, Any]:
    items = [{key: value for key, value in row.items() if key != "target"} for row in rows]
    targets = [row["target"] for row in rows]
    by_task: dict[str, list[bool]] = {}
    for row, found in zip(rows, predictor.predict(items), strict=True):
        task = row.get("task") or next(key for key in row if key != "target")
        by_task.setdefault(task, []).append(found == row["target"])
    logprobs = [value for each in predictor.score(items, targets, details=True) for value in each["logprobs"]]
    exact = np.mean([np.mean(each) for each in by_task.values()])
    return {"exact": exact, "loss": -np.mean(logprobs), "examples": len(rows)}


def mixed_forms(image: Any, folder: Path) -> list[Any]:
    forms = image_forms(image, folder)
    return [each for each in forms if not isinstance(each, bytes)] + [{"image": each} for each in forms]


CASES = {
    "language": Case(
        "language", LINES, ["so", "", "a very good", "bad d"],
        {**LETTERS, "model.positions.tokens": 128, "data.max_tokens": 120, "decode.add_start": True, "decode.max_tokens": 6},
        [GREEDY, BEAM, SAMPLE, SOME, RULES, {**GREEDY, "stop": ["oo", "zz"]}, {**GREEDY, "add_start": False}],
        texts_of, json_lines, language_metrics, check=check_continuation, whole=True, look=" good",
        wrong_decode=[({"stop": [""]}, "decode.stop has an empty string"), CANDIDATES],
    ),
    "translate": Case(
        "translate", PAIRS, TEXTS, {**SEQ2SEQ, **BYTES}, [*TRANSLATIONS, SOME], texts_of, two_files, text_metrics, check=check_translation,
        targets=TARGETS, noticed=EMPTY, look="SO BAD",
        wrong_decode=[
            CANDIDATES, ({"kind": "sample", "temperature": 0}, "decode.strategy.temperature is 0; expected more than 0"),
            ({"kind": "beam", "beam": 2, "nbest": 3}, "decode.strategy.n is 3, above decode.strategy.size=2"),
            ({"kind": "greedy", "include": ["A"]}, "decode.include needs beam search but decode.strategy is greedy"),
            ({"max_tokens": -1}, "decode.max_tokens is -1; expected at least 0"),
        ],
    ),
    "cnn": Case(
        "translate", PAIRS, TEXTS, CNN, [GREEDY, BEAM, SAMPLE], texts_of, two_files, text_metrics, check=check_translation,
        targets=TARGETS, noticed=EMPTY, look="SO BAD", wrong_decode=[CANDIDATES],
    ),
    "nat": Case(
        "translate", PAIRS, TEXTS, {**NAT, "model.family": "nat", "model.max_fertility": 3, "decode.kind": "argmax"},
        [{"kind": "average"}, {"merge_repeats": True}, {"max_tokens": 3}, {"split": True}],
        texts_of, two_files, text_metrics, check=check_text, targets=TARGETS, noticed=EMPTY, look="SO BAD",
        wrong_decode=[({"kind": "beam"}, 'decode.strategy.kind is "beam"; expected one of argmax, average, npd')],
    ),
    "nat-ctc": Case(
        "translate", PAIRS, TEXTS, {**NAT, "model.family": "nat-ctc", "decode.kind": "argmax"},
        [{"max_tokens": 2}, {"split": True}], texts_of, two_files, text_metrics, check=check_text, targets=TARGETS,
        noticed=EMPTY,
        wrong_decode=[({"min_tokens": 3}, "decode.min_tokens is not a key")],
    ),
    "cmlm": Case(
        "translate", PAIRS, TEXTS, {**NAT, "model.family": "cmlm", "decode.kind": "mask-predict"},
        [{"iterations": 1}, {"length_beam": 1, "iterations": 4}, {"max_tokens": 3}],
        texts_of, two_files, text_metrics, check=check_text, targets=TARGETS, noticed=EMPTY, look="SO BAD",
        wrong_decode=[({"nbest": 2}, "decode.strategy.n does not belong to decode.strategy=mask-predict")],
    ),
    "text2text": Case(
        "text2text", PAIRS, TEXTS, T5, TRANSLATIONS[:4], texts_of, lines, text_metrics, check=check_translation,
        targets=TARGETS, noticed=EMPTY, look="SO BAD", wrong_decode=[CANDIDATES],
    ),
    "spans": Case(
        "spans", LINES, ["so <extra_id_0>", "<extra_id_0> good", "a <extra_id_0> good <extra_id_1>", "bad"],
        {**T5, "data.sentinels": 10}, TRANSLATIONS[:4], texts_of, plain_lines, loss_metrics, check=check_translation,
        targets=TARGETS, noticed=EMPTY, look="so", wrong_decode=[CANDIDATES],
    ),
    "classify": Case(
        "classify", LABELED, TEXTS, WIDER, [{"top": 1}, {"top": 2}],
        label_of, lines, labels_metrics, check=check_labels, targets=["pos", "neg", "pos", "neg"],
        pair=("two texts", "texts", "labels"), unknown="'a label' is no label of this run; it has neg, pos",
        noticed=[
            ("", "2 of 3 texts are empty and get no label", "", {"label": None, "probability": None, "top": []}),
            (" ", "2 of 3 texts are empty and get no label", "", {"label": None}),
            ("so " * 40, r"2 of 3 texts have more than 38 tokens and were cut there \(data\.max_tokens", None, {}),
        ],
        wrong_decode=[({"top": -1}, "decode.top is -1"), ({"batch": 2.5}, r"decode\.batch is")],
    ),
    "tag": Case(
        "tag", SENTENCES, [tuple(text.split()) for text in TEXTS], LETTERS, [{"top": 2}, {"top": 1}],
        lambda record, decode: record["tags"], columns, tag_metrics, check=check_tags,
        forms=lambda words, folder: [[*words], np.array(words)], noticed=[((), "", [], {"tags": []})],
        wrong_decode=[({"top": -1}, "decode.top is -1")],
    ),
    "masked": Case(
        "masked", LINES, ["so <mask>", "<mask>", "a very <mask> <mask>ay", "[MASK]ad"], {**LETTERS, "data.max_tokens": 40},
        [{"top": 3}, {"top": 1}], masks_of, plain_lines, loss_metrics, check=check_masks,
        forms=lambda text, folder: [text.replace("<mask>", "[MASK]")],
        noticed=[
            ("The  cat", "2 of 3 texts have no <mask> and stay as they are", "The  cat", {"masks": []}),
            ("so " * 40 + "<mask>", "a text has more than 38 tokens and was cut there", None, {}),
        ],
        wrong_decode=[({"top": -1}, "decode.top is -1")],
    ),
    "classify-image": Case(
        "classify-image", [*zip(IMAGES, ["cat", "dog", "cow", "cat"], strict=True)] * 2, IMAGES, PATCHES,
        [{"top": 1}, {"top": 2}], lambda record, decode: record["label"], image_tree, labels_metrics, check=check_labels,
        forms=image_forms, wrong=bad_images, targets=["cat", "dog", "dog", "cat"],
        pair=("an image and its label", "images", "labels"), unknown="'a label' is no label of this run; it has cat, cow",
        wrong_decode=[({"top": -1}, "decode.top is -1")],
    ),
    "detect": Case(
        "detect", [*zip(IMAGES, BOXES, NAMES, strict=True)] * 2, [IMAGES[0], IMAGES[0][:, ::-1].copy(), *IMAGES[1:]], DETR,
        [{"top": 3}, {"threshold": 0.56}], lambda record, decode: record["objects"], coco, detect_metrics,
        check=check_objects, forms=image_forms, wrong=bad_images, sharp=1.0,
        wrong_decode=[({"top": -1}, "decode.top is -1"), ({"threshold": 2}, "decode.threshold is 2")],
    ),
    "caption": Case(
        "caption", [*zip(IMAGES, CAPTIONS, strict=True)] * 2, IMAGES[:3], CAPTIONER,
        [GREEDY, BEAM, SAMPLE, RULES, {"prefix": "a r"}, {"exclude": ["g", "d"], "kind": "greedy"}], texts_of, image_table,
        text_metrics, check=check_aligned, forms=image_forms, wrong=bad_images, targets=["a red", "dog", "the"], sharp=3.0,
        pair=("an image and its caption", "images", "captions"), look="red dog", wrong_decode=[NO_SPLIT, CANDIDATES],
    ),
    "transcribe": Case(
        "transcribe", [((sound, RATE), text) for sound, text in zip(SOUNDS, WORDS, strict=True)] * 2, SOUNDS, SPEECH,
        [
            {"kind": "greedy"}, {"kind": "beam", "ctc": 0.0}, {"kind": "beam", "ctc": 0.3, "nbest": 2},
            {"kind": "beam", "ctc": 1.0}, {"kind": "sample", "seed": 3, "nbest": 2}, {"kind": "ctc"}, {"segment": 0.7},
            {"max_tokens": 2}, {"prefix": "AS"}, {"exclude": ["E", "S"]}, {"include": ["AQ"], "kind": "beam"},
        ],
        texts_of, sound_table, text_metrics, check=check_transcript, forms=sound_forms(RATE), wrong=bad_sounds,
        targets=["E", "CQ D", "", "É"], pair=("a recording and its text", "recordings", "texts"), noticed=SILENCE, look="CQ",
        wrong_decode=[NO_SPLIT, ({"ctc": 1.5}, "decode.ctc is 1.5; expected at most 1")],
    ),
    "whisper": Case(
        "transcribe", [((sound, 16000), text) for sound, text in zip(NOISES[:2], ["the cat", "a dog"], strict=True)], NOISES,
        {}, [
            {"kind": "beam", "beam": 2}, {**AGAIN, "language": "de"}, {"language": "ja"}, {"sequential": False}, {"prompt": "the cat"},
            {"timestamps": False, "language": "ja", "task": "translate"},
        ],
        texts_of, sound_table, text_metrics, check=check_segments, forms=sound_forms(16000), wrong=bad_sounds, targets=["the cat", ""],
        pair=("a recording and its text", "recordings", "texts"), noticed=SILENCE, look="the cat", rounded=("alignment",),
        load={f"decode.{name}": value for name, value in FAST.items()}, folder=write_whisper,
        wrong_decode=[({"language": "xx"}, "'xx' is no language of this model")],
    ),
    "multitask": Case(
        "multitask", MANIFEST, [SQUARE, {"text": "cab", "task": "copy"}, SOUND, {"text": "abcabc", "task": "reverse"}], OMNI,
        [BEAM, SAMPLE, RULES, {"prefix": "ab"}, {"exclude": ["a", "b"]}], texts_of, manifest, mixed_metrics, check=check_aligned,
        forms=mixed_forms, wrong=lambda folder: [(5, "a int is no text"), ({}, "an input has no")],
        targets=["ab", "", "cab", "b"], pair=("an input and its target", "inputs", "targets"),
        noticed=[({"text": " ", "task": "copy"}, "", "", {})], look="ab",
        wrong_decode=[({"task": "sing"}, "decode.task is 'sing', which this run did not learn"), CANDIDATES],
    ),
    "contrastive": Case(
        "contrastive", [*zip(IMAGES, CAPTIONS, strict=True)] * 2, [*IMAGES[:3], "a dog"], CLIP,
        [{"top": 2}, {"labels": ["a", "d"]}, {"template": "the {}"}], label_of, image_table, pair_metrics,
        check=check_labels, forms=image_forms, wrong=lambda folder: [(" ", "a text is empty and has no embedding")],
        wrong_decode=[({"labels": ["red"]}, "'red' is the only label"), ({"template": "a photo"}, "expected a text with {}")],
    ),
}  # fmt: skip
