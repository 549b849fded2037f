"""generation_config.json: a loaded folder generates the tokens that transformers generates from the same files."""

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import test_t5
import torch
import transformers as hf
from helpers import causal, marian

import regard
from regard.formats.huggingface import generation as generation_files
from regard.formats.huggingface.causal import decode_from_generation

FAMILIES = ("gpt2", "llama", "marian", "t5")
LIMIT = {"max_new_tokens": 9}
ROLES = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


class Folder:
    """A folder, its model in transformers, and what both generate with the same generation_config.json."""

    def __init__(self, path: Path, model: Any) -> None:
        self.path, self.model, self.file = path, model.eval(), path / "generation_config.json"
        self.config = json.loads((path / "config.json").read_text())
        both = self.config | json.loads(self.file.read_text())
        self.ids = {key: both[key] for key in ROLES if both.get(key) is not None}
        self.ids.setdefault("pad_token_id", self.ids["eos_token_id"])
        self.sourced = "decoder_start_token_id" in self.ids
        self.predictor = self.load({})
        encode = self.predictor.source.encode if self.sourced else self.predictor.encode_texts
        texts = [*marian.sentences(60, 5), "the cat the cat the cat"]
        size = len(encode([texts[0]])[0])
        self.texts = [text for text in texts if len(encode([text])[0]) == size][:3]  # of one length: without padding
        self.rows = encode(self.texts) if self.sourced else [[5, 9, 30, 9], [40, 5, 5, 7], [280, 6, 9, 30]]
        self.long = 5 if self.sourced else 4

    def load(self, settings: dict[str, Any], **changes: Any) -> Any:
        self.file.write_text(json.dumps(self.ids | settings))
        return regard.load(self.path, {"device": "cpu"} | {f"decode.{key}": value for key, value in changes.items()})

    def ours(self, settings: dict[str, Any]) -> list[list[int]]:
        """Without reading the weights again."""
        self.file.write_text(json.dumps(self.ids | settings))
        read = generation_files.read_generation_config(self.path, self.config)
        predictor = self.predictor
        if self.sourced:
            decode, _ = generation_files.seq2seq_decode(self.path, self.config, read, predictor.target, 10**6)
            return [best[0].tokens for best in predictor.search(self.texts, decode)]
        values = decode_from_generation(read)
        values |= generation_files.ends_from_generation(read, predictor.tokenizer.end, 10**6)
        decode = type(predictor.run.decode)(**values)
        return [best[0].tokens for best in predictor.generate(["text"] * len(self.rows), self.rows, decode)]

    @torch.no_grad()
    def theirs(self, settings: dict[str, Any]) -> list[list[int]]:
        self.file.write_text(json.dumps(self.ids | settings))
        self.model.generation_config = hf.GenerationConfig.from_pretrained(self.path)
        end = [self.predictor.source.end] if self.sourced else []
        ends = (self.ids | settings)["eos_token_id"]
        tokens = torch.tensor([[*row, *end] for row in self.rows])
        with warnings.catch_warnings(action="ignore"):  # some combinations have a minimum above their maximum
            rows = self.model.generate(tokens, attention_mask=torch.ones_like(tokens)).tolist()
        ends = ends if isinstance(ends, list) else [ends]
        new = [row[1 if self.sourced else tokens.size(1) :] for row in rows]
        return [row[: min((row.index(end) for end in ends if end in row), default=len(row))] for row in new]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    here = tmp_path_factory.mktemp("generation")
    opus, small = marian.folder(here / "marian"), test_t5.folder(here / "t5", **test_t5.FIRST)
    return {
        "gpt2": Folder(*causal.gpt2(here / "gpt2")),
        "llama": Folder(*causal.llama(here / "llama", fallback=True)),
        "marian": Folder(opus, hf.MarianMTModel.from_pretrained(opus)),
        "t5": Folder(small, test_t5.their_model(small)),
    }


def candidates(folder: Folder) -> list[dict[str, Any]]:
    """Values of every key, most of which have an effect on these texts."""
    end, free, long = folder.ids["eos_token_id"], folder.theirs(LIMIT), folder.long
    first, second, third = (free[i][0] for i in range(3))
    words = [word for word in ([third], free[0][1:3], free[2][:2], free[2][2:5]) if word]
    keys: list[dict[str, Any]] = [
        {"repetition_penalty": 1.8}, {"repetition_penalty": 0.7}, {"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 3},
        {"no_repeat_ngram_size": 2}, {"min_length": long + 3}, {"min_length": long + 9, "max_length": long + 11},
        {"min_new_tokens": 7}, {"max_length": long + 6}, {"max_new_tokens": 3}, {"forced_bos_token_id": 9},
        {"forced_eos_token_id": end}, {"forced_eos_token_id": [end]}, {"suppress_tokens": [first, third]},
        {"begin_suppress_tokens": [first, second]}, {"bad_words_ids": [[end], *words]},
        {"begin_suppress_tokens": [first, third, *free[0]], "forced_bos_token_id": 9},
        {"eos_token_id": [end, free[0][1]]}, {"eos_token_id": [free[0][1], free[2][2], end]},
        {"renormalize_logits": True, "repetition_penalty": 1.4},
    ]  # fmt: skip
    beams = [{"length_penalty": 0.0}, {"length_penalty": 2.0}, {"early_stopping": True}, {"early_stopping": "never"}]
    sourced = [{"encoder_no_repeat_ngram_size": 1}, {"encoder_no_repeat_ngram_size": 2}]
    return keys + beams + (sourced if folder.sourced else [])


def searchable(settings: dict[str, Any], beams: int) -> dict[str, Any]:
    alone = ("length_penalty", "early_stopping") if beams == 1 else ()
    lengths = {} if settings.keys() & {"max_length", "max_new_tokens"} else LIMIT
    return {"num_beams": beams} | lengths | {key: value for key, value in settings.items() if key not in alone}


@pytest.mark.parametrize(("family", "beams"), [("gpt2", 1), ("llama", 3), ("marian", 1), ("t5", 3)])
def test_each_key(family: str, beams: int, folders: dict[str, Folder]) -> None:
    folder, changed = folders[family], set()
    plain = folder.theirs(searchable({}, beams))
    for settings in candidates(folder):
        chosen = searchable(settings, beams)
        wanted = folder.theirs(chosen)
        assert folder.ours(chosen) == wanted, settings
        changed |= set(settings) if wanted != plain else set()
    assert len(changed) >= 10, changed


@pytest.mark.parametrize("family", FAMILIES)
def test_combinations(family: str, folders: dict[str, Folder]) -> None:
    folder, dice = folders[family], random.Random(family)
    known, different = candidates(folder), set()
    for _ in range(10):
        settings: dict[str, Any] = {}
        for each in dice.sample(known, dice.randint(2, 5)):
            settings |= each
        chosen = searchable(settings, dice.choice([1, 2, 4]))
        wanted = folder.theirs(chosen)
        assert folder.ours(chosen) == wanted, settings
        different.add(str(wanted))
    assert len(different) > 5
