"""The files and runs that the pages name: one function for each page writes them into the current folder."""

import json
import lzma
import shutil
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from helpers import causal, gguf_files, marian, reads
from helpers.pages import ROOT
from helpers.whisper import write_folder, write_multilingual
from PIL import Image

import regard
from regard.data.sources.dependencies import read_trees
from regard.synthetic import captions, morse, scenes
from regard.synthetic.dates import make_dates


def make_run(recipe: str, out: str, settings: dict[str, Any] | None = None, **sections: Any) -> None:
    """Train the run `out`; inside `run_page` every training is small."""
    regard.train(recipe, settings, out=out, **sections)


def write_lines(name: str, lines: list[str]) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_pairs(count: int = 40) -> None:
    """train, val and test in English and German: dates."""
    pairs = list(make_dates(("en", "de"), count, 1)["train"])
    for split, some in (("train", pairs), ("val", pairs[:5]), ("test", pairs[:6])):
        for side, name in enumerate(("en", "de")):
            write_lines(f"{split}.{name}", [pair[side] for pair in some])


def make_translator(*outs: str) -> None:
    """A run that translates the dates of `write_pairs`, at every given name."""
    data = {"train": "train.en,train.de", "valid": "val.en,val.de"}
    make_run("translate", outs[0], data=data)
    for other in outs[1:]:
        shutil.copytree(outs[0], other)


def write_recording(name: str, text: str, seed: int = 1) -> None:
    sound = morse.encode_morse(text, np.random.default_rng(seed))
    Path(name).parent.mkdir(exist_ok=True)
    soundfile.write(name, sound.samples, sound.rate)


def write_image(name: str, seed: int = 0, size: tuple[int, int] = (40, 30)) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(name)


def write_photos(suffix: str, count: int = 12) -> None:
    """photos/CLASS/*, two classes."""
    for number in range(count):
        write_image(f"photos/{('cat', 'dog')[number % 2]}/{number}{suffix}", number)


def write_boxes(path: str, files: dict[str, list[tuple[list[float], str]]], size: tuple[int, int]) -> None:
    """A COCO file: boxes (x, y, width, height) with labels in images of one size."""
    labels = sorted({label for boxes in files.values() for _, label in boxes})
    images, annotations = [], []
    for number, (name, boxes) in enumerate(files.items(), 1):
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        for box, label in boxes:
            own = {"image_id": number, "category_id": labels.index(label) + 1, "bbox": box, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "area": box[2] * box[3], **own})
    categories = [{"id": number, "name": name} for number, name in enumerate(labels, 1)]
    Path(path).write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def write_sentences(*names: str) -> list[str]:
    """CoNLL-U files with the sentences of docs/sentences.conllu; their texts."""
    for name in names:
        shutil.copy(ROOT / "docs" / "sentences.conllu", name)
    return [" ".join(tree.words) for tree in read_trees(str(ROOT / "docs" / "sentences.conllu"))]


WORDPIECE = {"tokenizer.kind": "wordpiece", "tokenizer.normalize": "lower", "model.feed.kind": "plain"}


def make_bert(out: str, texts: list[str]) -> None:
    make_run("masked", out, WORDPIECE, data={"train": [{"text": text} for text in texts]})


# --- one function for each page --------------------------------------------------------------------------------------


def write_readme() -> None:
    write_pairs()
    make_translator("runs/a", "runs/b")
    write_lines("in.txt", ["the cat."])
    write_lines("other.txt", ["a cat sleeps.", "the dog runs far."] * 40)
    Path("texts").mkdir()
    write_lines("texts/one.txt", ["Once upon a time a dog ran home."] * 60)
    write_lines("reviews.tsv", ["the dog runs\tgood", "a cat sleeps\tbad"] * 20)
    write_sentences("words.conllu")
    write_photos(".png")
    boxes = {f"{('cat', 'dog')[n % 2]}/{n}.png": [([5.0, 5.0, 20.0, 10.0], ("cat", "dog")[n % 2])] for n in range(12)}
    write_boxes("instances.json", boxes, (40, 30))
    lines = [{"text": "a photo", "target": "ein Foto"}, {"image": "photo.png", "target": "a photo"}] * 2
    write_lines("manifest.jsonl", [json.dumps(line) for line in lines])
    for number in range(4):
        write_image(f"images/{number}.png", number)
    write_image("photo.png")
    write_lines("captions.tsv", [f"{number}.png\ta photo {number}" for number in range(4)])
    write_lines("pairs.tsv", [f"images/{number}.png\ta photo {number}" for number in range(4)])
    write_recording("a.wav", "THE WORDS")
    write_lines("recordings.tsv", [f"a.wav\tTHE WORDS {letter}" for letter in "THEWORDS" * 2])
    write_multilingual(Path("whisper-small"))


