"""Free text, token by token: what shapes the draw, what ends a text, what can be told of it while it is written."""

from collections.abc import Sequence

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decode import END, Chain, run

from regard.config import run as config
from regard.decode import MinP, RepetitionPenalty, SearchSettings, StopStrings, TopP, search
from regard.decode.filters import NOTHING, StepContext
from regard.decode.sample import SamplingSettings, keys
from regard.decode.stop_strings import cut, held
from regard.decode.texts import added
from regard.processors.tokenizers import TrainedTokenizer, train_tokenizer
from regard.tasks.prompt_generator import IncrementalDetokenizer

TEXTS = [
    "Käse 🧀 und naïve Ideen",
    "def read(self):\n    return 'é' + \"x\"\n",
    "漢字 und ελληνικά, ¡olé!",
    " two  spaces ",
]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, TrainedTokenizer]:
    sizes = {"bpe": 300, "unigram": 300, "word": 40, "space": 40, "char": 80, "byte": 260}
    return {
        kind: train_tokenizer(config.TokenizerConfig(kind=kind, vocab=vocab, symbols=("<sep>",)), TEXTS)
        for kind, vocab in sizes.items()
    }


# --- shapes of the distribution --------------------------------------------------------------------------------------


def moment(said: torch.Tensor, rows: list[int]) -> StepContext:
    return StepContext(said.size(2), torch.ones(len(rows), dtype=torch.long), said, torch.tensor(rows))


@pytest.mark.parametrize("penalty", [0.7, 1.3, 5.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty):
    draw = torch.Generator().manual_seed(2)
    scores = torch.randn(3, 2, 31, generator=draw) * 3
    given = torch.randint(0, 31, (5, 4), generator=draw)
    given[1, :2] = NOTHING
    said = torch.randint(0, 31, (3, 2, 6), generator=draw)
    rows = [4, 1, 0]  # running rows are some of the input's, in any order
    ours = RepetitionPenalty(penalty, given)(scores, moment(said, rows))
    theirs = hf.RepetitionPenaltyLogitsProcessor(penalty)
    for i, row in enumerate(rows):
        for j in range(2):
            ids = torch.cat([given[row][given[row] != NOTHING], said[i, j]])[None]
            assert torch.equal(ours[i, j], theirs(ids, scores[i, j][None].clone())[0])


@pytest.mark.parametrize("share", [0.01, 0.3, 0.999])
def test_the_least_probability_is_that_of_transformers(share):
    scores = torch.randn(5, 50, generator=torch.Generator().manual_seed(1)).mul(2).log_softmax(-1)
    nothing = moment(torch.zeros(5, 1, 0, dtype=torch.long), list(range(5)))
    theirs = hf.MinPLogitsWarper(share)(None, hf.TopPLogitsWarper(0.9)(None, scores))
    ours = MinP(share)(TopP(0.9)(scores[:, None], nothing), nothing)
    assert torch.equal(ours[:, 0].isfinite(), theirs.isfinite()) and ours[:, 0].isfinite().any(1).all()


def test_raw_filters_come_before_the_probabilities():
    """Scores weakened afterwards would be no distribution, and a positive one cannot be told from a negative."""
    chain = Chain(1, 9, spread=4.0)
    given = torch.ones(1, 1, dtype=torch.long)
    found = run(chain, [0], [5], beam=1, early_stopping="first", raw=(RepetitionPenalty(3.0, given),))[0][0]
    said, total, before, last = [1], 0.0, 0, 1
    for token in [*found.tokens, *[END] * found.ended]:
        logits = hf.RepetitionPenaltyLogitsProcessor(3.0)(
            torch.tensor([said]), chain.table[0, before, last][None].clone()
        )
        assert int(logits.argmax()) == token
        total += float(logits.log_softmax(-1)[0, token])
        said.append(token)
        before, last = last, token
    assert found.logprob == pytest.approx(total, abs=1e-5)


# --- strings that end a text -----------------------------------------------------------------------------------------


def letters(rows: Sequence[Sequence[int]]) -> list[str]:
    """A tokenizer of one letter per token."""
    return ["".join(chr(ord("a") + token) for token in row) for row in rows]


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "first", "heuristic"])
def test_a_row_ends_with_the_first_stop_string_and_the_others_go_on(kind):
    vocab, rows, limits = 6, list(range(8)), [12] * 8
    chain = Chain(8, vocab, seed=3, spread=3.0)
    chain.table[..., END] -= 4.0  # texts go on
    how = (
        {"beam": 1, "early_stopping": "first"}
        if kind == "greedy"
        else {"beam": 4, "early_stopping": "exact" if kind == "beam" else kind}
    )
    if kind == "sample":
        how = {"sampling": SamplingSettings(keys([str(row) for row in rows], 3, 5, torch.device("cpu")))}
    free = run(chain, rows, limits, nbest=1 if kind != "sample" else 3, **how)
    texts = [letters([each.tokens])[0] for some in free for each in some]
    long = [text for text in texts if len(text) >= 5]
    strings = (long[0][2:4], long[1][3:5])  # what is said somewhere
    stops = StopStrings(strings, letters, [[1]] * 8)
    found = run(chain, rows, limits, nbest=1 if kind != "sample" else 3, stops=stops, **how)
    stopped = 0
    for row, (some, before) in enumerate(zip(found, free, strict=True)):
        for place, each in enumerate(some):
            text = letters([each.tokens])[0]
            head, there = cut(text, strings)
            stopped += there
            if there:
                assert not each.ended and len(text) <= len(head) + 2  # not a token further
                assert each.logprob == pytest.approx(chain.logprob(row, tuple(each.tokens)), abs=1e-4)
            if kind in ("greedy", "sample"):  # what is chosen does not depend on the strings
                assert letters([before[place].tokens])[0].startswith(text)
                assert there or before[place].tokens == each.tokens
        alone = search(chain, chain.start([row]), torch.ones(1, 1, dtype=torch.long), torch.tensor([12]), SearchSettings(
            END, nbest=1 if kind != "sample" else 3, stops=StopStrings(strings, letters, [[1]]),
            **how | ({"sampling": SamplingSettings(keys([str(row)], 3, 5, torch.device("cpu")))} if kind == "sample" else {}),
        ))  # fmt: skip
        assert [each.tokens for each in alone[0]] == [each.tokens for each in some]
    assert stopped >= 2


