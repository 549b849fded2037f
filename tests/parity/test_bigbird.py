"""BigBird equals transformers' BigBird in evaluation, where the first block stands for random ones, and in training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import long as small
from helpers.inputs import inputs
from helpers.parity import change_config
from prototypes.checks import close, ragged
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

import regard
from regard.config.run import resolve_run
from regard.errors import UserError
from regard.families import bigbird
from regard.formats.huggingface.bigbird import FORMAT
from regard.formats.huggingface.vocabularies import load_bigbird_unigram
from regard.processors.text import tokenizers


def read_folder(path: Path) -> Any:
    return FORMAT.read(path, json.loads((path / "config.json").read_text()))


@torch.no_grad()
def test_padding_inside_the_last_block_equals_transformers(tmp_path: Path) -> None:
    path = small.bigbird(tmp_path / "x")
    ids, valid = torch.randint(4, 120, (3, 99)), ragged([99, 97, 98])
    theirs = hf.BigBirdModel.from_pretrained(path).eval()(ids, attention_mask=valid.long()).last_hidden_state
    close(read_folder(path).model.encode(inputs(ids, valid)).states[valid], theirs[valid])


@torch.no_grad()
def test_training_outputs_equal_with_their_random_blocks(tmp_path: Path, monkeypatch: Any) -> None:
    path = small.bigbird(tmp_path / "x", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    drawn, draw = [], BigBirdBlockSparseAttention._bigbird_block_rand_mask_with_head

    def record_draw(self: Any, *args: Any, **words: Any) -> Any:
        drawn.append(torch.tensor(np.stack(draw(self, *args, **words))))  # (heads, blocks but two, random)
        return list(drawn[-1].numpy())

    monkeypatch.setattr(BigBirdBlockSparseAttention, "_bigbird_block_rand_mask_with_head", record_draw)
    ids = torch.randint(4, 120, (2, 93))
    theirs = hf.BigBirdModel.from_pretrained(path).train()(ids).last_hidden_state
    model = read_folder(path).model
    assert len(drawn) == 3 and not drawn[0].equal(drawn[1])
    for layer, table in zip(model.encoder.layers, drawn, strict=True):
        kernel, whole = layer.attention.kernel, torch.nn.functional.pad(table.long(), (0, 0, 1, 1))[None]
        kernel.drawn, kernel.random_blocks = True, lambda blocks, most, heads, whole=whole: whole
    close(model.encode(inputs(ids)).states, theirs)


def test_predictors_of_imported_folders(tmp_path: Path) -> None:
    path = small.bigbird(tmp_path / "x", "BigBirdForSequenceClassification", num_labels=3)
    predictor = regard.load(path, device="cpu")
    texts = [" ".join(small.LINES[:8]), "the cat"]
    words = hf.AutoTokenizer.from_pretrained(path)
    for text in texts:
        theirs = hf.BigBirdForSequenceClassification.from_pretrained(path).eval()
        with torch.no_grad():
            wanted = theirs(**words(text, return_tensors="pt")).logits.argmax(-1).item()
        assert predictor.predict(texts)[texts.index(text)] == f"LABEL_{wanted}"
    masked = regard.load(small.bigbird(tmp_path / "m", "BigBirdForMaskedLM"), device="cpu")
    assert "[MASK]" not in masked.predict("the [MASK] sat")
    view = masked.look(texts[0])
    assert view.weights().shape == (len(view.tokens),) * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_decoder": True}, "is_decoder is true; regard's BigBird is an encoder"),
        ({"rescale_embeddings": True}, "rescale_embeddings is true; expected false"),
        ({"use_bias": False}, "use_bias is false; expected true"),
        ({"attention_type": "odd"}, "attention_type is 'odd'; expected 'block_sparse' or 'original_full'"),
        ({"block_size": 0}, "model.attention.size is 0; expected at least 1"),
        ({"architectures": ["BigBirdForCausalLM"]}, "architectures has 'BigBirdForCausalLM'"),
        ({"vocab_size": 30}, "has shape"),
    ],
)
def test_unsupported_configs_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = small.bigbird(tmp_path / "x")
    change_config(path, **changes)
    with pytest.raises(UserError, match=words):
        read_folder(path)


def test_tokens_equal_transformers(tmp_path: Path) -> None:
    path = tmp_path / "listed"
    small.write_sentencepiece(path, {"tokenizer_class": "BigBirdTokenizer"})
    (path / "config.json").write_text(json.dumps({"model_type": "big_bird"}))
    theirs = hf.AutoTokenizer.from_pretrained(path)
    theirs.save_pretrained(tmp_path / "stored")
    assert (tmp_path / "stored" / "tokenizer.json").is_file() and not (tmp_path / "stored" / "spiece.model").exists()
    plain = [text for text in small.AWKWARD if "<" not in text]
    wanted = theirs(plain, add_special_tokens=False, split_special_tokens=True).input_ids
    for folder in (path, tmp_path / "stored"):
        ours = load_bigbird_unigram(folder)
        assert ours.encode(plain) == wanted
        control = (ours.pad, ours.unk, ours.start, ours.end, ours.mask)
        assert control == tuple(theirs.convert_tokens_to_ids(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]))
        odd = ours.encode(["[CLS] the <s> </s>[SEP] <pad> [MASK]"])[0]
        assert not {ours.pad, ours.start, ours.end, ours.mask} & {*odd}  # a text cannot contain control tokens
        ours.save(tmp_path / "ours.json")  # as in a run folder
        again = tokenizers.load_tokenizer(tmp_path / "ours.json")
        assert again.encode(plain) == wanted and (again.start, again.end) == (ours.start, ours.end)


def test_unsupported_tokenizers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match=r"has neither tokenizer.json nor spiece.model"):
        load_bigbird_unigram(tmp_path / "x")
    (tmp_path / "x" / "spiece.model").write_bytes(b"\x0a\xff")
    with pytest.raises(UserError, match="is no sentencepiece model"):
        load_bigbird_unigram(tmp_path / "x")


def test_model_settings() -> None:
    base = {"model.family": "bigbird", "model.size": "tiny", "train.steps": 1}
    run = resolve_run("classify", base | {"model.attention.random": "1"}).run
    assert (run.model.attention.size, run.model.attention.random, run.model.attention.drawn) == (16, 1, True)
    model = bigbird.Model(run.model.model_copy(update={"vocab": 50, "head": "words"}))
    assert [layer.attention.kernel.seed for layer in model.encoder.layers] == [0, 1]
    for key, value, words in (
        ("model.attention.size", "0", "model.attention.size is 0; expected at least 1"),
        ("model.attention.random", "-1", "model.attention.random is -1; expected at least 0"),
        ("model.positions.kind", "buckets", 'model.positions.kind is "buckets"; expected one of learned'),
        ("model.attention.kind", "favor", 'model.attention.kind is "favor"; expected one of blocks, dense'),
    ):
        with pytest.raises(UserError, match=words):
            resolve_run("classify", base | {key: value})
