"""BERT equals transformers' BERT in outputs and tokens, imported and exported."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import bert as small
from helpers import reads
from helpers.parity import change_config, same_bert
from prototypes.checks import loud
from safetensors.torch import load_file, save_file

import regard
from regard.cli import app as cli
from regard.config.data.texts import TokenizerConfig
from regard.errors import UserError
from regard.families import bert
from regard.formats.huggingface import encoders
from regard.formats.huggingface.bert import FORMAT
from regard.formats.huggingface.encoders import EncoderFolder
from regard.formats.huggingface.format import HuggingFaceFormat
from regard.formats.huggingface.vocabularies import load_wordpiece
from regard.parts import slots
from regard.processors.text import tokenizers


def read_folder(path: Path) -> EncoderFolder:
    return FORMAT.read(path, json.loads((path / "config.json").read_text()))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "config.json",
            {"id2label": {"0": "a", "1": "a"}},
            r"config.json: id2label has one name for two labels \(a, a\)",
        ),
        ("config.json", {"model_type": ["bert"]}, r"holds a model of type \['bert'\]"),
        ("model.safetensors.index.json", {}, "index.json has no weight_map; fetch the folder again"),
        ("model.safetensors.index.json", {"weight_map": [1]}, "index.json has no weight_map"),
        ("tokenizer.json", {"model": 3, "added_tokens": []}, "tokenizer.json is no tokenizer"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, name: str, change: dict[str, Any], words: str) -> None:
    path = small.folder(tmp_path / "x", "BertForSequenceClassification", num_labels=2)
    (path / "vocab.txt").unlink(missing_ok=True)
    file = path / name
    if "index" in name:
        (path / "model.safetensors").unlink()  # which wins over an index
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | change))
    with pytest.raises(UserError, match=words):
        regard.load(path)


def test_eval_of_an_imported_folder_needs_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was not trained on the embedded data, so a score on them means nothing."""
    path = small.folder(tmp_path / "x", "BertForSequenceClassification", num_labels=2)
    for more in ([], [str(path)]):
        assert cli.main(["eval", str(path), *more]) == 2
        assert "x is not a run folder and names no test data; give some with --data" in capsys.readouterr().err
    assert cli.main(["eval", str(path), "--data", ""]) == 2 and "--data names no file" in capsys.readouterr().err
    (tmp_path / "a.tsv").write_text("the cat\tLABEL_0\n")
    assert cli.main(["eval", str(path), "--data", str(tmp_path / "a.tsv")]) == 0


def test_old_names_and_extra_heads_are_read(tmp_path: Path) -> None:
    """Google's files: norms named gamma and beta, and all pre-training heads whatever `architectures` says."""
    path = small.folder(tmp_path / "x", "BertForPreTraining")
    tensors = load_file(path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert any("gamma" in name for name in old)
    old["bert.embeddings.position_ids"] = torch.arange(41)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, path / "model.safetensors", {"format": "pt"})
    whole = hf.BertForPreTraining.from_pretrained(path).eval()
    same_bert(read_folder(path).model, whole)
    change_config(path, architectures=["BertForMaskedLM"])  # as in bert-base-uncased
    folder = read_folder(path)
    assert folder.config.next_sentence and folder.config.pooled
    same_bert(folder.model, whole)
    change_config(path, architectures=["BertModel"])
    same_bert(read_folder(path).model, hf.BertModel.from_pretrained(path).eval())
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    save_file(bare, path / "model.safetensors", {"format": "pt"})
    change_config(path, architectures=None)
    same_bert(read_folder(path).model, hf.BertModel.from_pretrained(path).eval())
    bare = {name: tensor for name, tensor in bare.items() if "pooler" not in name}
    save_file(bare, path / "model.safetensors", {"format": "pt"})
    assert not read_folder(path).config.pooled
    same_bert(read_folder(path).model, hf.BertModel.from_pretrained(path, add_pooling_layer=False).eval())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_decoder": True}, "is_decoder is true; regard's BERT is an encoder"),
        ({"add_cross_attention": True}, "add_cross_attention is true; regard's BERT is an encoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; expected 'absolute'"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; expected one of gelu"),
        ({"architectures": ["BertForQuestionAnswering"]}, "architectures has 'BertForQuestionAnswering'; expected"),
        ({"problem_type": "regression"}, "problem_type is 'regression' with 2 labels; regard reads regressors of one"),
        ({"num_attention_heads": 5}, "width 36 does not divide into 5 heads"),
        ({"hidden_size": 39}, "has shape"),
        ({"architectures": ["BertForTokenClassification"]}, "the checkpoint has no 'classifier.weight'"),
        ({"num_hidden_layers": 2}, "tensors of the checkpoint have no place in the model"),
        ({"vocab_size": 20}, "has shape"),
    ],
)  # fmt: skip
def test_unsupported_configs_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = small.folder(tmp_path / "x")
    change_config(path, **changes)
    with pytest.raises(UserError, match=words):
        read_folder(path)


