"""Generation: sampling filters, stop strings and incremental detokenization."""

from collections.abc import Sequence

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decode import END, Chain, run

from regard.config import run as config
from regard.decode import RepetitionPenalty, Sample, SearchSettings, StopStrings, run_search
from regard.decode.search.draw import SamplingSettings, limit_mass, odds_of
from regard.decode.search.filters import NO_TOKEN, StepContext
from regard.decode.search.sample import sample_keys
from regard.decode.search.texts import IncrementalDetokenizer, added_text, cut_at_stop, possible_stop_length
from regard.processors.text.tokenizers import TrainedTokenizer, train_tokenizer

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


# --- filters --------------------------------------------------------------------------------------


def context(tokens: torch.Tensor, rows: list[int]) -> StepContext:
    return StepContext(tokens.size(2), torch.ones(len(rows), dtype=torch.long), tokens, torch.tensor(rows))


@pytest.mark.parametrize("penalty", [0.7, 1.3, 5.0])
def test_repetition_penalty_equals_transformers(penalty):
    draw = torch.Generator().manual_seed(2)
    scores = torch.randn(3, 2, 31, generator=draw) * 3
    prompt = torch.randint(0, 31, (5, 4), generator=draw)
    prompt[1, :2] = NO_TOKEN
    tokens = torch.randint(0, 31, (3, 2, 6), generator=draw)
    rows = [4, 1, 0]  # active rows are any of the input rows, in any order
    ours = RepetitionPenalty(torch.full((len(prompt),), penalty), prompt)(scores, context(tokens, rows))
    theirs = hf.RepetitionPenaltyLogitsProcessor(penalty)
    for i, row in enumerate(rows):
        for j in range(2):
            ids = torch.cat([prompt[row][prompt[row] != NO_TOKEN], tokens[i, j]])[None]
            assert torch.equal(ours[i, j], theirs(ids, scores[i, j][None].clone())[0])


def samples_of(rows):
    """Three samples of each row."""
    keys = sample_keys([str(row) for row in rows], 3, 5, torch.device("cpu"))
    return SamplingSettings.of(keys, [Sample(n=3)] * len(rows))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.999])
def test_min_p_equals_transformers(share):
    scores = torch.randn(5, 50, generator=torch.Generator().manual_seed(1)).mul(2).log_softmax(-1)
    theirs = hf.MinPLogitsWarper(share)(None, hf.TopPLogitsWarper(0.9)(None, scores))
    settings = SamplingSettings.of(torch.zeros(5, 1, dtype=torch.long), [Sample(top_p=0.9, min_p=share)] * 5)
    limits = settings.select(torch.arange(5))
    ours = limit_mass(odds_of(scores, limits), limits) > 0
    assert torch.equal(ours, theirs.isfinite()) and ours.any(1).all()


def test_logit_filters_apply_before_the_softmax():
    """A penalty after the softmax would not give a distribution, and could not tell positive from negative logits."""
    chain = Chain(1, 9, spread=4.0)
    prompt = torch.ones(1, 1, dtype=torch.long)
    found = run(
        chain, [0], [5], beam=1, early_stopping="first", logit_filters=(RepetitionPenalty(torch.tensor([3.0]), prompt),)
    )[0][0]
    tokens, total, before, last = [1], 0.0, 0, 1
    for token in [*found.tokens, *[END] * found.ended]:
        logits = hf.RepetitionPenaltyLogitsProcessor(3.0)(
            torch.tensor([tokens]), chain.table[0, before, last][None].clone()
        )
        assert int(logits.argmax()) == token
        total += float(logits.log_softmax(-1)[0, token])
        tokens.append(token)
        before, last = last, token
    assert found.logprob == pytest.approx(total, abs=1e-5)


# --- stop strings -----------------------------------------------------------------------------------------


def letters(rows: Sequence[Sequence[int]]) -> list[str]:
    """A tokenizer of one letter per token."""
    return ["".join(chr(ord("a") + token) for token in row) for row in rows]


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "first", "heuristic"])
def test_a_row_ends_at_the_first_stop_string(kind):
    vocab, rows, limits = 6, list(range(8)), [12] * 8
    chain = Chain(8, vocab, seed=3, spread=3.0)
    chain.table[..., END] -= 4.0  # makes texts long
    how = (
        {"beam": 1, "early_stopping": "first"}
        if kind == "greedy"
        else {"beam": 4, "early_stopping": "exact" if kind == "beam" else kind}
    )
    if kind == "sample":
        how = {"sampling": samples_of(rows)}
    free = run(chain, rows, limits, nbest=1 if kind != "sample" else 3, **how)
    texts = [letters([each.tokens])[0] for some in free for each in some]
    long = [text for text in texts if len(text) >= 5]
    strings = (long[0][2:4], long[1][3:5])  # substrings of some texts
    stops = StopStrings([strings] * 8, letters, [[1]] * 8)
    found = run(chain, rows, limits, nbest=1 if kind != "sample" else 3, stop_strings=stops, **how)
    stopped = 0
    for row, (some, before) in enumerate(zip(found, free, strict=True)):
        for place, each in enumerate(some):
            text = letters([each.tokens])[0]
            head, there = cut_at_stop(text, strings)
            stopped += there
            if there:
                assert not each.ended and len(text) <= len(head) + 2  # stops at that token
                assert each.logprob == pytest.approx(chain.logprob(row, tuple(each.tokens)), abs=1e-4)
            if kind in ("greedy", "sample"):  # the tokens do not depend on the stop strings
                assert letters([before[place].tokens])[0].startswith(text)
                assert there or before[place].tokens == each.tokens
        alone = run_search(chain, chain.start([row]), torch.ones(1, 1, dtype=torch.long), torch.tensor([12]), SearchSettings(
            END, nbest=1 if kind != "sample" else 3, stop_strings=StopStrings([strings], letters, [[1]]),
            **how | ({"sampling": samples_of([row])} if kind == "sample" else {}),
        ))  # fmt: skip
        assert [each.tokens for each in alone[0]] == [each.tokens for each in some]
    assert stopped >= 2


