"""BERT is transformers' BERT: its outputs, its tokens, both ways; and sentence-transformers' vectors."""

import json
from pathlib import Path
from typing import Any

import bert as small
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from seams.checks import close, ragged

from regard.data import tokenizers
from regard.errors import Mistake
from regard.families import bert
from regard.interop.bert import Folder, read
from regard.interop.vocabularies import wordpieces
from regard.parts import Mask

KINDS = ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForNextSentencePrediction",
         "BertForSequenceClassification", "BertForTokenClassification"]  # fmt: skip


def opened(path: Path) -> Folder:
    return read(path, json.loads((path / "config.json").read_text()))


def changed(path: Path, **config: Any) -> None:
    said = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(said | config))


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randint(len(small.VOCAB), (3, 41)), ragged([41, 8, 1], 41), torch.randint(3, (3, 41))


@torch.no_grad()
def answers(theirs: Any, kinds: bool = True) -> tuple[Any, Any]:
    ids, real, types = batch()
    return theirs(ids, attention_mask=real.long(), **({"token_type_ids": types} if kinds else {})), real


@torch.no_grad()
def compare(model: bert.Model, theirs: Any) -> None:
    """Every output that the class has, with segments and without."""
    ids, real, types = batch()
    for kinds in (types, None):
        found, _ = answers(theirs, kinds is not None)
        states = model.encode(ids, Mask(keys=real), kinds)
        seen = set()
        for name, wanted in found.items():
            seen.add(name)
            if name == "last_hidden_state":
                close(states[real], wanted[real])
            elif name == "pooler_output":
                close(model.pool(states), wanted)
            elif name == "prediction_logits" or (name == "logits" and model.head == "words"):
                close(model.logits(states)[real], wanted[real])
            elif name == "seq_relationship_logits" or (name == "logits" and model.head == "none"):
                close(model.follows(states), wanted)
            else:
                assert name == "logits"
                tags = model.head == "tag"
                close(model.label(states)[real] if tags else model.label(states), wanted[real] if tags else wanted)
        assert seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_transformers(tmp_path: Path, kind: str) -> None:
    path = small.folder(tmp_path / "x", kind, num_labels=5)
    folder = opened(path)
    compare(folder.model, getattr(hf, kind).from_pretrained(path).eval())
    assert folder.max_tokens == 41
    assert folder.labels == (tuple(f"LABEL_{i}" for i in range(5)) if "Classification" in kind else ())


def test_other_shapes_and_acts(tmp_path: Path) -> None:
    for act, eps in (("gelu_new", 1e-5), ("relu", 1e-12)):
        path = small.folder(tmp_path / act, "BertForMaskedLM", hidden_act=act, layer_norm_eps=eps, hidden_size=39)
        compare(opened(path).model, hf.BertForMaskedLM.from_pretrained(path).eval())


def test_old_names_prefixes_and_extra_heads(tmp_path: Path) -> None:
    """Google's files: gamma and beta, everything of pre-training under a model that is said to be something else."""
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
    compare(opened(path).model, whole)
    changed(path, architectures=["BertForMaskedLM"])  # as bert-base-uncased says of itself
    folder = opened(path)
    assert folder.config.follow and folder.config.pooled
    compare(folder.model, whole)
    changed(path, architectures=["BertModel"])
    compare(opened(path).model, hf.BertModel.from_pretrained(path).eval())
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    save_file(bare, path / "model.safetensors", {"format": "pt"})
    changed(path, architectures=None)
    compare(opened(path).model, hf.BertModel.from_pretrained(path).eval())
    bare = {name: tensor for name, tensor in bare.items() if "pooler" not in name}
    save_file(bare, path / "model.safetensors", {"format": "pt"})
    assert not opened(path).config.pooled
    compare(opened(path).model, hf.BertModel.from_pretrained(path, add_pooling_layer=False).eval())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"is_decoder": True}, "is_decoder is set; regard's BERT is an encoder"),
        ({"add_cross_attention": True}, "add_cross_attention is set"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; expected 'absolute'"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; expected one of gelu"),
        ({"architectures": ["BertForQuestionAnswering"]}, "architectures has 'BertForQuestionAnswering'; expected"),
        ({"problem_type": "regression"}, "problem_type is 'regression'; expected 'single_label_classification'"),
        ({"num_attention_heads": 5}, "width 36 does not divide into 5 heads"),
        ({"hidden_size": 39}, "has shape"),
        ({"architectures": ["BertForTokenClassification"]}, "the checkpoint has no 'classifier.weight'"),
        ({"num_hidden_layers": 2}, "tensors of the checkpoint have no place in the model"),
        ({"vocab_size": 20}, "has shape"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, said: dict[str, Any], words: str) -> None:
    path = small.folder(tmp_path / "x")
    changed(path, **said)
    with pytest.raises(Mistake, match=words):
        opened(path)


