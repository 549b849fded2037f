"""Training Whisper: targets with prompts and timestamps, the loss of transformers, starts, LoRA, exports, bad data."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.losses import batch_loss
from helpers.whisper import control_ids, write_multilingual
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.data.sources.data_files import with_data
from regard.errors import UserError
from regard.formats.huggingface.whisper import FORMAT, POSITIONS
from regard.processors.sound.filterbank import FilterbankProcessor
from regard.processors.text.whisper import WhisperTokenizer, WhisperTranscripts
from regard.runs.pretrained import Pretrained
from regard.synthetic import morse
from regard.tasks.task import check_fit
from regard.tasks.transcribe.task import TranscribeJob, prepare
from regard.tasks.whisper.task import WhisperPredictor
from regard.training import curves

CPU = torch.device("cpu")
SECONDS = 2
IDS = control_ids(SECONDS)
HEADS = [[1, 0], [1, 2]]
FAST = {
    "train.steps": 2, "train.warmup": 1, "train.tokens": 600, "train.eval_every": 2, "train.save_every": 1, "train.lr": 1e-3,
    "train.schedule.kind": "constant", "train.metric": "loss", "train.tensorboard": False, "device": "cpu", "data.language": "de",
}  # fmt: skip
MARKED = "<|startofprev|> EE<|startoftranscript|><|0.00|> ET<|0.50|><|0.50|> AI<|1.20|>"


def key(text: str, seed: int) -> tuple[np.ndarray, int]:
    found = morse.encode_morse(text, np.random.default_rng(seed), morse.MorseSettings(24))
    return found.samples, found.rate


ROWS = [(key("ETAI"[number % 4], number), "ETAI"[number % 4]) for number in range(8)]
DATA = {"train": ROWS, "valid": ROWS[:2]}


@pytest.fixture(scope="module", autouse=True)
def few() -> Any:
    with mock.patch.object(morse, "HELD_OUT", 4), mock.patch.object(curves, "draw", lambda folder: None):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper") / "folder"
    write_multilingual(path, SECONDS, alignment_heads=HEADS)
    weights = load_file(path / "model.safetensors")
    weights[POSITIONS] = weights[POSITIONS].half().float()  # as in the published models
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one language."""
    path = tmp_path_factory.mktemp("whisper") / "english"
    write_multilingual(path, SECONDS, is_multilingual=False, lang_to_id=None, task_to_id=None)
    return path


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    """A run that starts from the folder."""
    regard.train("whisper", {**FAST, "start": str(folder)}, out=folder.parent / "run", data=DATA)
    return folder.parent / "run"


def job(folder: Path, rows: list[Any] = ROWS, **changes: object) -> TranscribeJob:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    run = regard.resolve("whisper", with_data({**FAST, "start": str(folder), **named, "data.train": rows})).run
    start = Pretrained(str(folder), regard.load)
    found = prepare(start.complete(run), start.processors, CPU)
    start.copy_weights(found.model)
    assert isinstance(found, TranscribeJob)
    return found


def first_batch(own: TranscribeJob) -> Any:
    return own.loader.sampler.dataset.batch(np.arange(len(own.splits["train"])), 0)


def scores(predictor: Any) -> list[float]:
    found: list[float] = predictor.score([sound for sound, _ in ROWS[:4]], [text for _, text in ROWS[:4]])
    return found


# --- targets and loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("prompts", [True, False])
def test_targets_of_marked_transcripts(timestamps: bool, prompts: bool, folder: Path) -> None:
    """Everything after START is learned: language, task, no timestamps, text, END."""
    own = job(folder, [(ROWS[0][0], MARKED), ROWS[1]], data__timestamps=timestamps, data__keep_prompts=prompts)
    target, time = own.predictor.target, lambda seconds: IDS[f"<|{seconds}|>"]
    earlier, first, second, other = target.encode([" EE", " ET", " AI", ROWS[1][1]])[:3] + target.encode([" T"])
    previous = [IDS["<|startofprev|>"], *earlier] if prompts else []
    stamped = [time("0.00"), *first, time("0.50"), time("0.50"), *second, time("1.20")]
    spoken = stamped if timestamps else [IDS["<|notimestamps|>"], *first, *second]
    language = [IDS["<|de|>"], IDS["<|transcribe|>"]]
    texts = [[*language, *spoken, target.end], [*language, IDS["<|notimestamps|>"], *other, target.end]]
    batch = first_batch(own)
    rows = batch["target"].values
    for row, (before, ids) in enumerate(zip([previous, []], texts, strict=True)):
        wanted = [*before, target.start, *ids[:-1]]
        assert rows[row].tolist() == wanted + [target.pad] * (rows.size(1) - len(wanted))
    labels = batch["labels"]
    assert labels.values.tolist() == [*texts[0], *texts[1]] and batch.count == len(labels.values)
    begun = [len(previous), rows.size(1)]  # where START stands
    places = [start + i for start, ids in zip(begun, texts, strict=True) for i in range(len(ids))]
    assert labels.positions.tolist() == places


