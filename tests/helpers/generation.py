"""Tiny models of every kind of cache, a letter tokenizer, and random requests for tests of the generator."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from prototypes.checks import FAVOR, SMALL, WINDOW, loud
from torch import nn

from regard.adapt import tune
from regard.config.tuning import Prefix, Prompt
from regard.decode import (
    Beam,
    Ensemble,
    Forbid,
    Generator,
    Greedy,
    Hypothesis,
    JointCTC,
    Sample,
    SearchRequest,
    Suppress,
    TokenRules,
)
from regard.decode.search.constraints import ConstraintTokenizer
from regard.families import cnn, gpt, lm, rnn, t5, transformer, xl
from regard.parts import Encoded
from regard.parts.inputs import Inputs

VOCAB, START, END = 50, 1, 2
SOURCED = (
    "transformer",
    "t5",
    "rnn",
    "cnn",
    "ensemble",
    "joint",
    "prefix t5",
    "prompt transformer",
)  # models that read a source
ALONE = ("gpt", "window", "favor", "gru", "xl", "lm", "mixed ensemble", "prefix gpt", "prompt gpt")
MODELS = (*SOURCED, *ALONE)


class Letters:
    """A tokenizer with one letter or space per token."""

    size, pad, start, end, unk = VOCAB, 0, START, END, 3
    letters = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRS"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.letters.index(each) + 4 for each in text] for text in texts]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(self.letters[i - 4] for i in row if i > 3) for row in rows]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.letters[i - 4] if i > 3 else f"<{i}>" for i in ids]


TOKENIZER = ConstraintTokenizer(Letters())
PAD_AND_START = (Suppress([0, START]),)


class WithCTC(transformer.Model):
    """A Transformer whose encoder also predicts the target by CTC."""

    def __init__(self, c: transformer.Config) -> None:
        super().__init__(c)
        self.ctc = nn.Linear(c.width, c.target_vocab or c.vocab)

    def ctc_logits(self, encoded: Encoded) -> torch.Tensor:
        return self.ctc(encoded.states)


def build(name: str, **changes: Any) -> nn.Module:
    torch.manual_seed(3)
    if name == "joint":
        model = loud(WithCTC(transformer.Config.model_validate(SMALL | changes)), spread=1.5)
        return JointCTC(model, 0.4, 0, START, END).eval()
    if name.endswith("ensemble"):
        members = ("transformer", "t5") if name == "ensemble" else ("window", "gru")
        return Ensemble([build(each) for each in members])
    if name.startswith(("prefix", "prompt")):
        method, _, base = name.partition(" ")
        tuned = tune.attach(build(base), (Prefix if method == "prefix" else Prompt)(length=3), init_tokens=[7, 21, 9])
        return tuned.eval()
    older = {"vocab": VOCAB, "width": 32, "heads": 4, "layers": 2, "dropout": 0.0}
    learned = {"positions": {"kind": "learned", "tokens": 64}}
    family, settings = {
        "transformer": (transformer, SMALL),
        "t5": (t5, SMALL | {"head_width": 8}),
        "rnn": (rnn, older),
        "cnn": (cnn, older | {"kernel_size": 5}),
        "gpt": (gpt, SMALL | learned),
        "window": (gpt, SMALL | {"positions": "rotary", "attention": WINDOW, "key_heads": 2}),
        "favor": (gpt, SMALL | {"positions": "rotary", "attention": FAVOR}),
        "gru": (rnn, older | {"cell": "gru", "head": "next"}),
        "xl": (xl, SMALL | {"memory": 8}),
        "lm": (lm, SMALL),
    }[name]  # type: tuple[Any, dict[str, Any]]
    model = loud(family.Model(family.Config.model_validate(settings | changes)), spread=1.5)
    head = nn.Linear(32, VOCAB)  # texts that end at different lengths
    head.weight.data = model.head.weight.data.clone() * 0.7
    head.bias.data.zero_()
    head.bias.data[END] = 1.0
    model.head = head
    return model.eval()


def source(ids: Sequence[int]) -> Inputs:
    return Inputs("tokens", torch.tensor([list(ids)]))


FORBID = Forbid([[[9], [11, 12], [7]]])


def random_request(dice: random.Random, sourced: bool, number: int) -> SearchRequest:
    """A request with a random input, strategy and settings."""
    ids = [dice.randrange(4, VOCAB) for _ in range(dice.randint(1, 9))]
    prefix = tuple(dice.randrange(4, VOCAB) for _ in range(dice.choice([0, 0, 1, 3])))
    prompt = (START, *prefix) if sourced else (START, *ids)
    request = SearchRequest(
        prompt,
        source([*ids, END]) if sourced else None,
        random_strategy(dice),
        max_tokens=dice.choice([1, 3, 6, 11]),
        filters=(FORBID,) if dice.random() < 0.2 else (),
        repetition_penalty=dice.choice([1.0, 1.0, 1.3]),
        stop=dice.choice([(), (), tuple("aektuMPR"), ("Ab", *"cxyLQ")]),
        key=dice.choice([None, f"text {number}"]),
    )
    if dice.random() < 0.4:
        request = replace(request, rules=random_rules(dice, sourced), min_tokens=dice.choice([0, 2, 5]))
    if sourced and dice.random() < 0.3:
        words = tuple("".join(dice.choices("abcdefgh", k=dice.randint(1, 3))) for _ in range(2))
        phrases = TOKENIZER.encode("", words if isinstance(request.strategy, Beam) else (), ("xyz", dice.choice("ijk")))
        constraints = replace(phrases, prefix=prefix, space_after_prefix=dice.random() < 0.3)
        request = replace(request, constraints=constraints, stop=(), max_tokens=max(request.max_tokens, 9))
    return request


def random_rules(dice: random.Random, sourced: bool) -> TokenRules:
    """Some rules of each kind. Requests share their values, so that some of them share a search."""
    some = {
        "no_repeat_ngram_size": dice.choice([0, 2, 3]),
        "encoder_no_repeat_ngram_size": dice.choice([0, 2]) if sourced else 0,
        "bad_words_ids": dice.choice([(), ((8,), (9, 10), (START, 11))]),
        "forced_bos_token_id": dice.choice([(), (14,)]),
        "forced_eos_token_id": dice.choice([(), (END,)]),
        "suppress_tokens": dice.choice([(), (12, 13)]),
        "begin_suppress_tokens": dice.choice([(), tuple(range(20, 40))]),
        "eos_token_id": dice.choice([(), (END, 15, 16), (17,)]),
    }
    return TokenRules(**some if dice.random() < 0.5 else {"no_repeat_ngram_size": 2})


def random_strategy(dice: random.Random) -> Greedy | Sample | Beam:
    kind = dice.choice(["greedy", "sample", "sample", "beam", "beam"])
    if kind == "greedy":
        return Greedy(dice.choice([1.0, 0.5]))
    if kind == "beam":
        size, early = dice.choice([1, 2, 4]), dice.choice(["exact", "first", "heuristic", "never"])
        return Beam(size, dice.choice([1, size]), dice.choice([1.0, 0.6]), early)
    shape = dice.choice([0.7, 1.0, 1.3]), dice.choice([0, 5]), dice.choice([1.0, 0.9]), dice.choice([0.0, 0.05])
    return Sample(*shape, dice.choice([1, 1, 3]), dice.choice([1, 7]))


def generator(model: nn.Module, **settings: Any) -> Generator:
    return Generator(model, END, PAD_AND_START, tokenizer=TOKENIZER, **settings)


def alone(model: nn.Module, request: SearchRequest, **settings: Any) -> list[Hypothesis]:
    """The result of a search for this request only."""
    engine = generator(model, **settings)
    handle = engine.submit(request)
    engine.drain()
    return handle.result()


def worst_difference(found: list[Hypothesis], wanted: list[Hypothesis]) -> float:
    """The largest difference of scores, relative to those above 1; infinite if tokens differ."""
    if [(each.tokens, each.ended) for each in found] != [(each.tokens, each.ended) for each in wanted]:
        return float("inf")
    pairs = zip(found, wanted, strict=True)
    return max((abs(a.score - b.score) / max(abs(b.score), 1.0) for a, b in pairs), default=0.0)