# --- its tokenizer -----------------------------------------------------------------------------------------------------

SAID: list[dict[str, Any] | None] = [
    None,
    {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    {"tokenizer_class": "BertTokenizerFast", "tokenize_chinese_chars": False, "model_max_length": 20},
]


@pytest.mark.parametrize("said", SAID, ids=map(str, range(len(SAID))))
def test_tokens_are_transformers(tmp_path: Path, said: dict[str, Any] | None) -> None:
    path = tmp_path / "listed"
    small.write(path, said)
    (path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = hf.AutoTokenizer.from_pretrained(path)
    theirs.save_pretrained(tmp_path / "stored")
    (tmp_path / "stored" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert (tmp_path / "stored" / "tokenizer.json").is_file() and not (tmp_path / "stored" / "vocab.txt").exists()
    wanted = theirs(small.AWKWARD, add_special_tokens=False, split_special_tokens=True).input_ids
    for place in (path, tmp_path / "stored"):
        ours = wordpieces(place)
        assert ours.encode(small.AWKWARD) == wanted
        control = (ours.pad, ours.unk, ours.start, ours.end, ours.mask)
        assert control == (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, 4)
        assert not {ours.pad, ours.start, ours.end, ours.mask} & {each for row in wanted for each in row}
        assert ours.decode([[2, *wanted[0], 3, 0]]) == [theirs.decode(wanted[0])]
        ours.save(tmp_path / "ours.json")  # as a run keeps it
        again = tokenizers.load(tmp_path / "ours.json")
        assert again.encode(small.AWKWARD) == wanted
        assert (again.pad, again.unk, again.start, again.end, again.mask) == control


def test_tokenizer_json_alone_decides_where_it_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "x"
    small.write(path, {"do_lower_case": False})
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
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True, **names}
    (path / "tokenizer_config.json").write_text(json.dumps(said | {"cls_token": {"content": "[CLS]", "lstrip": False}}))
    ours = wordpieces(path)
    text = "Hello the cat [E1] sat, kept whole!"
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    assert ours.encode([text])[0] == theirs(text, add_special_tokens=False).input_ids
    assert ours.size == len(small.VOCAB) + 2 and "[E1]" in ours.decode(ours.encode([text]))[0]


def test_what_is_refused_of_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.mkdir()
    with pytest.raises(Mistake, match="has no vocab.txt; a BERT folder needs its tokenizer"):
        wordpieces(path)
    small.write(path, {"tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(Mistake, match="has a BertJapaneseTokenizer"):
        wordpieces(path)
    small.write(path, {"tokenizer_class": "PreTrainedTokenizerFast"})
    with pytest.raises(Mistake, match="has no tokenizer.json"):
        wordpieces(path)
    small.write(path, {"cls_token": "[BEGIN]"})
    with pytest.raises(Mistake, match=r"has no '\[BEGIN\]' in its vocabulary"):
        wordpieces(path)
    small.write(path)
    (path / "vocab.txt").write_text("\n".join([*small.VOCAB, "<s>"]))
    (path / "tokenizer_config.json").unlink()
    with pytest.raises(Mistake, match=r"has an entry '<s>', by which regard calls its '\[CLS\]'"):
        wordpieces(path)
    (path / "vocab.txt").write_bytes(b"\xff\xfe[PAD]")
    with pytest.raises(Mistake, match="is not UTF-8 text"):
        wordpieces(path)
    (path / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(Mistake, match="is no tokenizer"):
        wordpieces(path)