@pytest.mark.parametrize("marked", [True, False])
def test_the_loss_is_that_of_transformers(marked: bool, folder: Path) -> None:
    """With frames of both; the loss of the prompts does not count."""
    rows = [(sound, MARKED if marked and number % 2 else text) for number, (sound, text) in enumerate(ROWS[:4])]
    own = job(folder, rows, data__timestamps=True)
    batch = first_batch(own)
    theirs = hf.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    labels = torch.full(batch["target"].values.shape, -100)
    labels.view(-1)[batch["labels"].positions] = batch["labels"].values
    sounds = [own.predictor.sound.samples(sound) for sound, _ in rows]
    extract = hf.WhisperFeatureExtractor.from_pretrained(folder)
    features = extract(sounds, sampling_rate=16000, return_tensors="pt").input_features
    with torch.no_grad():
        ours = batch_loss(own, batch) / batch.count
        given = {"decoder_input_ids": batch["target"].values} if marked else {}  # they shift the labels alone
        wanted = theirs(input_features=features, labels=labels, **given).loss
    assert float(ours) == pytest.approx(float(wanted), rel=1e-5)


def test_long_prompts_keep_their_last_tokens(folder: Path) -> None:
    target: WhisperTokenizer = regard.load(folder).target
    words = [target.encode([" A B C D E F G H"])[0], target.encode([" E"])[0]]
    encode = WhisperTranscripts(target, "de", "transcribe", False, True, 5)
    ((prompt, ids),) = encode(["A B C D E F G H<|startoftranscript|> E"])
    assert prompt.tolist() == [IDS["<|startofprev|>"], *words[0][-5:], target.start]
    assert ids.tolist()[3:] == [*words[1], target.end]
    assert job(folder).predictor.transcriber.max_previous == 19  # of 40 positions


def test_times_in_prompts_need_not_rise(folder: Path) -> None:
    target: WhisperTokenizer = regard.load(folder).target
    said = "<|0.00|> A<|1.00|><|0.00|> B<|0.50|><|startoftranscript|><|0.00|> C<|0.20|>"
    previous, ids = target.encode_transcript(said, "de", "transcribe")
    assert [target.seconds(each) for each in previous if target.is_timestamp(each)] == [0.0, 1.0, 0.0, 0.5]
    assert target.plain(said) == "C" == target.decode([ids])[0].strip()
    without, _ = target.encode_transcript(said, "de", "transcribe", timestamps=False)
    assert without == [previous[0], *target.encode_words("A", "de"), *target.encode_words("B", "de")]


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_start_keeps_what_belongs_to_its_tokens(folder: Path, tuned: Path, tmp_path: Path) -> None:
    """Tokenizer, frames, suppressed tokens and alignment heads, from a folder and from its run."""
    first, settings = regard.load(folder), {**FAST, "start": str(tuned), "train.steps": 1, "data.frame_masks": 1}
    regard.train("whisper", settings, out=tmp_path / "again", data=DATA)
    for run in (tuned, tmp_path / "again"):
        one = regard.load(run)
        assert isinstance(one, WhisperPredictor) and one.target.control == first.target.control
        assert one.target.backend.to_str() == first.target.backend.to_str() and one.target.start == first.target.start
        assert (one.sound.seconds, one.sound.bins, one.sound.hop) == (SECONDS, 80, 160)
        assert one.run.decode.rules.suppress_tokens == first.run.decode.rules.suppress_tokens != ()
        assert one.run.decode.rules.begin_suppress_tokens == (5, IDS["<|endoftext|>"])
        assert one.run.model.alignment_heads == ((1, 0), (1, 2))
        assert one.module.encoder.positions.table.equal(load_file(folder / "model.safetensors")[POSITIONS])
        assert (one.run.decode.language, one.run.decode.windows.timestamps) == ("de", False)
    assert one.sound.frame_masks == 1


