"""Sentences about damaged or contradictory folders that no other test of this package triggers."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
import torch
from helpers import causal, long
from helpers.parity import change_config
from safetensors.torch import load_file, save_file

import regard
from regard.config.data.texts import TokenizerConfig
from regard.errors import UserError
from regard.formats import model_card
from regard.formats.huggingface import marian
from regard.formats.huggingface.format import Folder
from regard.formats.huggingface.vocabularies import load_t5_unigram
from regard.formats.parity import MatchCount
from regard.formats.peft.read import load_adapter
from regard.processors.text.external import sentencepiece_processor
from regard.processors.text.tokenizers import train_tokenizer


def test_a_value_of_the_wrong_type(tmp_path: Path) -> None:
    path = long.longformer(tmp_path / "x")
    change_config(path, attention_window="many")
    with pytest.raises(UserError, match="config.json has a value of the wrong type .*; fetch the folder again"):
        regard.load(path)


def test_a_tied_table_that_is_stored_twice(tmp_path: Path) -> None:
    path, _ = causal.llama(tmp_path / "x", tie_word_embeddings=True)
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, path / "model.safetensors")
    with pytest.raises(
        UserError, match=r"'lm_head.weight' and 'model.embed_tokens.weight' .* expected one shared tensor"
    ):
        regard.load(path)


def test_vocabulary_sizes_of_an_exported_marian_folder(tmp_path: Path) -> None:
    text = train_tokenizer(TokenizerConfig(kind="bpe", vocab=300), long.LINES)
    text.save(tmp_path / "tokenizer.json")
    config: dict[str, Any] = {"regard": {}, "vocab_size": text.size, "decoder_vocab_size": text.size + 1}
    config |= {"pad_token_id": text.pad, "decoder_start_token_id": text.start, "eos_token_id": text.end}
    folder = lambda config: Folder(tmp_path, tmp_path, config, None, None)  # noqa: E731
    with pytest.raises(UserError, match=f"decoder_vocab_size is {text.size + 1} and its tokenizer has {text.size}"):
        marian.read_tokenizers(folder(config), {})
    with pytest.raises(UserError, match=r"eos_token_id is None and 2 in tokenizer.json; they must agree"):
        marian.read_tokenizers(folder({key: config[key] for key in config if key != "eos_token_id"}), {})


def test_a_sentencepiece_model_of_another_kind(tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(long.LINES), model_prefix=str(tmp_path / "spiece"), vocab_size=60, model_type="bpe",
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    with pytest.raises(UserError, match="spiece.model is no unigram model of sentencepiece"):
        load_t5_unigram(tmp_path)


def test_marian_folders_need_sentencepiece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(
        UserError, match=r"Marian folders need sentencepiece; install it with: pip install 'regard\[marian"
    ):
        sentencepiece_processor(model_file="x")


def test_damaged_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step"')
    with pytest.raises(UserError, match="metrics.jsonl is damaged .*; restore it, or move it away"):
        model_card.events(tmp_path)


def test_texts_that_differ() -> None:
    count = MatchCount()
    count.add("x", ["a", "b", "c", "d"], ["a", "b", "c", "e"])
    assert str(count) == "3 of 4 texts equal"
    with pytest.raises(RuntimeError, match="x gives 2 other texts, such as 'c' and not 'f'"):
        count.add("x", ["a", "b", "c", "d"], ["a", "b", "f", "g"])


def test_adapters_that_do_not_fit_their_base(tmp_path: Path) -> None:
    tuned: Any = SimpleNamespace(run=SimpleNamespace(tune=SimpleNamespace(kind="lora")))
    with pytest.raises(UserError, match="runs/x is tuned itself, so .* cannot be attached to it; merge it first"):
        load_adapter(tuned, tmp_path, "runs/x")
    path, _ = causal.gpt2(tmp_path / "x")
    config = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 64}
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    for rows, words in ((3, r"prompt_embeddings is \(3, 36\); expected num_virtual_tokens \(64\) rows"),
                        (64, "has 64 virtual tokens, and this base has 64 positions in all; use a longer base")):  # fmt: skip
        save_file({"prompt_embeddings": torch.zeros(rows, 36)}, adapter / "adapter_model.safetensors")
        with pytest.raises(UserError, match=words):
            regard.load(path, tune=adapter)