def test_beam_search_ends_when_all_hypotheses_have_stopped():
    chain = Chain(1, 4, spread=2.0)
    chain.table[..., END] = -1e9
    steps, original = [0], chain.step

    def step(*arguments):
        steps[0] += 1
        return original(*arguments)

    chain.step = step  # type: ignore[method-assign]
    for stop in ("exact", "first", "heuristic"):
        steps[0] = 0
        found = run(
            chain,
            [0],
            [50],
            beam=5,
            nbest=3,
            early_stopping=stop,
            stop_strings=StopStrings([("b", "c", "d")], letters, [[1]]),
        )[0]
        assert [len(each.tokens) for each in found] == [1, 1, 1] and steps[0] == 1


def test_stop_strings_match_in_every_tokenization(tokenizers):
    strings = ("🧀", "ve I", "d na")
    for kind in ("bpe", "unigram", "byte", "char"):
        tokenizer = tokenizers[kind]
        ids = tokenizer.encode([TEXTS[0]])[0]
        for string in strings:
            stops = StopStrings([(string,)], tokenizer.decode, [[tokenizer.start]])
            candidates = torch.ones(1, 1, dtype=torch.bool)
            ends = [
                bool(stops(torch.tensor([[ids[:end]]]), torch.tensor([0]), candidates))
                for end in range(1, len(ids) + 1)
            ]
            texts = [tokenizer.decode([ids[:end]])[0] for end in range(1, len(ids) + 1)]
            first = next(i for i, text in enumerate(texts) if string in text)
            assert ends.index(True) == first, (kind, string)
            assert not stops(torch.tensor([[ids]]), torch.tensor([0]), ~candidates).any()


def test_stop_strings_in_the_prompt_do_not_count(tokenizers):
    tokenizer = tokenizers["space"]
    ids = tokenizer.encode(["und naïve"])[0]
    more = tokenizer.encode(["und Ideen"])[0]
    candidates = torch.ones(1, 1, dtype=torch.bool)
    stops = StopStrings([("und",)], tokenizer.decode, [ids])
    assert not stops(torch.tensor([[more[1:]]]), torch.tensor([0]), candidates)
    assert stops(torch.tensor([[more]]), torch.tensor([0]), candidates)
    assert StopStrings([(" und",)], tokenizer.decode, [ids])(
        torch.tensor([[more]]), torch.tensor([0]), candidates
    )  # with its space


def test_stop_string_helpers():
    assert cut_at_stop("one two three", ()) == ("one two three", False)
    assert cut_at_stop("one two three", ("three", "two")) == ("one ", True)
    assert possible_stop_length("one tw", ("two", "w!")) == 2
    assert possible_stop_length("one two", ("two",)) == 0  # complete: nothing can follow
    assert (
        possible_stop_length("aab", ("aabaac",)) == 3
        and possible_stop_length("", ("x",)) == 0
        and possible_stop_length("b", ("xb",)) == 0
    )


# --- incremental detokenization ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "space", "char", "byte"])
def test_incremental_detokenizer_gives_the_whole_text(kind, tokenizers):
    tokenizer = tokenizers[kind]
    texts = [*TEXTS, "a <sep> b<sep>c"]
    for text in texts:
        ids = tokenizer.encode([text])[0]
        whole = tokenizer.decode([ids])[0]
        for first in range(len(ids)):
            prompt = [tokenizer.start, *ids[:first]]
            before = tokenizer.decode([prompt])[0]
            if before.endswith("\ufffd"):
                continue  # no prompt ends inside a character
            detokenizer = IncrementalDetokenizer(tokenizer.decode, prompt, ())
            pieces = [detokenizer.add(token) for token in ids[first:]]
            assert not any("\ufffd" in piece for piece in pieces)
            assert before + "".join(pieces) == whole
            assert before + added_text(tokenizer.decode, prompt, ids[first:]) == whole


@given(st.lists(st.integers(4, 259), max_size=40), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_incremental_detokenizer_never_retracts(tokens, seed):
    """For any bytes, valid UTF-8 or not, with stop strings."""
    tokenizer = train_tokenizer(config.TokenizerConfig(kind="byte", vocab=260), ["x"])
    whole = tokenizer.decode([tokens])[0]
    stops = tuple({whole[i : i + 2] for i in (seed, 3 * seed + 5)} - {"", whole[:1]})
    detokenizer = IncrementalDetokenizer(tokenizer.decode, [tokenizer.start], stops)
    emitted = "".join(detokenizer.add(token) for token in tokens)
    wanted, _ = cut_at_stop(whole, stops)
    assert wanted.startswith(emitted) and len(emitted) == detokenizer.emitted
