"""Vectors of sentence-transformers folders equal theirs; folders that cannot be read are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import bert as small
from helpers.inputs import inputs
from prototypes.checks import close, ragged

import regard
from regard.errors import UserError
from regard.formats.huggingface.bert import FORMAT
from regard.formats.huggingface.encoders import EncoderFolder
from regard.formats.model_files import first_module
from regard.parts.pooling import pool


def read_folder(path: Path) -> EncoderFolder:
    return FORMAT.read(path, json.loads((path / "config.json").read_text()))


@torch.no_grad()
def our_vectors(folder: EncoderFolder, texts: list[str]) -> Any:
    """Our vectors, all texts in one padded batch."""
    text = folder.tokenizer
    rows = [[text.start, *ids[: folder.max_tokens - 2], text.end] for ids in text.encode(texts)]
    valid = ragged([len(row) for row in rows])
    tokens = torch.tensor([row + [text.pad] * (valid.size(1) - len(row)) for row in rows])
    states = folder.model.encode(inputs(tokens, valid)).states
    return pool(states, valid, folder.pooling, folder.normalize).numpy()


@pytest.mark.parametrize(
    ("how", "pooling", "nested", "normalize"),
    [
        ("mean", {"pooling_mode_mean_tokens": True}, False, True),
        ("first", {"pooling_mode_cls_token": True}, True, False),
        ("max", {"pooling_mode_max_tokens": True}, False, False),
        ("first", {"pooling_mode": "cls"}, False, True),
    ],
)
def test_vectors_equal_sentence_transformers(
    tmp_path: Path, how: str, pooling: dict[str, Any], nested: bool, normalize: bool
) -> None:
    path = small.sentence_folder(tmp_path / "x", nested, normalize, **pooling)
    if "pooling_mode" in pooling:  # as newer versions write it
        (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    home = path / "0_Transformer" if nested else path
    folder = FORMAT.read(path, json.loads((home / "config.json").read_text()))
    assert (folder.pooling, folder.normalize, folder.max_tokens) == (how, normalize, 12)
    texts = [*small.AWKWARD, "the cat sat " * 9]
    close(
        torch.tensor(our_vectors(folder, texts)), torch.tensor(small.sentence_vectors(home, texts, 12, how, normalize))
    )
    if nested:
        (path / "config.json").unlink(missing_ok=True)
        assert first_module(path) == home


def test_max_tokens_falls_back_to_the_tokenizer_and_the_model(tmp_path: Path) -> None:
    path = small.sentence_folder(tmp_path / "x", pooling_mode_mean_tokens=True)
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": None, "do_lower_case": True}))
    (path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 33, "do_lower_case": False}))
    folder = read_folder(path)
    assert folder.max_tokens == 33
    assert folder.tokenizer.encode(["HELLO"]) == [[small.VOCAB.index("hello")]]  # lower case first
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512}))
    assert read_folder(path).max_tokens == 41  # the model has no more positions


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("1_Pooling/config.json", "[1]", r"config.json does not hold an object but \[1\]; restore"),
        ("sentence_bert_config.json", '"x"', r"sentence_bert_config.json does not hold an object but \"x\""),
        (
            "sentence_bert_config.json",
            '{"max_seq_length": "x"}',
            "max_seq_length is 'x'; expected a number",
        ),
        ("config.json", "[]", r"config.json does not hold an object but \[\]"),
        ("modules.json", "{}", r"modules.json does not hold a list but \{\}"),
        ("modules.json", '[{"type": 3, "path": 4}]', "modules.json has 3; regard supports Transformer"),
    ],
)
def test_damaged_sentence_transformers_files_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = small.sentence_folder(tmp_path / "x", pooling_mode_mean_tokens=True)
    (path / name).write_text(text)
    with pytest.raises(UserError, match=words):
        regard.load(path)


def test_unsupported_sentence_transformers_are_refused(tmp_path: Path) -> None:
    path = small.sentence_folder(tmp_path / "x", pooling_mode_mean_tokens=True, pooling_mode_max_tokens=True)
    with pytest.raises(UserError, match="pools by mean_tokens and max_tokens; regard pools by one of"):
        read_folder(path)
    (path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(UserError, match="1_Pooling/config.json is missing"):
        read_folder(path)
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    with pytest.raises(UserError, match="pools by lasttoken"):
        read_folder(path)
    (path / "config_sentence_transformers.json").write_text(json.dumps({"default_prompt_name": "query"}))
    with pytest.raises(UserError, match=r"puts the prompt 'query' before every text \(default_prompt_name\)"):
        read_folder(path)
    modules = json.loads((path / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (path / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(UserError, match="modules.json has Dense; regard supports Transformer, Pooling and Normalize"):
        read_folder(path)
    (path / "modules.json").write_text(json.dumps([{"idx": 0}]))
    with pytest.raises(UserError, match="is no list of modules with type and path"):
        read_folder(path)
    (path / "modules.json").write_text(json.dumps(modules[:1]))
    with pytest.raises(UserError, match="has no Transformer or no Pooling"):
        read_folder(path)
    (path / "config.json").unlink()
    with pytest.raises(UserError, match=r"has a modules.json and no config.json"):
        regard.load(path)