# --- its tokenizer -----------------------------------------------------------------------------------------------------

TOKENIZER_CONFIGS: list[dict[str, Any] | None] = [
    None,
    {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    {"tokenizer_class": "BertTokenizerFast", "tokenize_chinese_chars": False, "model_max_length": 20},
]


@pytest.mark.parametrize("config", TOKENIZER_CONFIGS, ids=map(str, range(len(TOKENIZER_CONFIGS))))
def test_tokens_equal_transformers(tmp_path: Path, config: dict[str, Any] | None) -> None:
    path = tmp_path / "listed"
    small.write_tokenizer(path, config)
    (path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = hf.AutoTokenizer.from_pretrained(path)
    theirs.save_pretrained(tmp_path / "stored")
    (tmp_path / "stored" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert (tmp_path / "stored" / "tokenizer.json").is_file() and not (tmp_path / "stored" / "vocab.txt").exists()
    wanted = theirs(small.AWKWARD, add_special_tokens=False, split_special_tokens=True).input_ids
    for folder in (path, tmp_path / "stored"):
        ours = load_wordpiece(folder)
        assert ours.encode(small.AWKWARD) == wanted
        control = (ours.pad, ours.unk, ours.start, ours.end, ours.mask)
        assert control == (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, 4)
        assert not {ours.pad, ours.start, ours.end, ours.mask} & {each for row in wanted for each in row}
        assert ours.decode([[2, *wanted[0], 3, 0]]) == [theirs.decode(wanted[0])]
        ours.save(tmp_path / "ours.json")  # as in a run folder
        again = tokenizers.load_tokenizer(tmp_path / "ours.json")
        assert again.encode(small.AWKWARD) == wanted
        assert (again.pad, again.unk, again.start, again.end, again.mask) == control


def test_tokenizer_json_decides_for_a_fast_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "x"
    small.write_tokenizer(path, {"do_lower_case": False})
    (path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = hf.AutoTokenizer.from_pretrained(path)
    theirs.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    theirs.add_tokens(["kept whole"])
    theirs.backend_tokenizer.enable_truncation(3)
    theirs.backend_tokenizer.enable_padding(length=9)
    theirs.backend_tokenizer.save(str(path / "tokenizer.json"))
    names = {
        name: f"[{name[:-6].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True, **names}
    (path / "tokenizer_config.json").write_text(
        json.dumps(config | {"cls_token": {"content": "[CLS]", "lstrip": False}})
    )
    ours = load_wordpiece(path)
    text = "Hello the cat [E1] sat, kept whole!"
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    assert ours.encode([text])[0] == theirs(text, add_special_tokens=False).input_ids
    assert ours.size == len(small.VOCAB) + 2 and "[E1]" in ours.decode(ours.encode([text]))[0]


def test_unsupported_tokenizers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.mkdir()
    with pytest.raises(UserError, match="has no vocab.txt; a BERT folder needs its tokenizer"):
        load_wordpiece(path)
    small.write_tokenizer(path, {"tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(UserError, match="has a BertJapaneseTokenizer"):
        load_wordpiece(path)
    small.write_tokenizer(path, {"tokenizer_class": "PreTrainedTokenizerFast"})
    with pytest.raises(UserError, match="has no tokenizer.json"):
        load_wordpiece(path)
    small.write_tokenizer(path, {"cls_token": "[BEGIN]"})
    with pytest.raises(UserError, match=r"has no '\[BEGIN\]' in its vocabulary"):
        load_wordpiece(path)
    small.write_tokenizer(path)
    (path / "vocab.txt").write_text("\n".join([*small.VOCAB, "<s>"]))
    (path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"has an entry '<s>', which is regard's name for its '\[CLS\]'"):
        load_wordpiece(path)
    (path / "vocab.txt").write_bytes(b"\xff\xfe[PAD]")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        load_wordpiece(path)
    (path / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match="is no tokenizer"):
        load_wordpiece(path)
    names = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    whole = {"model": {"type": "WordPiece", "vocab": names}, "added_tokens": [], "normalizer": {"type": "odd"}}
    (path / "tokenizer.json").write_text(json.dumps(whole))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(UserError, match="is no complete tokenizer"):
        load_wordpiece(path)
    (path / "tokenizer.json").write_text(json.dumps(whole | {"model": {"type": "BPE", "vocab": names}}))
    (path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="is of type BPE; a BertTokenizer has WordPiece"):
        load_wordpiece(path)


# --- export --------------------------------------------------------------------------------------------------------


def predictor(c: bert.Config, kind: str = "wordpiece") -> SimpleNamespace:
    """The attributes of a predictor that an export uses."""
    texts = [text for text in small.AWKWARD if text.strip()] + ["the cat sat unaffable hello world"] * 3
    vocab = 120 if kind == "wordpiece" else 300
    settings = TokenizerConfig(kind=kind, vocab=vocab, symbols=("<url>",))
    text = tokenizers.train_tokenizer(settings, texts, control=(tokenizers.MASK,) if c.head == "words" else ())
    c = c.model_copy(update={"vocab": text.size})
    torch.manual_seed(4)
    model = loud(bert.Model(c), spread=3.0)
    labels = [f"label {i}" for i in range(c.labels)]
    return SimpleNamespace(
        run=SimpleNamespace(task="tag", model=c, data=None), module=model, tokenizer=text, labels=labels
    )


SHAPE: dict[str, Any] = {
    "width": 36, "heads": 3, "layers": 2, "inner": 50, "token_types": 3, "positions": {"kind": "learned", "tokens": 41},
}  # fmt: skip


def test_export_of_an_untied_head_and_a_bpe_tokenizer(tmp_path: Path) -> None:
    ours, out = predictor(bert.Config(**SHAPE, head="words", tied=False), "bpe"), tmp_path / "out"
    FORMAT.write(ours, out, "fp32")
    FORMAT.verify(ours, out, "fp32")
    same_bert(read_folder(out).model, hf.BertForMaskedLM.from_pretrained(out).eval())
    assert read_folder(out).tokenizer.decode(ours.tokenizer.encode(small.AWKWARD)) == small.AWKWARD


def test_imported_tokenizer_is_exported(tmp_path: Path) -> None:
    path = small.folder(tmp_path / "x", "BertForTokenClassification", {"do_lower_case": False}, num_labels=4)
    folder = read_folder(path)
    ours = SimpleNamespace(
        run=SimpleNamespace(task="tag", model=folder.config, data=None),
        module=folder.model,
        tokenizer=folder.tokenizer,
        labels=folder.labels,
    )
    FORMAT.write(ours, tmp_path / "out", "fp32")
    FORMAT.verify(ours, tmp_path / "out", "fp32")
    theirs = hf.AutoTokenizer.from_pretrained(path)
    wanted = theirs(small.AWKWARD, split_special_tokens=True).input_ids
    assert hf.AutoTokenizer.from_pretrained(tmp_path / "out")(small.AWKWARD).input_ids == wanted


def test_check_detects_a_wrong_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = predictor(bert.Config(**SHAPE, head="tag", labels=4))
    tensors = HuggingFaceFormat.tensors

    def damaged(self: Any, predictor: Any) -> dict[str, torch.Tensor]:
        weights = tensors(self, predictor)
        weights["bert.encoder.layer.1.output.dense.weight"][3, 5] += 0.5
        return weights

    monkeypatch.setattr(HuggingFaceFormat, "tensors", damaged)
    FORMAT.write(ours, tmp_path / "a", "fp32")
    with pytest.raises(RuntimeError, match="the folder gives logits that are apart by"):
        FORMAT.verify(ours, tmp_path / "a", "fp32")
    monkeypatch.undo()
    monkeypatch.setattr(encoders, "text_template", lambda text: None)
    FORMAT.write(ours, tmp_path / "b", "fp32")
    with pytest.raises(RuntimeError, match="does not put START and END around a text"):
        FORMAT.verify(ours, tmp_path / "b", "fp32")


def test_unsupported_settings_are_named() -> None:
    c = bert.Config(
        prenorm=True, positions=slots.Rotary(), attention=slots.Favor(), feed=slots.Convolution(), norm=slots.RMSNorm()
    )
    words = " ".join(FORMAT.unsupported(c))
    for part in ("prenorm=true", "positions.kind=rotary", "attention.kind=favor", "feed.kind=conv", "norm.kind=rms"):
        assert part in words
    assert "scaled=false" in FORMAT.unsupported(bert.Config(attention=slots.Dense(scaled=False)))[0]
    assert FORMAT.unsupported(bert.Config()) == []


def test_tag_runs_export_with_a_plain_feed_forward(tmp_path: Path) -> None:
    """The recipe trains a convolutional one, which no class of transformers has."""
    run = reads.stored_run("tag", train__steps=1)
    words = (
        r"what does not fit: model.feed.kind=conv \(expected plain\); use the run itself, or train with the expected"
    )
    with pytest.raises(UserError, match=words):
        regard.convert(run, to="huggingface", out=tmp_path / "out")
    run = reads.stored_run("tag", train__steps=1, model__feed__kind="plain")
    assert "transformers" in regard.convert(run, to="huggingface", out=tmp_path / "out")["checked"]