def test_resuming_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    settings = {**FAST, "start": str(folder), "data.timestamps": True, "data.noise": 0.5, "data.frame_masks": 1}
    data = {"train": [(ROWS[0][0], MARKED), *ROWS[1:]], "valid": ROWS[:2]}
    for name, counts in (("whole", (4,)), ("halves", (2, 4))):
        for steps in counts:
            resume = name == "halves" and steps == 4
            regard.train("whisper", {**settings, "train.steps": steps}, out=tmp_path / name, data=data, resume=resume)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "halves"))
    assert one == two
    configs = [json.loads((tmp_path / name / "run.json").read_text())["config"] for name in ("whole", "halves")]
    assert configs[0] == configs[1] and configs[0]["decode"]["windows"]["timestamps"] is True


def test_lora_trains_its_weights_alone(folder: Path, tmp_path: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    settings = {**FAST, "start": str(folder), "tune.kind": "lora", "train.lr": 0.05}
    predictor = regard.train("whisper", settings, out=tmp_path / "lora", data=DATA)
    with safe_open(tmp_path / "lora" / "model.safetensors", "pt") as file:
        assert all(name.startswith("tune.") for name in file.keys()) and len(file.keys()) > 4  # noqa: SIM118
    assert (folder / "model.safetensors").read_bytes() == before
    wanted = scores(predictor)
    assert wanted != pytest.approx(scores(regard.load(folder, {"decode.language": "de"})), abs=1e-2)
    assert scores(regard.load(folder, tune=tmp_path / "lora")) == pytest.approx(wanted, abs=1e-4)
    settings = json.loads((about := tmp_path / "lora" / "run.json").read_text())
    assert settings["config"]["model"].pop("stored_positions") is True  # older versions computed the positions
    about.with_name("new.json").write_text(about.read_text())
    about.write_text(json.dumps(settings))
    assert scores(regard.load(tmp_path / "lora")) == pytest.approx(wanted, abs=1e-2)
    about.with_name("new.json").replace(about)
    regard.convert(tmp_path / "lora", merge=True, out=tmp_path / "merged")
    merged = regard.load(tmp_path / "merged")
    assert scores(merged) == pytest.approx(wanted, abs=1e-3)
    assert merged.run.decode == predictor.run.decode and merged.run.model.alignment_heads == ((1, 0), (1, 2))
    regard.convert(tmp_path / "lora", merge=True, to="huggingface", out=tmp_path / "whole")
    assert scores(regard.load(tmp_path / "whole", {"decode.language": "de"})) == pytest.approx(wanted, abs=1e-3)
    regard.convert(tmp_path / "lora", to="peft", out=tmp_path / "peft")
    over = regard.load(folder, {"decode.language": "de"}, tune=tmp_path / "peft")
    assert scores(over) == pytest.approx(wanted, abs=1e-4)


def test_an_exported_run_gives_the_same_tokens_in_transformers(tuned: Path, folder: Path, tmp_path: Path) -> None:
    regard.convert(tuned, to="huggingface", out=tmp_path / "hf")
    ours, again = regard.load(tuned), regard.load(tmp_path / "hf")
    first = regard.load(folder)
    assert again.run.model.alignment_heads == first.run.model.alignment_heads
    assert again.run.decode.rules.suppress_tokens == first.run.decode.rules.suppress_tokens
    assert again.run.decode.rules.begin_suppress_tokens == first.run.decode.rules.begin_suppress_tokens
    assert again.target.control == first.target.control
    assert (again.run.decode, again.run.decode.language) == (ours.run.decode, "de")
    theirs = hf.WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "hf")
    extract = hf.WhisperFeatureExtractor.from_pretrained(tmp_path / "hf")
    decode: dict[str, Any] = {"temperatures": (0.0,), "no_speech_threshold": 1.0, "compression_ratio_threshold": 0.0}
    decode |= {"logprob_threshold": 0.0, "timestamps": True, "condition_on_previous": False}
    for (samples, _), _ in ROWS[:3]:
        sound = np.resize(samples, SECONDS * 16000)  # a whole window: transformers does not know where it ends
        (result,) = ours.predict_requests(ours.requests([sound], **decode))
        features = extract(sound, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            found = theirs.generate(**features, return_timestamps=True, return_segments=True)["segments"][0]
        tokens = [segment["tokens"].tolist() for segment in found]
        assert [[*segment.ids] for segment in result.segments] == tokens != []
        text = " ".join(tokenizer.decode(ours.target.text_tokens(each)).strip() for each in tokens)
        assert result.text == text.strip() == again.predict(sound, **decode)


def test_from_scratch(tmp_path: Path) -> None:
    """Small, with a language by name; the run has control tokens of its own, and exports."""
    small = {
        "model.width": 16,
        "model.heads": 2,
        "model.layers": 1,
        "model.inner": 32,
        "data.bins": 12,
        "data.examples": 30,
    }
    settings = {**FAST, **small, "train.tokens": 1600, "data.language": "German"}
    predictor: WhisperPredictor = regard.train("whisper-morse", settings, out=tmp_path / "run")
    target = predictor.target
    assert [*target.control.languages] == ["de"] and predictor.sound.seconds == 8
    assert predictor.run.decode.rules.suppress_tokens == target.control_ids and target.control.timestamps == 401
    assert target.is_timestamp(target.size - 1) and target.seconds(target.size - 1) == 8
    regard.convert(tmp_path / "run", to="huggingface", out=tmp_path / "hf")
    again = regard.load(tmp_path / "hf")
    decode: dict[str, Any] = {"temperatures": (0.0,), "max_tokens": 6, "timestamps": False}
    assert again.predict(ROWS[0][0], **decode) == predictor.predict(ROWS[0][0], **decode)
    for changes, words in (
        (
            {"data.language": "Klingonish"},
            "data.language is 'Klingonish'; expected a code or an English name, such as de",
        ),
        ({"model.source_positions": 90}, "gives 180 frames of 10 ms; expected whole seconds, such as model.source"),
    ):
        with pytest.raises(UserError, match=words):
            regard.train("whisper-morse", {**settings, **changes}, out=tmp_path / "none")
    with pytest.raises(UserError, match=r"data\.speed is 0\.9,1, which makes the times of data\.timestamps wrong"):
        regard.resolve("whisper", {"data.speed": (0.9, 1), "data.timestamps": True})


def test_a_new_model_needs_a_start_or_a_size(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no start is set, .*; set start to a Whisper folder, such as start=openai/"):
        regard.train("whisper", {"train.steps": 1}, out=tmp_path / "run", data=DATA)
    assert not (tmp_path / "run").exists()
    for settings, refused in (({}, True), ({"model.size": "base"}, False), ({"model.layers": 1}, False)):
        with pytest.raises(UserError) if refused else nullcontext():
            check_fit(regard.resolve("whisper", settings).run)


def test_a_first_epoch_from_short_to_long(folder: Path) -> None:
    """Windows are equally long, so the curriculum counts what is recorded."""
    rows = [(key("E" * (1 + number * 5 % 7), number), "E") for number in range(7)]
    lengths = [len(sound) for (sound, _), _ in rows]
    own = job(folder, rows, data__curriculum=True, train__tokens=200)
    order = [step.micro_batches[0].examples[0] for step in own.steps(0, 0)]
    assert [lengths[each] for each in order] == sorted(lengths)
    assert [lengths[step.micro_batches[0].examples[0]] for step in own.steps(1, 0)] != sorted(lengths)


# --- data that do not fit --------------------------------------------------------------------------------------------


def test_what_is_too_long_is_counted(folder: Path) -> None:
    """Recordings longer than the window, also at a lower speed, and transcripts of more tokens than positions."""
    long, close = np.tile(ROWS[0][0][0], 6), np.zeros(int(1.9 * 8000), np.float32)
    rows = [*ROWS[:3], ((long, 8000), "E"), ((close, 8000), "T"), (ROWS[0][0], "E T A I " * 20)]
    for speed, count in (((), 2), ((0.9, 1.0), 3)):
        own = job(folder, rows, data__speed=speed)
        list(own.steps(0, 0))
        (fact,) = [fact for fact in own.describe_data() if "left out" in fact]
        assert (
            f"{count} of 6 examples left out because they have more than {'1.8' if speed else '2'} seconds or" in fact
        )
        assert "a transcript of more than 40 tokens (model.source_positions or model.positions.tokens)" in fact
    with pytest.raises(
        UserError, match="all 1 examples of data.train have more than 2 seconds .* raise model.source_pos"
    ):
        list(job(folder, [((long, 8000), "E")]).steps(0, 0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "<|0.00|> E<|3.00|>",
            r"has the timestamp <\|3.00\|>, and the last one is <\|2.00\|>; cut the recording of '<\|0.00\|> E<",
        ),
        ("<|1.00|> E<|0.50|>", r"has the timestamp <\|0.50\|> after <\|1.00\|>; sort those of '<\|1.00\|> E<"),
        (
            "<|de|><|0.00|> E<|0.50|>",
            r"has the mark <\|de\|>; expected timestamps such as <\|1.20\|>, and <\|startofprev",
        ),
        ("<|1.2|> E", r"has the mark <\|1.2\|>; expected timestamps"),
    ],
)
def test_wrong_marks_are_one_sentence(text: str, words: str, folder: Path, tmp_path: Path) -> None:
    rows = [*ROWS, (ROWS[0][0], text)]
    settings = {**FAST, "start": str(folder), "data.timestamps": True, "train.tokens": 2000}
    with pytest.raises(UserError, match=words):
        regard.train("whisper", settings, out=tmp_path / "run", data={"train": rows})
    assert not (tmp_path / "run").exists()
    if text.count("|>") == 2:  # times that are dropped may be wrong
        list(job(folder, rows).steps(0, 0))


def test_languages_and_tasks_that_a_start_lacks(folder: Path, english: Path) -> None:
    assert job(folder, data__language="Japanese").predictor.run.decode.language == "ja"
    (prompt, ids), (_, spaced) = (
        job(folder, data__language=name).predictor.transcriber.targets_to_learn()(["E"])[0] for name in ("ja", "German")
    )
    assert len(prompt) == 1 and ids[0] == IDS["<|ja|>"] and spaced[0] == IDS["<|de|>"] and ids[3] != spaced[3]
    with pytest.raises(
        UserError, match=r"'fr' is no language of this model; it knows 3, such as de, en, ja \(data.language\)"
    ):
        job(folder, data__language="fr")
    own = job(english, data__language="en")
    assert own.predictor.transcriber.targets_to_learn()(["E"])[0][1][0] == IDS["<|notimestamps|>"]
    with pytest.raises(
        UserError, match="the language is 'de', and this model knows English alone; leave data.language"
    ):
        job(english)
    with pytest.raises(
        UserError, match="data.task is translate, and this model does not translate; start from another"
    ):
        job(english, data__language="en", data__task="translate")
    (pair,) = job(folder, data__task="translate").predictor.transcriber.targets_to_learn()(["E"])
    assert pair[1][1] == IDS["<|translate|>"]


def test_known_texts_that_do_not_fit(tuned: Path, tmp_path: Path) -> None:
    """They have no score; evaluation transcribes them, and leaves them out of the loss."""
    predictor = regard.load(tuned)
    long = np.tile(ROWS[0][0][0], 6)
    for sound, text, words in (
        ((long, 8000), "E", r"the recording has 3\.\d seconds and the model reads 2; give its parts"),
        (ROWS[0][0], "E T A I " * 20, r"a text has \d+ tokens with its prompt and the model reads 40; shorten it"),
    ):
        for ask in (predictor.score, predictor.align, predictor.look):
            with pytest.raises(UserError, match=words):
                ask(sound, text)
    decode = {"decode.max_tokens": 4, "decode.temperatures": (0.0,)}
    predictor = regard.load(tuned, decode)
    with pytest.warns(UserWarning, match="1 of 3 recordings have more than 2 seconds or 36 tokens and do not count"):
        metrics = predictor.evaluate([*ROWS[:2], ((long, 8000), "EE")])
    assert metrics["loss"] == pytest.approx(predictor.evaluate(ROWS[:2])["loss"]) and metrics["examples"] == 3
    with pytest.warns(UserWarning, match="1 of 1 recordings"):
        assert "loss" not in predictor.evaluate([((long, 8000), "EE")])
    settings = {**FAST, **decode, "start": str(tuned)}
    data = {"train": ROWS, "valid": [((long, 8000), "EE")]}
    with (
        pytest.warns(UserWarning),
        pytest.raises(UserError, match="train.metric is loss, and all recordings of data.val"),
    ):
        regard.train("whisper", settings, out=tmp_path / "none", data=data)
    with pytest.warns(UserWarning):
        regard.train("whisper", {**settings, "train.metric": "wer"}, out=tmp_path / "wer", data=data)


def test_a_run_of_filterbanks_is_no_whisper_folder(tuned: Path, tmp_path: Path) -> None:
    predictor = regard.load(tuned)
    predictor.sound = FilterbankProcessor()
    with pytest.raises(
        UserError, match="hf cannot become a Whisper folder: its tokenizer has no control tokens; train"
    ):
        FORMAT.write(predictor, tmp_path / "hf")