def test_a_beam_whose_hypotheses_have_all_stopped_is_done():
    chain = Chain(1, 4, spread=2.0)
    chain.table[..., END] = -1e9
    steps, original = [0], chain.step

    def step(*given):
        steps[0] += 1
        return original(*given)

    chain.step = step  # type: ignore[method-assign]
    for stop in ("exact", "first", "heuristic"):
        steps[0] = 0
        found = run(
            chain, [0], [50], beam=5, nbest=3, early_stopping=stop, stops=StopStrings(("b", "c", "d"), letters, [[1]])
        )[0]
        assert [len(each.tokens) for each in found] == [1, 1, 1] and steps[0] == 1


def test_stop_strings_are_found_however_they_are_spelt(tokenizers):
    strings = ("🧀", "ve I", "d na")
    for kind in ("bpe", "unigram", "byte", "char"):
        tokenizer = tokenizers[kind]
        ids = tokenizer.encode([TEXTS[0]])[0]
        for string in strings:
            stops = StopStrings((string,), tokenizer.decode, [[tokenizer.start]])
            asked = torch.ones(1, 1, dtype=torch.bool)
            ends = [
                bool(stops(torch.tensor([[ids[:end]]]), torch.tensor([0]), asked)) for end in range(1, len(ids) + 1)
            ]
            texts = [tokenizer.decode([ids[:end]])[0] for end in range(1, len(ids) + 1)]
            first = next(i for i, text in enumerate(texts) if string in text)
            assert ends.index(True) == first, (kind, string)
            assert not stops(torch.tensor([[ids]]), torch.tensor([0]), ~asked).any()


def test_a_stop_string_in_the_prompt_does_not_count(tokenizers):
    tokenizer = tokenizers["space"]
    ids = tokenizer.encode(["und naïve"])[0]
    more = tokenizer.encode(["und Ideen"])[0]
    asked = torch.ones(1, 1, dtype=torch.bool)
    stops = StopStrings(("und",), tokenizer.decode, [ids])
    assert not stops(torch.tensor([[more[1:]]]), torch.tensor([0]), asked)
    assert stops(torch.tensor([[more]]), torch.tensor([0]), asked)
    assert StopStrings((" und",), tokenizer.decode, [ids])(
        torch.tensor([[more]]), torch.tensor([0]), asked
    )  # with its space


def test_cut_and_held():
    assert cut("one two three", ()) == ("one two three", False)
    assert cut("one two three", ("three", "two")) == ("one ", True)
    assert held("one tw", ("two", "w!")) == 2
    assert held("one two", ("two",)) == 0  # it is whole: nothing more of it can come
    assert held("aab", ("aabaac",)) == 3 and held("", ("x",)) == 0 and held("b", ("xb",)) == 0


# --- what can be told while it is written ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "space", "char", "byte"])
def test_the_pieces_of_a_text_are_the_text(kind, tokenizers):
    tokenizer = tokenizers[kind]
    texts = [*TEXTS, "a <sep> b<sep>c"]
    for text in texts:
        ids = tokenizer.encode([text])[0]
        whole = tokenizer.decode([ids])[0]
        for first in range(len(ids)):
            given = [tokenizer.start, *ids[:first]]
            before = tokenizer.decode([given])[0]
            if before.endswith("\ufffd"):
                continue  # no prompt ends within a character
            teller = IncrementalDetokenizer(tokenizer.decode, given, ())
            pieces = [teller.hear(token) for token in ids[first:]]
            assert not any("\ufffd" in piece for piece in pieces)
            assert before + "".join(pieces) == whole
            assert before + added(tokenizer.decode, given, ids[first:]) == whole


@given(st.lists(st.integers(4, 259), max_size=40), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_nothing_is_told_that_later_tokens_change(tokens, seed):
    """Any bytes, valid or not, with strings that stop."""
    tokenizer = train_tokenizer(config.TokenizerConfig(kind="byte", vocab=260), ["x"])
    whole = tokenizer.decode([tokens])[0]
    stops = tuple({whole[i : i + 2] for i in (seed, 3 * seed + 5)} - {"", whole[:1]})
    teller = IncrementalDetokenizer(tokenizer.decode, [tokenizer.start], stops)
    told = "".join(teller.hear(token) for token in tokens)
    wanted, _ = cut(whole, stops)
    assert wanted.startswith(told) and len(told) == teller.told
