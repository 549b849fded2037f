"""Runs with `start`: which settings, tokenizer and weights they take over, and which errors are reported."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers as hf
from helpers import bert as folders
from helpers import causal, long, marian, reads
from helpers.inputs import inputs
from safetensors.torch import load_file, save_file

import regard
from regard.config.merge import flatten
from regard.errors import UserError
from regard.formats.huggingface import files as huggingface
from regard.runs.pretrained import Pretrained, read_settings
from regard.tasks.base import with_model_settings

FINE = {"train.steps": 4, "train.eval_every": 4, "train.save_every": 2, "train.tensorboard": False, "device": "cpu"}


@pytest.fixture(scope="module")
def first() -> Path:
    """A masked run with a next-sentence head, which the other tasks do not have."""
    settings = {"train__steps": 4, "data__next_sentence": True, "model__dropout": 0.2}
    return reads.stored_run("masked", **settings)


def train_from(recipe: str, first: Path, out: Path, resume: bool = False, **settings):
    parts = {f"data.{name}": str(first.parent / f"{name}.txt") for name in ("train", "valid")}
    own = {key.replace("__", "."): value for key, value in settings.items()}
    return regard.train(recipe, {**FINE, **parts, "start": str(first), **own}, out=out, resume=resume)


def test_settings_come_from_the_start(first):
    resolved = regard.resolve("classify", {"start": str(first)})
    run = resolved.run
    assert (run.model.width, run.model.heads, run.model.layers, run.model.inner) == (32, 2, 1, 64)
    assert (run.tokenizer.vocab, run.tokenizer.normalize) == (300, "nfkc+lower")
    assert resolved.origin["model.width"] == f"start {first}" == resolved.origin["tokenizer.vocab"]
    assert run.model.dropout == 0.2 and run.train.steps == regard.resolve("classify").run.train.steps
    assert regard.resolve("classify", {"start": str(first), "model.dropout": 0.3}).run.model.dropout == 0.3


def test_the_dropout_of_a_recipe_wins_over_the_start(first, tmp_path):
    (tmp_path / "a.toml").write_text('base = "classify"\n[model]\nwidth = 48\ndropout = 0.4\n')
    run = regard.resolve(str(tmp_path / "a.toml"), {"start": str(first)}).run
    assert (run.model.dropout, run.model.width) == (0.4, 32)
    (tmp_path / "b.toml").write_text(f'base = "a.toml"\nstart = "{first}"\n')
    assert regard.resolve(str(tmp_path / "b.toml")).run.model.width == 32


def test_weights_come_from_the_start_and_the_head_is_new(first, tmp_path):
    predictor = train_from("classify", first, tmp_path / "run", train__lr=1e-12)
    theirs = regard.load(first)
    ours, old = predictor.model.state_dict(), theirs.model.state_dict()
    for name in ours:
        if name.startswith("classes"):
            assert name not in old
        else:
            assert torch.allclose(ours[name], old[name], atol=1e-6), name
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["processors"] == {
        "text": {"kind": "text", "file": "tokenizer.json"},
        "label": {"kind": "labels", "file": "labels.json"},
    }
    assert about["config"]["start"] == str(first) == about["start"]["folder"] and len(about["start"]["weights"]) == 32
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    notes = [event["text"] for event in events if event["event"] == "note"]
    shared = len(ours) - 2
    assert f"start: {shared} tensors from {first}; new tensors: classes.weight, classes.bias" in notes
    assert any(note.startswith("start: unused tensors: words.into.weight, ") and "more" in note for note in notes)
    assert not predictor.run.model.next_sentence and predictor.run.model.head == "class"


def test_a_classifier_starts_from_one_with_other_labels(first, tmp_path):
    train_from("classify", first, tmp_path / "one")
    lines = [f"{text}\tmood {len(text) % 3}\n" for text, _ in reads.labeled_examples(60, 4)]
    (tmp_path / "three.tsv").write_text("".join(lines))
    predictor = train_from(
        "classify", tmp_path / "one", tmp_path / "two", data__train=str(tmp_path / "three.tsv"), data__valid=""
    )
    assert len(predictor.labels) == 3 and predictor.model.classes.weight.shape == (3, 32)


def test_a_run_with_a_start_resumes_to_the_same_bytes(first, tmp_path):
    train_from("classify", first, tmp_path / "whole")
    train_from("classify", first, tmp_path / "parts", train__steps=2)
    train_from("classify", first, tmp_path / "parts", resume=True)
    name = "checkpoints/step-4/model.safetensors"
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    for folder in ("never", "other"):
        train_from("classify", first, tmp_path / folder, train__steps=2)
    shutil.rmtree(tmp_path / "never/checkpoints")
    train_from("classify", first, tmp_path / "never", resume=True)  # from step 0, with the weights of the start
    assert (tmp_path / "never" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(UserError, match="start was .* and is now ''; a resumed run cannot change it"):
        train_from("classify", first, tmp_path / "other", resume=True, start="")
    about = json.loads((tmp_path / "other/run.json").read_text())
    about["start"]["weights"] = "0" * 32
    (tmp_path / "other/run.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="start has other weights than when"):
        train_from("classify", first, tmp_path / "other", resume=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model.width": 64}, "does not fit this model: embed.weight is (300, 64) in the model and (300, 32) in the start; leave"),
        ({"model.layers": 2}, "does not fit this model: encoder.layers.1.attention.query.weight is (32, 32) in the model and missing"),
        ({"model.feed.kind": "conv"}, "does not fit this model: encoder.layers.0.feed.into.weight is (64, 96) in the model"),
        ({"model.size": "mini"}, "model.size is set beside start="),
        ({"tokenizer.vocab": 400}, "brings its own tokenizer with tokenizer.vocab=300; leave out tokenizer.vocab or start"),
        ({"start": "nowhere"}, "start=nowhere does not exist; give a run folder or a Hugging Face folder"),
        ({"start": 3}, "start is 3; expected"),
    ],
)  # fmt: skip
def test_settings_that_conflict_with_the_start(first, tmp_path, settings, words):
    with pytest.raises(UserError) as error:
        train_from(
            "classify", first, tmp_path / "run", **{key.replace(".", "__"): value for key, value in settings.items()}
        )
    assert words in str(error.value) and not (tmp_path / "run").exists()


def test_a_start_with_other_layers_or_without_a_run(first, tmp_path):
    with pytest.raises(UserError, match="does not exist|has neither"):
        regard.resolve("classify", {"start": str(first.parent)})
    two = reads.stored_run("masked", model__layers=2, train__steps=2)
    with pytest.raises(UserError, match=r"encoder\.layers\.1\S* is missing in the model and \(32, 32\) in the start"):
        train_from("classify", two, tmp_path / "run", model__layers=1)


def test_a_start_of_another_family(tmp_path, first):
    small = {key: value for key, value in reads.TINY.items() if key.startswith(("train.", "model.", "device"))}
    own = {"data.examples": 50, "tokenizer.vocab": 300, "train.steps": 1}
    regard.train("dates", {**small, **own}, out=tmp_path / "dates")
    with pytest.raises(UserError, match="holds a model of family transformer but model.family is bert"):
        train_from("classify", tmp_path / "dates", tmp_path / "run")


def test_masked_needs_a_tokenizer_with_a_mask_token(tmp_path, first):
    run = tmp_path / "bare"
    shutil.copytree(first, run)
    whole = json.loads((run / "tokenizer.json").read_text())
    for token in whole["added_tokens"]:
        token["content"] = token["content"].replace("<mask>", "<musk>")
    (run / "tokenizer.json").write_text(json.dumps(whole))
    for name in ("train", "valid"):
        shutil.copy(first.parent / f"{name}.txt", tmp_path)
    with pytest.raises(UserError, match="the tokenizer has no <mask>, which task masked needs"):
        train_from("masked", run, tmp_path / "run")


# --- Hugging Face folders --------------------------------------------------------------------------------------------


def test_a_run_starts_from_a_hugging_face_folder(tmp_path, first):
    path = folders.folder(tmp_path / "hf", "BertForMaskedLM")
    predictor = train_from(
        "tag",
        path,
        tmp_path / "run",
        train__lr=1e-12,
        **{f"data__{n}": str(write_tags(tmp_path, n)) for n in ("train", "valid")},
    )
    theirs = hf.BertModel.from_pretrained(path).eval()
    ids = [predictor.tokenizer.start, *predictor.tokenizer.encode(["the cat sat"])[0], predictor.tokenizer.end]
    with torch.no_grad():
        states = predictor.model.encode(inputs(torch.tensor([ids]))).states
        expected = theirs(torch.tensor([ids])).last_hidden_state
    assert (states - expected).abs().max() < 1e-4 and predictor.run.model.head == "tag"
    again = regard.load(tmp_path / "run")
    assert again.tokenizer.encode(["the cat"]) == predictor.tokenizer.encode(["the cat"])
    with pytest.raises(UserError, match="tokenizer.kind is 'bpe' but start=.* brings its own tokenizer; leave"):
        regard.resolve("tag", {"start": str(path), "tokenizer.kind": "bpe"})


FOLDERS = {
    "bert": lambda path: folders.folder(path, "BertForPreTraining"),
    "sentences": lambda path: folders.sentence_folder(path, nested=True, pooling_mode_mean_tokens=True),
    "longformer": lambda path: long.longformer(path, "LongformerForSequenceClassification", num_labels=3),
    "bigbird": lambda path: long.bigbird(path),
    "gpt2": lambda path: causal.gpt2(path)[0],
    "qwen2": lambda path: causal.llama(path, "qwen2", num_key_value_heads=2)[0],
    "marian": lambda path: marian.folder(path),
}
SHOWN_BY_TENSORS = ("model.pooled", "model.next_sentence")


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_settings_of_a_folder_are_read_without_its_weights(kind, tmp_path):
    path = FOLDERS[kind](tmp_path / "folder")
    expected = dict(flatten({"model": regard.load(path).run.model.model_dump(mode="json")}))
    expected["data.ngrams.order"] = 0  # a start without n-grams gives a classifier without them
    for file in path.rglob("*.safetensors"):
        file.unlink()
    found = read_settings(str(path))
    for key, value in expected.items():
        assert found[key] == value or key in SHOWN_BY_TENSORS, key
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("tune", ["none", "lora"])
def test_training_reads_the_weights_of_its_start_once(tune, tmp_path, monkeypatch):
    path = folders.folder(tmp_path / "hf", "BertForMaskedLM")
    read = []
    monkeypatch.setattr(huggingface, "load_file", lambda file: read.append(file) or load_file(file))
    data = reads.write_texts(tmp_path / "train.tsv", reads.labeled_examples(30, 1))
    settings = {**FINE, "train.steps": 1, "data.train": str(data), "start": str(path), "tune.kind": tune}
    regard.resolve("classify", settings)
    assert not read
    predictor = regard.train("classify", settings, out=tmp_path / "run")
    assert read == [path / "model.safetensors"] and predictor.predict("the cat") in ("glad", "sad")
    if tune == "lora":  # the predictor shares the weights that were read for the training
        assert regard.load(tmp_path / "run").score("the cat", "sad") == pytest.approx(predictor.score("the cat", "sad"))


def test_a_start_without_weights(tmp_path, first):
    path = folders.folder(tmp_path / "hf", "BertForMaskedLM")
    (path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="hf has no model.safetensors"):
        train_from("classify", path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_that_only_tensors_show(tmp_path):
    """The head of this T5 is its own, although config.json ties it."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"text {i} of a b\tc {i}\n" for i in range(40)))
    fine = {**FINE, "data.train": str(pairs)}
    tiny = {**fine, "train.steps": 1, "tokenizer.vocab": 300, "model.size": "tiny", "model.tied": True}
    regard.train("text2text", tiny, out=tmp_path / "one")
    regard.convert(tmp_path / "one", to="huggingface", out=tmp_path / "t5")
    tensors = load_file(tmp_path / "t5/model.safetensors")
    own = {"lm_head.weight": 0.5 * tensors["shared.weight"].flip(0)}
    save_file(tensors | own, tmp_path / "t5/model.safetensors", {"format": "pt"})
    settings = {**fine, "start": str(tmp_path / "t5"), "train.lr": 1e-12}
    assert regard.resolve("text2text", settings).run.model.tied
    predictor = regard.train("text2text", settings, out=tmp_path / "two")
    theirs = regard.load(tmp_path / "t5")
    assert not predictor.run.model.tied and not theirs.run.model.tied
    assert predictor.score("a b", "c") == pytest.approx(theirs.score("a b", "c"), abs=1e-4)
    again = regard.train("text2text", {**settings, "train.steps": 6}, out=tmp_path / "two", resume=True)
    assert not again.run.model.tied