def write_audio() -> None:
    """Tables of recordings with their texts, a.wav, b.flac, the folder new, and a Whisper folder."""
    rows = []
    for number, (sound, text) in enumerate(morse.make_morse(12)["train"]):
        Path("new").mkdir(exist_ok=True)
        soundfile.write(f"new/{number}.wav", sound.samples, sound.rate)
        rows.append(f"new/{number}.wav\t{text}")
    for split in ("train", "valid", "test"):
        write_lines(f"{split}.tsv", ["path\ttext", *rows, "a.wav\tCQ DE W1AW"])
    for name in ("a.wav", "b.flac"):
        write_recording(name, "CQ DE W1AW")
    write_folder(Path("whisper-small"))


REVIEWS = [("so good, really", "pos"), ('so "bad"', "neg"), ("fine\nand more", "pos"), ("poor", "neg")] * 5


def write_data() -> None:
    import pyarrow as pa
    import pyarrow.parquet

    texts = [(i, text.replace('"', '""'), label) for i, (text, label) in enumerate(REVIEWS)]
    quoted = "".join(f'{i},"{text}",{label}\n' for i, text, label in texts)
    Path("reviews.csv").write_text("id,review,sentiment\n" + quoted)
    Path("ratings.csv").write_text("who,comment,stars\n" + quoted)
    write_lines("pairs.tsv", [f"{i}\tone {i}\teins {i}" for i in range(9)])
    write_lines("new.jsonl", [json.dumps({"text": text}) for text, _ in REVIEWS])
    columns = {"sentence": [text for text, _ in REVIEWS], "label": [label for _, label in REVIEWS]}
    pyarrow.parquet.write_table(pa.table(columns), "more.parquet")


def write_decoding() -> None:
    write_language()
    make_run("language", "runs/novels", data={"train": "novels"})


def write_language() -> None:
    Path("novels").mkdir()
    for name in ("one", "two"):
        write_lines(f"novels/{name}.txt", marian.sentences(40))


def write_export() -> None:
    write_pairs()
    make_translator("runs/a", "runs/b", "runs/ende", "runs/x")
    for name in ("train", "valid", "test"):
        text = "".join(f"{line}\n" for line in marian.sentences(60))
        Path(f"{name}.txt.xz").write_bytes(lzma.compress(text.encode()))
    write_lines("lines.txt", marian.sentences(5))
    reads.write_texts(Path("reviews.tsv"), reads.labeled_examples(40, 1))
    causal.gpt2(Path("openai-community/gpt2"))
    make_bert("bert", marian.sentences(40))
    regard.convert("bert", to="huggingface", out="google-bert/bert-base-uncased")
    write_gguf("model.Q4_K_M.gguf", "model.Q8_0.gguf", "org/name/model.Q8_0.gguf")


def write_gguf(first: str, *others: str) -> None:
    """A small Llama as GGUF files."""
    from gguf import GGMLQuantizationType
    from transformers import LlamaConfig, LlamaForCausalLM

    pieces = gguf_files.sentencepiece_model(Path("pieces"))
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=pieces.get_piece_size(), num_key_value_heads=2, **shape))
    fields = gguf_files.metadata(model.config, "llama") | gguf_files.sentencepiece_fields(pieces)
    gguf_files.write(Path(first), fields, gguf_files.tensors(model, "llama"), lambda name: GGMLQuantizationType.Q8_0)
    for other in others:
        Path(other).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first, other)


def write_heads() -> None:
    """The files sentences, train, dev and test, and the runs bert, tagger and classifier."""
    texts = write_sentences(*(f"{name}.conllu" for name in ("sentences", "train", "dev", "test")))
    make_bert("runs/bert", texts)
    make_run("tag", "runs/tagger", start="runs/bert", data={"train": "train.conllu"})
    labeled = [(text, "ab"[len(text) % 2]) for text in texts]
    reads.write_texts(Path("test.tsv"), labeled)
    make_run("classify", "runs/classifier", data={"train": labeled, "test": "test.tsv"})


