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
from regard.config.strategies import Beam, Greedy, Sample
from regard.errors import UserError
from regard.formats.huggingface import causal as causal_files
from regard.formats.huggingface import generation as generation_files
from regard.formats.huggingface import gpt2, t5

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
            decode = type(predictor.run.decode)(**generation_files.SEQ2SEQ.decode(read, predictor.target.end, 10**6))
            plan, sources = predictor.plan.of(decode), predictor.modality.read(self.texts)
            found = predictor.run_programs(predictor.writer.search(source, plan) for source in sources)
            return [best[0].tokens for best in found]
        decode = type(predictor.run.decode)(**causal_files.GENERATION.decode(read, predictor.tokenizer.end, 10**6))
        plan = predictor.plan.of(decode)
        found = predictor.run_programs(predictor.writer.search(row, plan, "text") for row in self.rows)
        return [best[0].tokens for best in found]

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


RULES = {
    "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[8], [9, 10]], "forced_bos_token_id": 9,
    "suppress_tokens": [12], "begin_suppress_tokens": [13],
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_folder(family: str, folders: dict[str, Folder]) -> None:
    """End to end: the predictor's texts; decode.* of the user wins over the folder."""
    folder = folders[family]
    settings = RULES | LIMIT | {"num_beams": 2, "min_new_tokens": 4, "eos_token_id": [folder.ids["eos_token_id"], 11]}
    predictor = folder.load(settings)
    decode = predictor.run.decode
    assert (decode.strategy.kind, decode.strategy.size, decode.max_tokens, decode.min_tokens) == ("beam", 2, 9, 4)
    rules = decode.rules
    assert rules.eos_token_id == (folder.ids["eos_token_id"], 11) and rules.bad_words_ids == ((8,), (9, 10))
    wanted = folder.theirs(settings)
    if folder.sourced:
        assert predictor.predict(folder.texts) == predictor.target.decode(wanted)
    changed = folder.load(settings, kind="greedy", no_repeat_ngram_size=0, max_tokens=5, min_tokens=0).run.decode
    assert (changed.strategy, changed.max_tokens, changed.min_tokens) == (Greedy(), 5, 0)
    assert changed.rules.no_repeat_ngram_size == 0
    text = folder.texts[0]
    free = predictor.predict(text, forced_bos_token_id=[], bad_words_ids=[], repetition_penalty=1.0, min_tokens=0)
    assert free == folder.load(settings | {"forced_bos_token_id": None, "bad_words_ids": None, "repetition_penalty": 1.0,
                                           "min_new_tokens": None}).predict(text)  # fmt: skip
    assert free != predictor.predict(text) or not folder.sourced
    with pytest.raises(
        UserError, match=r"decode.rules.suppress_tokens names token 4,000 and the vocabulary has \d+; use numb"
    ):
        predictor.predict(text, suppress_tokens=[4000])


def test_lengths_that_count_the_prompt(folders: dict[str, Folder]) -> None:
    """As in transformers: max_new_tokens wins over max_length, and so does decode.max_tokens of the user."""
    folder = folders["gpt2"]
    predictor = folder.load({"max_length": 12, "min_length": 10})
    decode = predictor.run.decode
    assert (decode.max_length, decode.min_length) == (12, 10)
    short, long = "the", "the old cat sees"
    tokens = [len(row) for row in predictor.tokenizer.encode([short, long])]
    found = predictor.predict([short, long], details=True)
    assert [len(each["tokens"]) for each in found] == [12 - count for count in tokens]
    assert {each["finish"] for each in found} == {"length"}
    assert len(predictor.predict(short, max_tokens=30, details=True)["tokens"]) == 30  # replaces max_length
    assert len(predictor.predict(short, max_length=5, details=True)["tokens"]) == 5 - tokens[0]
    assert "".join(predictor.stream(short)) == predictor.predict(short)
    with pytest.raises(
        UserError, match="the prompt has 15 tokens and decode.max_length is 12, which counts them; raise"
    ):
        predictor.predict([short, "x" * 15])
    both = folder.load({"max_length": 12, "max_new_tokens": 20, "min_new_tokens": 20, "min_length": 3}).run.decode
    assert (both.max_tokens, both.max_length, both.min_tokens, both.min_length) == (20, 0, 20, 0)
    assert folder.load({"max_length": 12}, max_tokens=3).run.decode.max_length == 0
    assert folder.load({"min_length": 12}, min_tokens=3).run.decode.min_length == 0


def test_unused_keys_are_named_once(folders: dict[str, Folder]) -> None:
    neutral = {"typical_p": 1.0, "num_beam_groups": 1, "diversity_penalty": 0.0, "remove_invalid_values": False,
               "guidance_scale": None, "use_cache": True, "epsilon_cutoff": 0.0, "length_penalty": 1.0}  # fmt: skip
    odd = {"guidance_scale": 1.5, "sequence_bias": [[[5], -1.0]], "typical_p": 0.9}
    for family, more in (("llama", "encoder_no_repeat_ngram_size"), ("t5", "stop_strings")):
        with warnings.catch_warnings(action="error"):
            folders[family].load(neutral | {"typical_p": 0.9, "temperature": 0.3, "top_k": 5})  # it does not sample
        extra = {"encoder_no_repeat_ngram_size": 2, "stop_strings": ["the"]}
        with pytest.warns(UserWarning) as found:
            folders[family].load(odd | extra | {"do_sample": True})
        (message,) = [str(each.message) for each in found]
        assert f"settings of the folder: sequence_bias, guidance_scale, typical_p, {more}; its texts may" in message


def test_sampling_and_stop_strings(folders: dict[str, Folder]) -> None:
    for folder in folders.values():
        decode = folder.load({"do_sample": True, "temperature": 0.6, "num_return_sequences": 2}).run.decode
        assert decode.strategy == Sample(temperature=0.6, top_k=50, n=2)
    sampling = {"do_sample": True, "temperature": 0.6}
    changed = folders["t5"].load(sampling, kind="beam", beam=2).run.decode  # the settings of sampling go with it
    assert changed.strategy == Beam(2)
    assert folders["t5"].load(sampling).predict("the cat", kind="greedy") == folders["t5"].load({}).predict("the cat")
    assert folders["llama"].load({"stop_strings": "the"}).run.decode.stop == ("the",)


def test_keys_of_an_old_config(folders: dict[str, Folder]) -> None:
    """Without generation_config.json those of config.json hold; with it they do not."""
    folder = folders["t5"]
    own = json.loads((folder.path / "config.json").read_text())
    try:
        (folder.path / "config.json").write_text(json.dumps(own | {"num_beams": 3, "no_repeat_ngram_size": 3}))
        assert folder.load({"max_length": 9}).run.decode.strategy == Greedy()
        folder.file.unlink()
        decode = regard.load(folder.path).run.decode
        assert (decode.strategy.size, decode.rules.no_repeat_ngram_size) == (3, 3)
    finally:
        (folder.path / "config.json").write_text(json.dumps(own))


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_exported_again(family: str, folders: dict[str, Folder], tmp_path: Path) -> None:
    folder = folders[family]
    settings = RULES | {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.5, "max_length": 20}
    settings |= {"min_length": 4, "renormalize_logits": True, "eos_token_id": [folder.ids["eos_token_id"], 11]}
    settings |= {"encoder_no_repeat_ngram_size": 3} if folder.sourced else {}
    predictor = folder.load(settings)
    (gpt2 if family == "gpt2" else t5).FORMAT.write(predictor, tmp_path / "again", "fp32")
    written = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    if folder.sourced:
        settings = settings | {"min_new_tokens": settings.pop("min_length") - 1}
    assert {key: written.get(key) for key in settings} == settings
    assert regard.load(tmp_path / "again").run.decode == predictor.run.decode
    changed = written | {"no_repeat_ngram_size": 5}
    (tmp_path / "again" / "generation_config.json").write_text(json.dumps(changed))
    assert regard.load(tmp_path / "again").run.decode.rules.no_repeat_ngram_size == 5