def test_a_classifier_keeps_the_label_ids_of_its_start(tmp_path):
    names = {"id2label": {0: "sad", 1: "glad"}, "label2id": {"sad": 0, "glad": 1}}
    path = folders.folder(tmp_path / "hf", "BertForSequenceClassification", **names)
    data = reads.write_texts(tmp_path / "train.tsv", reads.labeled_examples(30, 1))
    settings = {**FINE, "data.train": str(data), "start": str(path), "train.lr": 1e-12}
    predictor, theirs = regard.train("classify", settings, out=tmp_path / "run"), regard.load(path)
    assert predictor.labels.names == ["sad", "glad"] and all(predictor.labels.counts.values())
    assert torch.allclose(predictor.model.classes.weight, theirs.model.classes.weight, atol=1e-6)
    again = regard.train("classify", {**settings, "train.steps": 6}, out=tmp_path / "run", resume=True)
    assert again.labels.names == ["sad", "glad"]


def write_tags(folder: Path, name: str) -> Path:
    return reads.write_columns(folder / f"{name}.tags", reads.tagged_examples(30, 1))


def test_a_folder_classifies_and_tags_like_transformers(tmp_path):
    texts = ["the cat sat", "a", "so it goes on and on"]
    path = folders.folder(tmp_path / "class", "BertForSequenceClassification", num_labels=3)
    text, theirs = hf.AutoTokenizer.from_pretrained(path), hf.BertForSequenceClassification.from_pretrained(path).eval()
    predictor = regard.load(path)
    with torch.no_grad():
        logits = [theirs(**text(each, return_tensors="pt")).logits[0] for each in texts]
    for record, expected in zip(predictor.predict(texts, details=True), logits, strict=True):
        assert record["label"] == f"LABEL_{int(expected.argmax())}"
        assert record["probability"] == pytest.approx(float(expected.softmax(-1).max()), abs=1e-5)
    lines = "".join(f"{each}\tLABEL_{i}\n" for i, each in enumerate(texts))
    (tmp_path / "a.tsv").write_text(lines)
    metrics = predictor.evaluate(((str(tmp_path / "a.tsv"),),))
    assert metrics["examples"] == 3 and "majority" not in metrics  # its training data are unknown
    path = folders.folder(tmp_path / "tag", "BertForTokenClassification", num_labels=4)
    text, theirs = hf.AutoTokenizer.from_pretrained(path), hf.BertForTokenClassification.from_pretrained(path).eval()
    tagger = regard.load(path)
    words = ["the", "cat", "unbelievable", "sat"]
    batch = text(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        best = theirs(**batch).logits[0].argmax(-1)
    firsts = [batch.word_ids().index(word) for word in range(4)]
    assert tagger.predict([words])[0] == [f"LABEL_{int(best[place])}" for place in firsts]


def test_a_folder_predicts_masked_words_and_embeddings_like_transformers(tmp_path):
    path = folders.folder(tmp_path / "words", "BertForMaskedLM")
    text, theirs = hf.AutoTokenizer.from_pretrained(path), hf.BertForMaskedLM.from_pretrained(path).eval()
    batch = text("the [MASK] sat", return_tensors="pt")
    with torch.no_grad():
        best = theirs(**batch).logits[0, batch.input_ids[0].tolist().index(text.mask_token_id)].softmax(-1)
    record = regard.load(path).predict("the [MASK] sat", details=True)
    assert record["masks"][0][0]["probability"] == pytest.approx(float(best.max()), abs=1e-5)
    bare = regard.load(folders.folder(tmp_path / "bare", "BertModel"))
    vector = bare.embed("the cat")
    batch, theirs = text("the cat", return_tensors="pt"), hf.BertModel.from_pretrained(tmp_path / "bare").eval()
    with torch.no_grad():
        mean = theirs(**batch).last_hidden_state[0].mean(0)
    assert vector.shape == (36,) and (vector - mean / mean.norm()).abs().max() < 1e-5  # of length 1, as for a run
    assert (bare.embed("the cat", normalize=False) - mean).abs().max() < 1e-5
    for ask in (lambda: bare.predict("a <mask>"), lambda: bare.evaluate()):
        with pytest.raises(UserError, match="this model has no head for masked words; it gives embeddings"):
            ask()


def test_embeddings_of_a_sentence_transformers_folder(tmp_path):
    path = folders.sentence_folder(tmp_path / "x", normalize=True, pooling_mode_mean_tokens=True)
    texts = [*folders.AWKWARD, "the cat sat"]
    predictor = regard.load(path)
    with pytest.warns(UserWarning, match="2 of 15 texts have more than 10 tokens"):
        vectors = predictor.embed(texts)
    assert (vectors - torch.tensor(folders.sentence_vectors(path, texts, 12, "mean", True))).abs().max() < 1e-5
    assert predictor.run.data.max_tokens == 12 and predictor.run.decode.normalize
    with pytest.warns(UserWarning, match="1 of 1 texts have more than 10 tokens and were cut"):
        long = predictor.embed(["the cat sat " * 9])
    assert (
        long - torch.tensor(folders.sentence_vectors(path, ["the cat sat " * 9], 12, "mean", True))
    ).abs().max() < 1e-5


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_embeddings_in_lower_precision_stay_close(first, precision):
    texts = [text for text, _ in reads.labeled_examples(30, 8)]
    exact, rough = regard.load(first).embed(texts), regard.load(first, {"precision": precision}).embed(texts)
    assert ((exact * rough).sum(1) > 0.99).all() and not exact.equal(rough)


def test_an_exported_run_is_loaded_again(first, tmp_path):
    predictor = train_from("classify", first, tmp_path / "run")
    regard.convert(tmp_path / "run", out=tmp_path / "hf", to="huggingface")
    again = regard.load(tmp_path / "hf")
    texts = [text for text, _ in reads.labeled_examples(20, 3)]
    assert again.predict(texts) == predictor.predict(texts) and again.labels.names == predictor.labels.names
    regard.convert(tmp_path / "run", out=tmp_path / "mean", average=2)
    assert regard.load(tmp_path / "mean").predict(texts[0]) in ("glad", "sad")


def test_the_digest_depends_on_the_weights(first):
    one, other = (Pretrained(str(first), regard.load) for _ in range(2))
    assert one.digest() == other.digest()
    other.weights["norm.bias"] += 1
    assert one.digest() != other.digest()


# --- vocabularies of other tools are kept -------------------------------------------------------------------------------

TEXTS = ["the old cat sees a red house", "a bird </s> <s> <|endoftext|> flies", "Straße 東京 🙂 \t x"]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_language_model_starts_from_a_folder(kind, tmp_path):
    path, theirs = getattr(causal, kind)(tmp_path / "folder")
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS * 9))
    words = {"data.train": str(tmp_path / "a.txt"), "data.document": "blank", "data.max_tokens": 32, "start": str(path)}
    settings = {**FINE, **words, "data.cache": str(tmp_path / "cache"), "train.lr": 1e-12, "decode.kind": "greedy"}
    folder = regard.load(
        path, {key: value for key, value in settings.items() if key.startswith("data.") and key != "data.train"}
    )
    trained = regard.train("language", settings, out=tmp_path / "run")
    again = regard.load(tmp_path / "run")
    for text in (trained.tokenizer, again.tokenizer):
        assert text.encode(TEXTS) == folder.tokenizer.encode(TEXTS) and text.roles == folder.tokenizer.roles
    assert again.score(TEXTS) == pytest.approx(folder.score(TEXTS), abs=1e-4)
    losses = [each.evaluate(((str(tmp_path / "a.txt"),),))["loss"] for each in (again, folder)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    rows = torch.tensor([again.tokenizer.encode(TEXTS[:1])[0]])
    assert torch.allclose(again.model(inputs(rows)), theirs(rows).logits, atol=1e-4)
    regard.convert(tmp_path / "run", to="huggingface", out=tmp_path / "out")
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer(TEXTS, add_special_tokens=False)["input_ids"] == folder.tokenizer.encode(TEXTS)
    other = regard.load(tmp_path / "out")
    assert other.predict(TEXTS, kind="greedy", max_tokens=9) == again.predict(TEXTS, max_tokens=9)


def test_lora_over_a_gpt2_folder(tmp_path):
    path, _ = causal.gpt2(tmp_path / "folder")
    (tmp_path / "a.txt").write_text("\n".join(TEXTS * 20))
    words = {"data.train": str(tmp_path / "a.txt"), "data.max_tokens": 32, "data.cache": str(tmp_path / "cache")}
    tuned = {"start": str(path), "tune.kind": "lora", "train.lr": 0.01}
    predictor = regard.train("language", {**FINE, **words, **tuned}, out=tmp_path / "run")
    assert 0 < sum(each.numel() for each in predictor.model.parameters() if each.requires_grad) < 5000
    again = regard.load(path, tune=tmp_path / "run")
    assert again.score(TEXTS) == pytest.approx(predictor.score(TEXTS)) != pytest.approx(regard.load(path).score(TEXTS))


@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
def test_a_translator_starts_from_a_marian_folder(separate, tmp_path):
    path = marian.folder(tmp_path / "folder", separate)
    some = marian.sentences(30)
    for name, texts in {"low": some, "up": [text.upper() for text in some]}.items():
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    settings = {"data.train": f"{tmp_path}/low,{tmp_path}/up", "start": str(path), "train.lr": 1e-12, "decode.batch": 8}
    trained = regard.train("translate", {**FINE, **settings, "decode.beam": 2}, out=tmp_path / "run")
    folder, again = regard.load(path), regard.load(tmp_path / "run")
    assert {type(each.tokenizer).__name__ for each in again.processors.values()} == {"MarianTokenizer"}
    expected = folder.score(some, [text.upper() for text in some])
    assert again.score(some, [text.upper() for text in some]) == pytest.approx(expected, abs=1e-3)
    assert again.predict(some[:5]) == trained.predict(some[:5]) == folder.predict(some[:5], kind="beam", beam=2)
    with pytest.raises(UserError, match="it began with a Marian folder, whose sentencepiece .*; use --to huggingface"):
        regard.convert(tmp_path / "run", to="ctranslate2", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
def test_a_run_that_started_from_a_marian_folder_becomes_one_again(separate, tmp_path):
    path = marian.folder(tmp_path / "folder", separate)
    some = marian.sentences(30)
    for name, texts in {"low": some, "up": [text.upper() for text in some]}.items():
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    settings = {"data.train": f"{tmp_path}/low,{tmp_path}/up", "start": str(path), "train.lr": 1e-3, "decode.beam": 2}
    ours, out = regard.train("translate", {**FINE, **settings}, out=tmp_path / "run"), tmp_path / "out"
    report = regard.convert(tmp_path / "run", to="huggingface", out=out)
    assert "32 of 32 texts equal" in report["checked"] and "transformers" in report["checked"]
    for name in ("source.spm", "target.spm", "vocab.json", *(["target_vocab.json"] if separate else [])):
        assert (out / name).is_file()
    assert (out / "source.spm").read_bytes() == (path / "source.spm").read_bytes()
    for name in ("vocab.json", "target_vocab.json")[: 1 + separate]:
        assert json.loads((out / name).read_text()) == json.loads((path / name).read_text())
    texts = [*marian.sentences(9, seed=5), ">>up<< the cat sees the dog.", "unseen wörds, and 日本!", "  the   cat  "]
    again = regard.load(out)
    assert again.predict(texts) == ours.predict(texts) and again.run.decode.strategy.size == 2
    theirs, tokenizer = hf.MarianMTModel.from_pretrained(out).eval(), hf.AutoTokenizer.from_pretrained(out)
    assert type(tokenizer).__name__ == "MarianTokenizer"
    assert tokenizer(texts).input_ids == hf.MarianTokenizer.from_pretrained(path)(texts).input_ids
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    found = tokenizer.batch_decode(theirs.generate(**batch, max_new_tokens=60), skip_special_tokens=True)
    assert found == ours.predict(texts, max_tokens=60, early_stopping="heuristic") and len(set(found)) > 3
    assert 'subfolder="target"' not in (out / "README.md").read_text()


# --- sizes that a task fills in --------------------------------------------------------------------------------------


def test_settings_that_a_task_fills_in_are_validated():
    run = regard.resolve("classify").run
    assert with_model_settings(run, vocab=300, labels=3).model.labels == 3
    for settings, words in {
        ("head", "tail"): 'model.head is "tail"; expected one of none, words, class, tag',
        ("labels", "x"): 'model.labels is "x"; expected a whole number',
        ("smell", 1): "model.family=bert has no model.smell, which task classify needs; choose another family",
    }.items():
        with pytest.raises(UserError, match=words):
            with_model_settings(run, **dict([settings]))
