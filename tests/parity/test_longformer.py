"""Longformer equals transformers' Longformer: outputs at any length, with padding and global positions, and tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import long as small
from helpers import reads
from helpers.inputs import inputs
from helpers.parity import change_config
from prototypes.checks import close
from safetensors.torch import load_file, save_file

import regard
from regard.config.run import resolve_run
from regard.errors import UserError
from regard.families import longformer
from regard.formats.huggingface.longformer import FORMAT
from regard.formats.huggingface.vocabularies import load_byte_bpe
from regard.processors.text import tokenizers


def read_folder(path: Path) -> Any:
    return FORMAT.read(path, json.loads((path / "config.json").read_text()))


def test_other_shapes(tmp_path: Path) -> None:
    path = small.longformer(tmp_path / "x", attention_window=6, hidden_act="relu", type_vocab_size=2, pad_token_id=4)
    folder = read_folder(path)
    theirs = hf.LongformerModel.from_pretrained(path).eval()
    assert folder.config.attention.radius == 3 and folder.max_tokens == 135
    ids = torch.randint(5, small.VOCAB, (2, 97))
    with torch.no_grad():
        close(folder.model.encode(inputs(ids)).states, theirs(ids).last_hidden_state)


def test_predictors_of_imported_folders(tmp_path: Path) -> None:
    path = small.longformer(tmp_path / "x", "LongformerForSequenceClassification", num_labels=3)
    predictor = regard.load(path, device="cpu")
    text = " ".join(small.LINES * 2)
    theirs, words = hf.LongformerForSequenceClassification.from_pretrained(path).eval(), hf.AutoTokenizer
    batch = words.from_pretrained(path)([text, "the cat"], return_tensors="pt", padding=True, max_length=138,
                                        truncation=True)  # fmt: skip
    with torch.no_grad(), pytest.warns(UserWarning, match="were cut there"):
        wanted = theirs(**batch).logits.argmax(-1).tolist()
        assert predictor.predict([text, "the cat"]) == [f"LABEL_{i}" for i in wanted]
    masked = regard.load(small.longformer(tmp_path / "m", "LongformerForMaskedLM"), device="cpu")
    assert "<mask>" not in masked.predict("the <mask> sat")
    tags = regard.load(small.longformer(tmp_path / "t", "LongformerForTokenClassification", num_labels=4), device="cpu")
    assert tags.predict("the cat sat").count("/LABEL_") == 3
    view = tags.look("the cat sat on the mat")
    assert view.weights().shape == (len(view.tokens),) * 2
    view.save(tmp_path / "look.png")


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("Model", {"attention_window": [8, 4]}, "model.attention.radius lists 2 numbers for 3 layers; give 3"),
        ("Model", {"attention_window": 7}, "attention_window is 7; expected even numbers, twice the radius"),
        ("Model", {"architectures": ["LongformerForQuestionAnswering"]}, "architectures has 'LongformerForQ"),
        ("Model", {"max_position_embeddings": 100}, "has shape"),
        ("ForMaskedLM", {"hidden_act": "relu"}, "hidden_act is 'relu'; expected 'gelu', which the head always has"),
        ("ForTokenClassification", {"problem_type": "regression"}, "problem_type is 'regression'"),
        ("Model", {"vocab_size": 12}, "has shape"),
    ],
)
def test_unsupported_configs_are_refused(tmp_path: Path, kind: str, changes: dict[str, Any], words: str) -> None:
    path = small.longformer(tmp_path / "x", f"Longformer{kind}")
    change_config(path, **changes)
    with pytest.raises(UserError, match=words):
        read_folder(path)


def test_extra_heads_are_ignored_and_foreign_tokenizers_refused(tmp_path: Path) -> None:
    """config.json decides the class, whatever heads the file holds."""
    path = small.longformer(tmp_path / "x", "LongformerForMaskedLM")
    change_config(path, architectures=["LongformerModel"])
    folder = read_folder(path)
    assert folder.config.head == "none" and not folder.config.pooled
    tensors = load_file(path / "model.safetensors")
    bare = {name: tensor[:200] if "word_embeddings" in name else tensor for name, tensor in tensors.items()}
    bare = {name: tensor for name, tensor in bare.items() if "lm_head" not in name}
    save_file(bare, path / "model.safetensors")
    change_config(path, vocab_size=200)
    with pytest.raises(UserError, match="has 300 tokens and its model 200; they belong to two models"):
        read_folder(path)


TOKENIZER_CONFIGS: list[dict[str, Any] | None] = [
    None,
    {"tokenizer_class": "LongformerTokenizer"},
    {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True},
]


@pytest.mark.parametrize("config", TOKENIZER_CONFIGS, ids=map(str, range(len(TOKENIZER_CONFIGS))))
def test_tokens_equal_transformers(tmp_path: Path, config: dict[str, Any] | None) -> None:
    path = tmp_path / "listed"
    small.write_byte_bpe(path, config)
    (path / "config.json").write_text(json.dumps({"model_type": "longformer"}))
    theirs = hf.AutoTokenizer.from_pretrained(path)
    theirs.save_pretrained(tmp_path / "stored")
    assert (tmp_path / "stored" / "tokenizer.json").is_file() and not (tmp_path / "stored" / "merges.txt").exists()
    wanted = theirs(small.AWKWARD, add_special_tokens=False, split_special_tokens=True).input_ids
    for folder in (path, tmp_path / "stored"):
        ours = load_byte_bpe(folder)
        assert ours.encode(small.AWKWARD) == wanted
        control = (ours.pad, ours.unk, ours.start, ours.end, ours.mask)
        assert control == (1, 3, 0, 2, theirs.mask_token_id)
        ours.save(tmp_path / "ours.json")  # as in a run folder
        again = tokenizers.load_tokenizer(tmp_path / "ours.json")
        assert again.encode(small.AWKWARD) == wanted and again.mask == ours.mask
        assert ours.decode([[0, *wanted[0], 2, 1]]) == ["Hello the cat sat."] or config == TOKENIZER_CONFIGS[2]


def test_unsupported_tokenizers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match=r"has neither tokenizer.json nor vocab.json and merges.txt"):
        load_byte_bpe(tmp_path / "x")
    small.write_byte_bpe(tmp_path / "x", {"tokenizer_class": "CLIPTokenizer"})
    with pytest.raises(UserError, match="has a CLIPTokenizer"):
        load_byte_bpe(tmp_path / "x")
    small.write_byte_bpe(tmp_path / "x", {})
    (tmp_path / "x" / "merges.txt").write_text("#version: 0.2\nnot a merge\n")
    with pytest.raises(UserError, match="are no byte-level vocabulary"):
        load_byte_bpe(tmp_path / "x")


def test_model_settings(tmp_path: Path) -> None:
    """Setting only the radius keeps the global token; wrong values are refused by name."""
    base = {"model.family": "longformer", "model.size": "tiny", "train.steps": 1}
    run = resolve_run("classify", base | {"model.attention.radius": "5"}).run
    assert (run.model.attention.radius, run.model.attention.globals) == (5, 1)
    assert resolve_run("classify", base).run.model.attention.radius == 32
    run = resolve_run("classify", base | {"model.attention.radius": "[5, 6]", "model.attention.dilation": "[1, 2]"}).run
    assert run.model.attention.radius == (5, 6) and run.model.attention.dilation == (1, 2)
    for key, value, words in (
        ("model.positions.kind", "buckets", 'model.positions.kind is "buckets"; expected one of learned'),
        ("model.attention.radius", "[5]", "model.attention.radius lists 1 numbers for 2 layers; give 2"),
        ("model.attention.radius", "0", "model.attention.radius is 0; expected at least 1"),
        ("model.attention.kind", "dense", "model.attention.kind is"),
    ):
        with pytest.raises(UserError, match=words):
            resolve_run("classify", base | {key: value})
    assert longformer.Config(size="tiny", family="longformer").attention.globals == 1


@pytest.mark.parametrize("family", ["longformer", "bigbird"])
@pytest.mark.parametrize("task", ["classify", "tag", "masked"])
def test_train_save_and_load(task: str, family: str) -> None:
    """A run trains; loaded again, it predicts the same."""
    slot = {"model__attention__radius": 2} if family == "longformer" else {"model__attention__size": 2}
    own = {"model__family": family, "model__positions__tokens": 64, "train__steps": 40, **slot}
    run = reads.stored_run(task, **own)
    predictor = regard.load(run)
    metrics = predictor.evaluate()
    assert metrics["loss"] < 4 if task == "masked" else metrics["accuracy"] > 0.7
    assert predictor.predict("the cat so happy") == regard.load(run).predict("the cat so happy")
    assert predictor.run.model.family == family


# --- export --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prenorm": True}, "the norm comes last"),
        ({"next_sentence": True}, "no such head"),
        ({"positions": "rotary"}, "model.positions.kind=rotary"),
        ({"attention": {"dilation": [1, 2]}}, "model.attention.dilation"),
        ({"attention": {"globals": 2}}, "model.attention.globals=2"),
        ({"attention": {"globals": 0}, "head": "class", "labels": 2}, "model.attention.globals=0"),
        ({"feed": "gated"}, "model.feed.kind=gated"),
        ({"feed": {"act": "relu"}, "head": "words"}, "model.feed.act=relu"),
        ({"norm": "rms"}, "model.norm.kind=rms"),
    ],
)
def test_unsupported_settings_are_named(changes: dict[str, Any], words: str) -> None:
    values = {
        key: {"kind": value} if isinstance(value, str) and key != "head" else value for key, value in changes.items()
    }
    if "feed" in values:
        values["feed"] = {"kind": "plain"} | values["feed"]
    (refusal,) = FORMAT.unsupported(longformer.Config.model_validate(longformer.SIZES["tiny"] | {"vocab": 9} | values))
    assert words in refusal


# --- classes from a start without them -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["LongformerForMaskedLM", "LongformerModel"])
def test_a_classifier_from_a_start_without_classes_has_a_global_token(tmp_path: Path, kind: str) -> None:
    """As in LongformerForSequenceClassification: the same weights give the same logits there."""
    start = small.longformer(tmp_path / "start", kind)
    base = {"model.family": "longformer", "train.steps": 1, "start": str(start)}
    resolved = regard.resolve("classify", base)
    assert resolved.run.model.attention.globals == 1
    assert resolved.origin["model.attention.globals"] == f"start {start} for classify"
    assert regard.resolve("classify", base | {"model.attention.globals": 0}).run.model.attention.globals == 0
    for task in ("tag", "masked"):  # as in transformers
        assert regard.resolve(task, base).run.model.attention.globals == 0
    data, run = reads.write_texts(tmp_path / "train.txt", reads.labeled_examples(40, 0)), tmp_path / "run"
    regard.train("classify", base | {"data.train": str(data), "train.tensorboard": False, "device": "cpu"}, out=run)
    regard.convert(run, to="huggingface", out=tmp_path / "hf")
    theirs = hf.LongformerForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    ours, text = regard.load(run, device="cpu"), " ".join(["the cat so happy"] * 5)
    ids = [ours.tokenizer.start, *ours.tokenizer.encode([text])[0], ours.tokenizer.end]
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits.log_softmax(-1)[0].tolist()
    assert len(ids) > 40  # several windows
    assert ours.score([text] * 2, ours.labels.names) == pytest.approx(wanted, abs=1e-5)


def test_starts_that_need_no_other_global_token() -> None:
    """One with classes decides itself; one without projections for global tokens cannot have any; old ones name none."""
    adapt = longformer.SPEC.start_settings
    start = {"model.head": "words", "model.attention.named": True, "model.attention.globals": 0}
    assert adapt("class", start) == {"model.attention.globals": 1}
    for head, changes in (
        ("tag", {}), ("class", {"model.head": "class"}), ("class", {"model.attention.named": False}),
        ("class", {"model.attention.globals": 2}),
    ):  # fmt: skip
        assert adapt(head, start | changes) == {}
    assert adapt("class", {"model.head": "words"}) == {}


def test_the_class_head_has_its_global_token_whatever_a_folder_says(tmp_path: Path) -> None:
    path = small.longformer(tmp_path / "x", "LongformerForSequenceClassification", num_labels=2)
    for entry in ({"globals": 0}, 3, {}):
        change_config(path, regard=entry)
        assert regard.load(path).run.model.attention.globals == 1