def write_images() -> None:
    """photos/CLASS/*.jpg, new/*.jpg, test.zip, scenes with instances.json, and a ViT folder."""
    write_photos(".jpg")
    for number in range(12):
        write_image(f"new/{number}.jpg", number)
    with zipfile.ZipFile("test.zip", "w") as archive:
        for file in Path("photos").rglob("*.jpg"):
            archive.write(file)
    Path("scenes").mkdir()
    boxes = {}
    for number, (image, objects) in enumerate(scenes.make_scenes(10)["train"], 1):
        Image.fromarray(image).save(f"scenes/{number}.png")
        corners = zip(objects.boxes.tolist(), objects.labels, strict=True)
        boxes[f"{number}.png"] = [([x, y, right - x, low - y], label) for (x, y, right, low), label in corners]
    write_boxes("instances.json", boxes, (64, 64))
    make_run("classify-image", "base", model={"pool": "first"})
    regard.convert("base", to="huggingface", out="vit-folder")


def write_long() -> None:
    reads.write_texts(Path("long.tsv"), reads.labeled_examples(40, 1))


def write_look() -> None:
    recipes = {"dates": "dates", "digits": "classify-image", "scenes": "detect", "morse": "transcribe"}
    for name, recipe in recipes.items():
        make_run(recipe, f"runs/{name}")
    for name in ("image.png", "scene.png"):
        write_image(name, 1, (48, 40))
    write_recording("a.wav", "CQ")


def write_multimodal() -> None:
    """What its three sections name: captions, a manifest of several kinds, pairs of images (or sounds) and texts."""
    write_captions()
    for name in ("pictures/dog.png", "picture.png"):
        write_image(name)
    for name in ("recordings/dog.wav", "recording.wav"):
        write_recording(name, "E")
    write_lines("sentences.txt", ["a small dog", "", "a dog"])
    page = (ROOT / "docs" / "multimodal.md").read_text(encoding="utf-8")
    lines = page.partition("```json\n")[2].partition("```")[0].splitlines()
    for name in ("train.jsonl", "valid.jsonl"):
        write_lines(name, lines)
    write_lines("new.jsonl", ['{"image": "picture.png"}', '{"text": "a dog", "task": "shorten"}'])
    write_space()


def write_captions() -> None:
    """images/*.png with captions.tsv, new/*.png, and a folder of ViT and GPT-2."""
    lines = []
    for number, (image, caption) in enumerate(captions.make_captions(6)["train"]):
        Path("images").mkdir(exist_ok=True)
        Image.fromarray(image).save(f"images/{number}.png")
        lines.append(f"{number}.png\t{caption}")
    write_lines("captions.tsv", lines)
    exported = {"pool": "first", "positions": "learned", "stem": []}
    make_run("caption", "base", model={"encoder": exported})
    regard.convert("base", to="huggingface", out="vit-gpt2")


def write_space() -> None:
    """new/*.png with pairs.tsv and labeled.tsv, sounds.tsv, queries.txt, a.txt, b.txt, and the folders bert and clip."""
    Path("new").mkdir()
    pairs, labeled, sounds = ["path\ttext"], ["path\tlabel"], ["path\ttext"]
    for number in range(10):
        color, shape = (("red", "circle"), ("blue", "cross"))[number % 2]
        arrangement = captions.Arrangement(((color, shape),), False)
        image = captions.draw_arrangement(arrangement, np.random.default_rng(number))
        Image.fromarray(image).save(f"new/{number}.png")
        pairs.append(f"new/{number}.png\t{captions.describe_arrangement(arrangement)}")
        labeled.append(f"new/{number}.png\ta {color} {shape}")
    for number in range(6):
        with wave.open(f"{number}.wav", "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(np.random.default_rng(number).integers(-999, 999, 3200, np.int16).tobytes())
        sounds.append(f"{number}.wav\tword {number % 3}")
    texts = {"pairs.tsv": pairs, "labeled.tsv": labeled, "sounds.tsv": sounds}
    texts["queries.txt"] = ["a red circle", "a cross"]
    texts |= {"a.txt": [f"this is {n}" for n in range(6)], "b.txt": [f"{n} it is" for n in range(6)]}
    for name, lines in texts.items():
        write_lines(name, lines)
    make_run("masked", "bert", data={"train": "a.txt"})
    make_run("contrastive", "base-clip", model={"source": {"pool": "first"}})
    regard.convert("base-clip", to="huggingface", out="clip")


def write_parallel() -> None:
    write_pairs()
    write_lines("gold.links", ["0-0 1?1"] * 40)


def write_training() -> None:
    reads.write_texts(Path("reviews.tsv"), reads.labeled_examples(60, 1))


def write_tuning() -> None:
    """Sentences, the runs cased and sst2-prefix, and a BERT folder with a PEFT folder for it."""
    texts = write_sentences("train.conllu", "dev.conllu", "words.conllu")
    make_bert("runs/cased", texts)
    labeled = [(text, "ab"[len(text) % 2]) for text in texts]
    moods = {"train": [(label, text) for text, label in labeled]}
    make_run("sst2", "runs/sst2-prefix", start="runs/cased", tune={"kind": "prefix", "length": 2}, data=moods)
    write_lines("in.txt", texts[:2])
    make_run("classify", "base", start="runs/cased", data={"train": labeled})
    regard.convert("base", to="huggingface", out="bert-folder")
    make_run("classify", "lora", start="bert-folder", tune={"kind": "lora"}, data={"train": labeled})
    regard.convert("lora", to="peft", out="peft-folder")


def write_understanding() -> None:
    """Labeled texts, pairs, several labels, numbers, tagged sentences, plain texts and pairs of texts."""
    for name in ("train", "dev", "test"):
        reads.write_texts(Path(f"{name}.tsv"), reads.labeled_examples(40, len(name)))
    texts = write_sentences("train.conllu", "dev.conllu", "test.conllu")
    for name in ("in", "text", "other", "lines", "queries"):
        write_lines(f"{name}.txt", texts)
    pairs = [f"{a}\t{b}\t{label}" for a, b, label in zip(texts, texts[1:], "yn" * len(texts), strict=False)]
    write_lines("pairs.tsv", ["premise\thypothesis\tlabel", *pairs])
    write_lines("topics.tsv", ["text\tlabel", *(f"{text}\t{('a;b', 'b', '')[n % 3]}" for n, text in enumerate(texts))])
    write_lines("stars.tsv", ["text\tlabel", *(f"{text}\t{n / 4}" for n, text in enumerate(texts))])
    for name in ("german", "short"):
        write_lines(f"{name}.tsv", [f"{text}\t{text.upper()}" for text in texts])


def write_whisper() -> None:
    """The folder whisper-small, recordings, and tables of them, one with the marks of the page."""
    write_multilingual(Path("whisper-small"), 3, tokens=64, alignment_heads=[[1, 0], [1, 3]])
    for name, text in (("talk.mp3", "CQ DE W1AW"), ("short.wav", "E"), ("talk-1.wav", "ET"), ("talk-2.wav", "TE")):
        write_recording(name, text)
        write_recording(f"recordings/{text}.wav", text)
    for split in ("train", "valid", "test"):
        write_lines(f"{split}.tsv", ["talk-1.wav\tET", "talk-2.wav\tTE", "short.wav\tE"])
    page = (ROOT / "docs" / "whisper.md").read_text(encoding="utf-8")
    marked = [line for line in page.splitlines() if line.startswith("talk-")]
    write_lines("marked.tsv", marked + ["short.wav\tE"] * 8)


# --- one function for recipes that read the same files ---------------------------------------------------------------


def write_translations() -> None:
    """Pairs, also as the test set of Multi30k, and their links."""
    write_parallel()
    for side in ("en", "de"):
        shutil.copy(f"test.{side}", f"test_2016_flickr.{side}")
    write_lines("in.txt", ["May 1, 2024"])
    write_lines("train.links", ["0-0"] * 40)


def write_distilled() -> None:
    write_translations()
    shutil.copy("train.de", "distilled.de")


def write_running_text() -> None:
    """Files of running text by the names of several recipes."""
    names = ["input.txt", "other.txt", *(f"wiki.{split}.tokens" for split in ("train", "valid", "test"))]
    for name in names:
        write_lines(name, ["ROMEO: so good", *marian.sentences(60)])
    Path("folder").mkdir()
    write_lines("folder/one.txt", marian.sentences(60))


def write_text_tasks() -> None:
    write_understanding()
    write_lines("pairs.tsv", [f"{text}\t{text.upper()}" for text in marian.sentences(12)])


def write_pictures() -> None:
    """Images in this folder, in images/ with captions and boxes, and in a folder for each class."""
    write_captions()
    write_photos(".png")
    shutil.copytree("photos", "folder")
    for number in range(4):
        for suffix in (".png", ".jpg"):
            write_image(f"{number}{suffix}", number)
    write_lines("pairs.tsv", [f"{number}.png\ta photo {number}" for number in range(4)])
    sizes = {path.name: [([1.0, 1.0, 9.0, 9.0], "cat")] for path in Path("images").iterdir()}
    with Image.open("images/0.png") as image:
        for name in ("instances.json", "test.json"):
            write_boxes(name, sizes, image.size)


def write_whisper_folders() -> None:
    write_whisper()
    shutil.copytree("whisper-small", "openai/whisper-small")
