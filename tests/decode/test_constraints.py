"""Required and excluded phrases, sampling, prefixes and ensembles, each against an independent answer."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import test_decode
import torch
import transformers as hf
from helpers import marian as folder
from helpers.inputs import inputs
from helpers.runs import tiny_run
from hypothesis import given
from hypothesis import strategies as st
from test_decode import Chain, everything, run

import regard
from regard.cli import main
from regard.config.family import family_of
from regard.decode import (
    Ensemble,
    Forbid,
    ForcedEnd,
    Phrase,
    Sample,
    SamplingSettings,
    SearchSettings,
    Suppress,
    run_search,
)
from regard.decode.engine.cuda_graph import EagerStep
from regard.decode.engine.wrappers import CacheBundle
from regard.decode.search.beam import BeamSearch
from regard.decode.search.constrained_beam import required_phrases
from regard.decode.search.draw import draw_tokens, exponential, limit_count, limit_mass, odds_of
from regard.decode.search.filters import NO_TOKEN, Filter, FirstToken, StepContext
from regard.decode.search.sample import sample_keys
from regard.decode.search.texts import split_sentences, word_of_token
from regard.errors import UserError
from regard.families import transformer

models = test_decode.marian  # a fixture: a Marian of transformers and our model with its weights
CPU = torch.device("cpu")
NOW = StepContext(0, torch.ones(1), torch.zeros(1, 1, 0, dtype=torch.long), torch.zeros(1, dtype=torch.long))


def holds(body: tuple[int, ...], *phrases: tuple[int, ...]) -> bool:
    """True if the text contains every phrase as often as it is listed, without overlap."""
    text = "".join(f"<{token}>" for token in body)
    return all(
        text.count("".join(f"<{token}>" for token in phrase)) >= phrases.count(phrase) for phrase in set(phrases)
    )


def phrases_of(*phrases: tuple[int, ...]) -> list[Phrase]:
    return [Phrase(str(phrase), (phrase,), phrases.count(phrase)) for phrase in dict.fromkeys(phrases)]


# --- required phrases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    "phrases",
    [
        [(1, 2)],
        [(3,), (2, 1)],
        [(1, 1, 2)],
        [(2, 2), (2, 2)],
        [(1, 2), (2, 3)],
        [(1, 2, 3), (2,)],
        [(3,), (3,), (1,)],
    ],
    ids=str,
)
def test_required_phrases_equal_exhaustive_search(phrases, alpha):
    """With a beam that holds every prefix, the n-best list has the best of all texts that contain the phrases."""
    vocab, limits = 4, [5, 4, 6]
    chain = Chain(3, vocab, spread=2.5)
    found = run(
        chain,
        [0, 1, 2],
        limits,
        beam=3**6,
        nbest=7,
        length_penalty=alpha,
        required=required_phrases([phrases_of(*phrases)] * 3, CPU),
    )
    for row, limit in enumerate(limits):
        every = everything(chain, row, vocab, limit, alpha)
        best = sorted((score for body, score in every.items() if holds(body, *phrases)), reverse=True)[:7]
        assert best and [each.score for each in found[row]] == pytest.approx(best, abs=1e-5)
        texts = [tuple(each.tokens) for each in found[row]]
        assert len(set(texts)) == len(texts) and all(holds(text, *phrases) for text in texts)
        assert [every[text] for text in texts] == pytest.approx(best, abs=1e-5)  # exact ties may be in any order


@pytest.mark.parametrize("stop", ["exact", "first", "heuristic"])
def test_narrow_beams_contain_all_phrases_and_are_batch_invariant(stop):
    chain, draw = Chain(16, 9), torch.Generator().manual_seed(3)

    def some(row: int) -> list[tuple[int, ...]]:
        lengths = torch.randint(1, 4, (1 + row % 3,), generator=draw).tolist()
        return [tuple(torch.randint(1, 9, (length,), generator=draw).tolist()) for length in lengths]

    phrases, limits = [some(row) for row in range(16)], [10 + row % 5 for row in range(16)]
    how = {"beam": 3, "nbest": 2, "early_stopping": stop}

    def found(rows):
        return run(
            chain,
            rows,
            [limits[i] for i in rows],
            **how,
            required=required_phrases([phrases_of(*phrases[i]) for i in rows], CPU),
        )

    alone = [found([row])[0] for row in range(16)]
    for row in range(16):
        assert len(alone[row]) == 2 and all(holds(tuple(each.tokens), *phrases[row]) for each in alone[row])
    for order in (list(range(16)), [9, 2, 2, 14], torch.randperm(16, generator=draw).tolist()):
        for row, best in zip(order, found(order), strict=True):
            assert [each.tokens for each in best] == [each.tokens for each in alone[row]]
            assert [each.score for each in best] == pytest.approx([each.score for each in alone[row]], abs=1e-5)


def test_one_form_of_a_phrase_suffices_and_the_prefix_counts():
    chain = Chain(4, 7)
    either = [Phrase("x", ((5, 6), (4, 6)), 1)]
    found = run(chain, [0, 1, 2, 3], [8] * 4, beam=4, required=required_phrases([either] * 4, CPU))
    assert all(holds(tuple(best[0].tokens), (5, 6)) or holds(tuple(best[0].tokens), (4, 6)) for best in found)
    prefix = torch.tensor([[NO_TOKEN, 3, 5], [1, 2, 5], [4, 6, 1], [NO_TOKEN, NO_TOKEN, 2]])
    tables = required_phrases([either] * 4, CPU, prefix)
    progress = tables.initial_progress()
    assert tables.missing_tokens(progress).flatten().tolist() == [1, 1, 0, 2]


def test_impossible_phrases_leave_the_others_required():
    chain = Chain(3, 6)
    never = (Forbid([[[4]]]),)
    found = run(
        chain,
        [0, 1, 2],
        [7, 9, 5],
        beam=3,
        filters=never,
        required=required_phrases([phrases_of((1, 2), (3, 4))] * 3, CPU),
    )
    for best in found:
        assert holds(tuple(best[0].tokens), (1, 2)) and 4 not in best[0].tokens


# --- forbidden sequences -------------------------------------------------------------------------------


def test_forbidden_sequences_equal_exhaustive_search():
    vocab, limits = 4, [5, 4, 5]
    chain = Chain(3, vocab, spread=2.5)
    own = [[[1, 2], [3]], [], [[2, 2, 1], [1, 3], [2, 3]]]
    found = run(chain, [0, 1, 2], limits, beam=3**5, nbest=6, filters=(Forbid(own),))
    for row, limit in enumerate(limits):
        every = everything(chain, row, vocab, limit, 1.0)
        allowed = {
            body: score for body, score in every.items() if not any(holds(body, tuple(each)) for each in own[row])
        }
        best = sorted(allowed.items(), key=lambda each: -each[1])[:6]
        assert [tuple(each.tokens) for each in found[row]] == [body for body, _ in best]


def test_forbidden_sequences_may_begin_in_the_prefix():
    tokens = torch.tensor([[[7]], [[7]], [[3]]])
    context = StepContext(1, torch.ones(3), tokens, torch.tensor([0, 1, 2]))
    prefix = torch.tensor([[NO_TOKEN, 5], [5, 6], [NO_TOKEN, NO_TOKEN]])
    scores = Forbid([[[5, 7, 2], [9, 7, 1]]], prefix)(torch.zeros(3, 1, 10), context)
    assert (scores == -math.inf).nonzero().tolist() == [[0, 0, 2]]
    scores = Forbid([[[6, 7, 2]], [[6, 7, 2], [0]], []], prefix)(torch.zeros(3, 1, 10), context)
    assert (scores == -math.inf).nonzero().tolist() == [[1, 0, 0], [1, 0, 2]]


# --- sampling ------------------------------------------------------------------------------------------------------


def sampled(chain: Chain, rows: list[int], samples: int, seed: int = 1, limit: int = 8, **limits) -> list:
    sampling = sampling_of([f"row {row}" for row in rows], samples, seed, **limits)
    return run(chain, rows, [limit] * len(rows), sampling=sampling)


def sampling_of(texts: list[str], samples: int, seed: int = 1, **limits) -> SamplingSettings:
    return SamplingSettings.of(sample_keys(texts, samples, seed, CPU), [Sample(n=samples, **limits)] * len(texts))


def test_samples_follow_the_distribution():
    """The frequencies of 20000 sampled texts match their probabilities."""
    chain, count = Chain(2, 3, spread=1.0), 20000
    found = sampled(chain, [0, 1], count, limit=3)
    for row in (0, 1):
        every = everything(chain, row, 3, 3, 0.0)
        assert sum(math.exp(each) for each in every.values()) == pytest.approx(1, abs=1e-4)
        seen = dict.fromkeys(every, 0)
        for each in found[row]:
            seen[tuple(each.tokens)] += 1
            assert each.logprob == pytest.approx(every[tuple(each.tokens)], abs=1e-5)
        chi = sum((seen[body] - count * math.exp(p)) ** 2 / (count * math.exp(p)) for body, p in every.items())
        assert chi < len(every) + 5 * math.sqrt(2 * len(every)), chi


def test_samples_depend_on_seed_text_and_number_only():
    chain = Chain(20, 30)
    whole = sampled(chain, list(range(20)), 4)
    for order in ([3], list(range(19, -1, -1)), [7, 7, 1]):
        assert [[each.tokens for each in best] for best in sampled(chain, order, 4)] == [
            [each.tokens for each in whole[row]] for row in order
        ]
    one = sampled(chain, list(range(20)), 1)
    assert [best[0].tokens for best in one] == [best[0].tokens for best in whole]
    other = sampled(chain, list(range(20)), 4, seed=2)
    assert sum(a == b for a, b in zip(whole, other, strict=True)) < 5
    assert all(len({tuple(each.tokens) for each in best}) > 1 for best in whole)


def test_noise_is_exponential_and_uncorrelated():
    keys = sample_keys([f"t{i}" for i in range(40)], 5, 1, CPU).view(-1, 1)
    flat = exponential(keys, torch.tensor(3), torch.arange(500))
    assert flat.isfinite().all() and (flat > 0).all()
    assert flat.mean().item() == pytest.approx(1.0, abs=0.01)
    assert flat.var().item() == pytest.approx(1.0, abs=0.03)
    apart = (torch.corrcoef(flat) - torch.eye(200)).abs().max()
    assert apart < 6 / math.sqrt(500)
    assert (torch.corrcoef(flat.T) - torch.eye(500)).abs().max() < 6 / math.sqrt(200)


def limited(scores: torch.Tensor, strategies: list[Sample]) -> torch.Tensor:
    """(rows, vocab): the odds of the tokens that the strategies of the rows keep."""
    settings = SamplingSettings.of(torch.zeros(len(scores), 1, dtype=torch.long), strategies)
    limits = settings.select(torch.arange(len(scores)))
    return limit_mass(limit_count(odds_of(scores, limits), replace(limits, every_row=False))[0], limits)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("count", [1, 3, 17, 400])
@pytest.mark.parametrize("heat", [0.3, 1.0, 4.0])
def test_limits_equal_transformers(share, count, heat):
    scores = torch.randn(5, 50, generator=torch.Generator().manual_seed(1)).mul(2).log_softmax(-1)
    theirs = scores
    for filter in (hf.TemperatureLogitsWarper(heat), hf.TopKLogitsWarper(count), hf.TopPLogitsWarper(share)):
        theirs = filter(None, theirs)
    odds = limited(scores, [Sample(temperature=heat, top_k=count, top_p=share)] * 5)
    assert (odds / odds.sum(1, keepdim=True) - theirs.softmax(-1)).abs().max() < 1e-6


@pytest.mark.parametrize("vocab", [7, 300, 5000])
@pytest.mark.parametrize("ties", [False, True])
def test_tokens_are_drawn_among_those_that_the_limits_of_their_row_keep(vocab, ties):
    """The race without a sort ends as one among the tokens that a sort keeps; every row has limits of its own."""
    rng = torch.Generator().manual_seed(vocab)
    scores = torch.randn(48, vocab, generator=rng).mul(3).log_softmax(-1)
    scores = scores.round() if ties else scores
    strategies = [
        Sample(temperature=0.5 + row % 5 / 2, top_k=row % 3 * 9, top_p=1 - row % 4 * 0.3, min_p=row % 2 * 0.05)
        for row in range(48)
    ]
    for some in (strategies, [replace(each, top_k=row + 1) for row, each in enumerate(strategies)]):
        settings = SamplingSettings.of(sample_keys([str(row) for row in range(48)], 1, 1, CPU), some)
        step = torch.arange(48)
        found = draw_tokens(scores[:, None], settings, torch.arange(48), step)
        noise = exponential(settings.keys, step[:, None], torch.arange(vocab))
        assert found.equal((limited(scores, some) / noise).argmax(1, keepdim=True))
        alone = [
            draw_tokens(scores[row : row + 1, None], settings, torch.tensor([row]), step[row : row + 1])
            for row in range(48)
        ]
        assert found.equal(torch.cat(alone))


def test_limits_do_not_change_the_score():
    chain = Chain(6, 12)
    rows = list(range(6))
    greedy = run(chain, rows, [8] * 6, beam=1, early_stopping="first")
    for limits in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-20}):
        found = sampled(chain, rows, 2, **limits)
        assert all(each.tokens == best[0].tokens for best, some in zip(greedy, found, strict=True) for each in some)
        assert [some[0].logprob for some in found] == pytest.approx([best[0].logprob for best in greedy], abs=1e-5)
    nothing = run(
        chain,
        [0],
        [4],
        sampling=sampling_of(["a"], 2),
        filters=(Forbid([[[i] for i in range(12)]]),),
    )
    assert nothing == [[]]


# --- prefixes and batches with a real model ------------------------------------------------------


def random_sources(ours, rows: int = 10, seed: int = 4):
    draw = torch.Generator().manual_seed(seed)
    valid = torch.arange(12)[None] < torch.randint(2, 12, (rows,), generator=draw)[:, None]
    source = torch.randint(1, 60, (rows, 12), generator=draw).masked_fill(~valid, 60)
    return source, valid


def started(ours, source, valid, rows=slice(None)):
    with torch.no_grad():
        return ours.start(inputs(source[rows], valid[rows]), len(source[rows]))


@pytest.mark.parametrize("beams, alpha", [(1, 1.0), (4, 1.0), (4, 0.5)])
def test_prefixes_equal_transformers_and_are_not_scored(models, beams, alpha):
    theirs, ours = models
    source, valid = random_sources(ours)
    prompt = torch.cat(
        [torch.full((10, 1), 60), torch.randint(1, 60, (10, 3), generator=torch.Generator().manual_seed(1))], 1
    )
    out = theirs.generate(
        input_ids=source, attention_mask=valid.long(), decoder_input_ids=prompt, num_beams=beams, max_new_tokens=20, do_sample=False,
        num_return_sequences=beams, length_penalty=alpha, bad_words_ids=[[60], [7, 8], [9, 9, 9]], return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    never = (Forbid([[[60], [7, 8], [9, 9, 9]]], prompt[:, 1:]), ForcedEnd(0))
    settings = SearchSettings(0, beams, alpha, beams, "heuristic" if beams > 1 else "first", never)
    found = run_search(ours, started(ours, source, valid), prompt, torch.full((10,), 20), settings)
    assert [each.tokens for best in found for each in best] == [
        [token for token in row[4:] if token not in (0, 60)] for row in out.sequences.tolist()
    ]
    if beams > 1:
        assert [each.score for best in found for each in best] == pytest.approx(out.sequences_scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("rule", ["beam", "required", "sample"])
def test_ragged_prompts_equal_single_ones(models, rule):
    _, ours = models
    source, valid = random_sources(ours)
    prompts = [[60, *range(5, 5 + row % 4)] for row in range(10)]

    def found(rows):
        longest = max(len(prompts[row]) for row in rows)
        prompt = torch.tensor([prompts[row] + [60] * (longest - len(prompts[row])) for row in rows])
        prompt_valid = torch.arange(longest)[None] < torch.tensor([len(prompts[row]) for row in rows])[:, None]
        phrases = (
            required_phrases([phrases_of((11, 12), (30 + row,)) for row in rows], CPU) if rule == "required" else None
        )
        draw = sampling_of([str(row) for row in rows], 3, top_k=9) if rule == "sample" else None
        settings = SearchSettings(0, 3, nbest=3, filters=(Suppress([60]),), required=phrases, sampling=draw)
        return run_search(
            ours, started(ours, source, valid, rows), prompt, torch.full((len(rows),), 15), settings, prompt_valid
        )

    whole = found(list(range(10)))
    assert all(len(best) == 3 for best in whole)
    for row in range(10):
        assert [each.tokens for each in found([row])[0]] == [each.tokens for each in whole[row]]


def test_ensemble_is_the_mean_of_probabilities(models):
    _, ours = models
    other = transformer.Model(transformer.Config(vocab=61, width=24, heads=2, layers=1, inner=30)).eval()
    source, valid = random_sources(ours)
    both = Ensemble([ours, other])
    prompt, limits = torch.full((10, 1), 60), torch.full((10,), 12)
    for how in (
        {"beam": 1, "early_stopping": "first"},
        {"beam": 4, "nbest": 4},
        {"sampling": sampling_of(list("abcdefghij"), 2)},
    ):
        found = run_search(both, started(both, source, valid), prompt, limits, SearchSettings(0, **how))
        for row in range(0, 10, 3):
            for each in found[row]:
                tokens = torch.tensor([60, *each.tokens, *([0] if each.ended else [])])[None]
                with torch.no_grad():
                    p = [
                        m(inputs(source[row : row + 1], valid[row : row + 1]), inputs(tokens[:, :-1])).softmax(-1)
                        for m in both.members
                    ]
                chosen = ((p[0] + p[1]) / 2)[0].gather(1, tokens[0, 1:, None]).log().sum()
                assert each.logprob == pytest.approx(chosen.item(), abs=1e-4)
    alone = run_search(ours, started(ours, source, valid), prompt, limits, SearchSettings(0, 4, nbest=4))
    twice = Ensemble([ours, ours])
    again = run_search(twice, started(twice, source, valid), prompt, limits, SearchSettings(0, 4, nbest=4))
    assert [[each.tokens for each in best] for best in alone] == [[each.tokens for each in best] for best in again]


# --- texts ---------------------------------------------------------------------------------------------------------


SPLIT = [
    ["One is here. ", "Two is there! ", "Is this three? ", "Yes."],
    ["Dr. Smith met Mr. Brown at 5 p.m. on the 3. Oktober, approx. 4.5 km away. ", "J. R. R. Tolkien did not."],
    ["Er kam z.B. gestern, d.h. am 12. Mai 1990. ", "Dann ging er."],
    ["“Stop!” he said. ", "(She did.) ", "It was I. ", "In 1990. ", "Yahoo! is a firm."],
    ["all small. ", "letters here. ", "e.g. this"],
    ["一つ目です。", "二つ目！", "「三つ目？」", "終わり"],
    ["a line\n\t", "another\r\n\n", "third … and on… ", "Next."],
    ["  "],
    [""],
    ["..."],
    ["\n \n"],
    ["Wait... ", "What?! ", "Nothing"],
]


@pytest.mark.parametrize("parts", SPLIT, ids=repr)
def test_split_sentences(parts):
    assert split_sentences("".join(parts)) == parts


@given(st.text(st.sampled_from(list("abcABZ .!?…\n\t\"'”)0129。！」-ßé\u00a0")), max_size=60))
def test_split_sentences_loses_nothing(text):
    parts = split_sentences(text)
    assert "".join(parts) == text and parts
    assert all(part.strip() for part in parts) or len(parts) == 1


def test_word_of_token():
    assert word_of_token(["▁", "the", "▁ca", "t", ".", "▁▁", "<e2 80>", "<af>", "x", "\t", "é"]) == [None, 0, 1, 1, 1, None, None, None, 2, None, 3]  # fmt: skip
    assert word_of_token([]) == [] and word_of_token([" a", "<c3>", "<a9>", "b▁"]) == [0, None, 0, None]


# --- through predict -------------------------------------------------------------------------------------------------


def texts_of(count: int, seed: int) -> tuple[list[str], list[str]]:
    low = [text[:-1] + " <url>." if i % 3 == 0 else text for i, text in enumerate(folder.sentences(count, seed))]
    return low, [text.upper().replace("<URL>", "<url>") for text in low]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """a and b share a vocabulary, c has another."""
    place = tmp_path_factory.mktemp("runs")
    files = {name: "\n".join(texts) + "\n" for name, texts in zip(("low", "up"), texts_of(400, 0), strict=True)}
    for name, text in files.items():
        (place / name).write_text(text)
    settings = {
        "data.train": "{files}/low,{files}/up", "model.size": "tiny", "model.width": 64, "model.layers": 1, "model.inner": 128,
        "tokenizer.vocab": 300, "tokenizer.symbols": "<url>,<name>", "train.tensorboard": False, "train.lr": 8e-3,
        "train.warmup": 40, "train.tokens": 700, "train.log_every": 1000,
    }  # fmt: skip
    for name, steps, change in (("a", 250, {}), ("b", 60, {"train.seed": 2}), ("c", 1, {"tokenizer.vocab": 290})):
        (place / name).symlink_to(tiny_run("translate", files, **settings | {"train.steps": steps} | change))
    return place


@pytest.fixture(scope="module")
def predictor(runs):
    return regard.load(runs / "a")


LOW, UP = texts_of(30, 9)


def test_symbols_are_one_token_on_both_sides(predictor):
    for tokenizer in (predictor.source, predictor.target):
        ids = tokenizer.encode(["see <url>, <name>!", "<url><url>"])
        number = [n for n, piece in enumerate(tokenizer.tokens(range(tokenizer.size))) if piece == "<url>"]
        assert len(number) == 1 and [each.count(number[0]) for each in ids] == [1, 2] and len(ids[1]) == 2
        assert tokenizer.decode(ids) == ["see <url>, <name>!", "<url><url>"]
    with_symbol = [text for text in LOW if "<url>" in text]
    records = predictor.predict(with_symbol, details=True)
    assert all("<url>" in record["alignment"]["source"] for record in records)
    assert sum("<url>" in record["tokens"] for record in records) >= len(records) / 2  # learned, not required
    for record in predictor.predict(with_symbol, details=True, include=["<url>"]):
        assert "<url>" in record["text"] and "<url>" in record["tokens"] and record["missing"] == []


def test_predict_samples(predictor, runs, capsys):
    how = {"kind": "sample", "temperature": 0.8, "top_k": 20, "top_p": 0.9}
    whole = predictor.predict(LOW, nbest=3, **how)
    assert whole[:9] == [predictor.predict(text, nbest=3, **how) for text in LOW[:9]]
    assert whole[::-1] == predictor.predict(LOW[::-1], nbest=3, batch=7, **how)
    assert [some[0] for some in whole] == predictor.predict(LOW, **how)
    assert whole != predictor.predict(LOW, nbest=3, seed=2, **how)
    assert predictor.predict(LOW, kind="sample", top_k=1) == predictor.predict(LOW, kind="greedy")
    (runs / "in").write_text("\n".join(LOW) + "\n")
    flags = ("decode.kind=sample", "decode.temperature=0.8", "decode.top_k=20", "decode.top_p=0.9")
    assert main(["predict", str(runs / "a"), str(runs / "in"), *flags]) == 0
    assert capsys.readouterr().out.splitlines() == [some[0] for some in whole]
    record = predictor.predict(LOW[0], details=True, nbest=3, **how)
    assert [each["text"] for each in record["nbest"]] == whole[0]
    for each in record["nbest"]:
        assert sum(each["logprobs"]) == pytest.approx(each["logprob"], abs=1e-3)


def test_predict_with_prefixes(predictor):
    for prefix in ("THE RED", "THE RED ", "T", "Zürich, "):
        found = predictor.predict(LOW, prefix=prefix)
        assert all(text.startswith(prefix) and len(text) > len(prefix) for text in found), found
    own = ["", "THE ", "NEVER THE RED", *[""] * 27]
    found = predictor.predict(LOW, prefix=own)
    plain = predictor.predict(LOW)
    assert found[3:] == plain[3:] and found[0] == plain[0] and found[1].startswith("THE ")
    assert found == [predictor.predict(text, prefix=each) for text, each in zip(LOW, own, strict=True)]
    for record in predictor.predict(LOW[:6], prefix="THE RED", details=True):
        assert 0 < record["given"] < len(record["tokens"]) and "".join(record["tokens"][: record["given"]]) == "THE▁RED"
        assert sum(record["logprobs"][record["given"] :]) == pytest.approx(record["logprob"], abs=1e-3)
        length = len(record["logprobs"]) - record["given"]
        assert record["score"] == pytest.approx(record["logprob"] / length, abs=1e-4)


def test_predict_with_required_phrases(predictor):
    own = [["HOUSE"], ["THE RED CAT", "BIRD"], [], ["Zürich!"], ["HOUSE", "HOUSE"], ["<url>", "<name>"], *[[]] * 24]
    found = predictor.predict(LOW, include=own)
    assert found == [predictor.predict(text, include=each) for text, each in zip(LOW, own, strict=True)]
    assert found[::-1] == predictor.predict(LOW[::-1], include=own[::-1], batch=4)
    for text, phrases in zip(found, own, strict=True):
        assert all(text.count(phrase) >= phrases.count(phrase) for phrase in phrases), (text, phrases)
    for place in (1, 3):  # a forced phrase is never joined to a word
        assert all(found[place].startswith(each) or f" {each}" in found[place] for each in own[place])
    plain = predictor.predict(LOW)
    assert [found[i] for i in (2, *range(6, 30))] == [plain[i] for i in (2, *range(6, 30))]
    assert predictor.predict(LOW[0], include=["THE"], prefix="THE ").startswith("THE ")
    assert all("HOUSE" in text for text in predictor.predict(LOW[:4], include="HOUSE", early_stopping="first", beam=2))


def test_missing_phrases_are_reported(predictor, monkeypatch):
    letter = predictor.target.encode(["Q"])[0]
    filters, predictor = (*predictor.filters, Suppress(letter)), predictor.with_model(predictor.model)
    monkeypatch.setattr(predictor, "filters", filters)
    record = predictor.predict(LOW[1], include=["QUICK", "BIRD"], details=True)
    assert record["missing"] == ["QUICK"] and "BIRD" in record["text"] and record["finish"] == "end"
    with pytest.warns(UserWarning, match="decode.include: 1 of 2 texts lack a phrase, such as 'QUICK'"):
        assert all("BIRD" in text for text in predictor.predict(LOW[:2], include=[["BIRD"], ["QUICK", "BIRD"]]))
    assert predictor.predict("", include=["BIRD"], details=True)["missing"] == ["BIRD"]


def test_predict_with_excluded_phrases(predictor):
    some = LOW[:10]
    plain = predictor.predict(some)
    assert all(any(phrase in text for text in plain) for phrase in ("THE", "RED", "D"))
    for excluded in (["THE"], ["RED", "THE"], ["D"], ["E C", "LL H"], ["s", "p", "<"]):
        found = predictor.predict(some, exclude=excluded, batch=3)
        assert all(found) and not any(phrase in text for phrase in excluded for text in found)
        assert found == [predictor.predict(text, exclude=excluded) for text in some]
    records = predictor.predict(some, exclude=["s", "p", "<"], details=True)
    assert any(record["finish"] == "end" for record in records)  # the internal name of END is no phrase
    for how in ({"kind": "greedy"}, {"kind": "sample", "nbest": 2}, {"nbest": 3}):
        records = predictor.predict(some, exclude=["THE", "CAT"], details=True, **how)
        assert not any(
            word in each["text"] for record in records for each in record["nbest"] for word in ("THE", "CAT")
        )
    own = [["THE"], [], *[["RED"]] * 8]
    found = predictor.predict(some, exclude=own)
    assert "THE" not in found[0] and found[1] == plain[1] and not any("RED" in text for text in found[2:])
    assert "RED" in predictor.predict(LOW[0], exclude=["THE"], include=["RED"])
    assert not set(predictor.predict(LOW[0], exclude=list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))) & set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )


STREAMED = {
    "greedy": {"kind": "greedy"},
    "sample": {"kind": "sample", "temperature": 0.8, "seed": 3},
    "beam": {"beam": 3},
    "prefix": {"kind": "greedy", "prefix": "THE "},
    "exclude": {"kind": "greedy", "exclude": "E"},
    "include": {"include": "ZEBRA"},
    "split": {"kind": "greedy", "split": True},
    "short": {"kind": "greedy", "max_tokens": 3},
}


@pytest.mark.parametrize("way", STREAMED)
def test_stream_equals_predict(predictor, way):
    """The parts of a stream are those of the prediction, in several parts where tokens are certain at once."""
    how, parts = STREAMED[way], 0
    for text in (*LOW[:4], f"{LOW[4]}. {LOW[5]}.", " "):
        found = list(predictor.stream(text, **how))
        assert "".join(found) == predictor.predict(text, **how) and all(found)
        parts += len(found)
    assert parts > 10 if way in ("greedy", "sample", "prefix", "split") else parts >= 5
    with pytest.raises(UserError, match=r"decode.strategy.n is 2; a stream has one text"):
        predictor.stream("x", nbest=2)


def test_predict_with_an_ensemble(predictor, runs, capsys):
    both, other = regard.load(f"{runs}/a,{runs}/b"), regard.load(runs / "b")
    assert both.is_ensemble and both.predict(LOW) != predictor.predict(LOW)
    one, two = (each.score(LOW, UP, details=True) for each in (predictor, other))
    for i, score in enumerate(both.score(LOW, UP)):
        pairs = zip(one[i]["logprobs"], two[i]["logprobs"], strict=True)
        assert score == pytest.approx(sum(math.log((math.exp(p) + math.exp(q)) / 2) for p, q in pairs), abs=1e-3)
    some = LOW[:9]
    for how in (
        {},
        {"kind": "greedy"},
        {"kind": "sample"},
        {"include": "BIRD"},
        {"prefix": "THE "},
        {"exclude": "THE"},
    ):
        found = both.predict(some, **how)
        assert found == both.predict(some, batch=4, **how)
        record = both.predict(some[4], details=True, **how)
        assert record["text"] == found[4]
        assert sum(record["logprobs"][record["given"] :]) == pytest.approx(record["logprob"], abs=1e-3)
    assert both.look(LOW[0]).cross().dim() == 2
    (runs / "few").write_text("\n".join(some) + "\n")
    assert main(["predict", f"{runs}/a,{runs}/b", str(runs / "few"), "decode.kind=greedy"]) == 0
    assert capsys.readouterr().out.splitlines() == both.predict(some, kind="greedy")
    for names, sentence in (
        (f"{runs}/a,{runs}/c", f"{runs}/a and {runs}/c have different source vocabularies"),
        (f"{runs}/a,{runs}/none", f"{runs}/none does not exist"),
        (f"{runs}/a,", "has nothing on one side of a comma"),
    ):
        assert main(["predict", names, str(runs / "low")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert sentence in line


def test_details(predictor):
    records = predictor.predict(LOW[:8], details=True, nbest=3)
    for text, record in zip(LOW, records, strict=False):
        assert len(record["nbest"]) == 3 and all(record[key] == value for key, value in record["nbest"][0].items())
        for each in record["nbest"]:
            assert len(each["logprobs"]) == len(each["tokens"]) + (each["finish"] == "end")
            assert len(each["alignment"]["positions"]) == len(each["tokens"])
            assert sum(each["logprobs"]) == pytest.approx(each["logprob"], abs=1e-3)
            words = each["alignment"]["words"]
            assert words == sorted(words) and words
            for i, j in words:
                assert 0 <= i < len(text.split()) and 0 <= j < len(each["text"].split())
    alone = [predictor.predict(text, details=True, nbest=3) for text in LOW[:8]]
    assert [record["alignment"] for record in records] == [record["alignment"] for record in alone]
    json.dumps(records)


def test_long_texts_are_split_on_request(predictor):
    long = " ".join(text.capitalize() for text in LOW[:4])
    parts = predictor.predict([text.capitalize() for text in LOW[:4]])
    assert predictor.predict(long, split=True) == " ".join(parts)
    assert predictor.predict(long) != " ".join(parts)
    assert predictor.predict(["", " \n", LOW[0]], split=True) == ["", "", predictor.predict(LOW[0])]
    record = predictor.predict(long, split=True, details=True)
    assert record["text"] == " ".join(parts) and [each["text"] for each in record["sentences"]] == parts
    assert sum(record["logprobs"]) == pytest.approx(record["logprob"], abs=1e-3)
    whole, words = record["alignment"], record["alignment"]["words"]
    assert len(whole["positions"]) == len(record["tokens"]) and max(whole["positions"]) < len(whole["source"])
    assert all(i < len(long.split()) and j < len(record["text"].split()) for i, j in words)
    one, two = record["sentences"][:2]
    shifted = whole["positions"][len(one["tokens"]) :][: len(two["tokens"])]
    assert shifted == [len(one["alignment"]["source"]) + i for i in two["alignment"]["positions"]]
    assert max(j for _, j in words) == len(record["text"].split()) - 1
    prefixed = predictor.predict(long, split=True, prefix="NEVER ")
    assert prefixed.startswith("NEVER ") and prefixed.endswith(parts[3])
    assert predictor.predict("", split=True, details=True)["text"] == ""


@pytest.mark.parametrize(
    "how, sentence",
    [
        ({"kind": "sample", "temperature": 0}, "decode.strategy.temperature is 0; expected more than 0"),
        ({"kind": "sample", "temperature": -1.5}, "decode.strategy.temperature is -1.5; expected more than 0"),
        ({"kind": "sample", "temperature": math.nan}, "decode.strategy.temperature is nan; expected a number"),
        ({"temperature": 0.5}, "decode.strategy.temperature does not belong to decode.strategy=beam, which has size, n, "),
        ({"kind": "greedy", "top_k": 5}, "decode.strategy.top_k does not belong to decode.strategy=greedy, which has length_penalty"),
        ({"kind": "sample", "top_p": 0}, "decode.strategy.top_p is 0; expected more than 0"),
        ({"kind": "sample", "top_p": 1.5}, "decode.strategy.top_p is 1.5; expected at most 1"),
        ({"beam": 0}, "decode.strategy.size is 0; expected at least 1"),
        ({"length_penalty": 1e30}, "decode.strategy.length_penalty is 1e+30; expected at most 10"),
        ({"length_penalty": -1e30}, "decode.strategy.length_penalty is -1e+30; expected at least -10"),
        ({"nbest": 6}, "decode.strategy.n is 6, above decode.strategy.size=5; raise the size"),
        ({"nbest": 2, "split": True}, "decode.strategy.n is 2 but decode.split_sentences joins one"),
        ({"include": ["A LONG PHRASE"], "max_tokens": 5}, "decode.include takes "),
        ({"include": ["THE RED CAT"], "exclude": ["RED"]}, "decode.include 'THE RED CAT' contains 'RED', which decode.exclude forbids"),
        ({"prefix": "THE RED", "exclude": ["HE R"]}, "decode.prefix 'THE RED' contains 'HE R', which decode.exclude forbids"),
        ({"include": ["A"], "kind": "greedy"}, "decode.include needs beam search but decode.strategy is greedy"),
        ({"include": [["A"], []], "kind": "sample"}, "decode.include needs beam search but decode.strategy is sample"),
        ({"include": ["A"], "split": True}, "decode.include and decode.split_sentences cannot be combined"),
        ({"include": ["A", " "]}, "decode.include: it has an empty phrase"),
        ({"include": [["A"]]}, "decode.include has 1 entries for 2 texts"),
        ({"include": [["A"], [3]]}, "decode.include has the entry [3]; expected text"),
        ({"prefix": ["A"]}, "decode.prefix has 1 entries for 2 texts"),
        ({"prefix": ["A", None]}, "decode.prefix has the entry None; expected text"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_decode_settings(predictor, how, sentence):
    with pytest.raises(UserError) as error:
        predictor.predict(LOW[:2], **how)
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


def test_phrases_outside_the_vocabulary(tmp_path, runs):
    settings = {"data.train": f"{runs}/low,{runs}/up", "model.size": "tiny", "model.width": 32, "train.steps": 1}
    for kind, how in (("char", {"include": "Ж"}), ("word", {"prefix": "Zürich"})):
        small = regard.train(
            "translate", settings | {"tokenizer.kind": kind, "train.tensorboard": False}, out=tmp_path / kind
        )
        with pytest.raises(UserError, match="the target's vocabulary cannot spell all of .*; use another text"):
            small.predict(LOW[0], **how)
        assert "BIRD THE" in small.predict(LOW[0], include="BIRD THE") and "BIRD" not in small.predict(
            LOW[0], exclude=["BIRD", "Ж"]
        )
        assert small.predict(LOW[0], prefix="THE ").startswith("THE ")


# --- graphed steps read a prompt of one token as a regular step ----------------------------------------

ONE_TOKEN_PROMPTS = {
    "transformer": {}, "rnn": {}, "cnn": {}, "t5": {},
    "gpt": {}, "xl": {"memory": 6}, "lm": {}, "modern": {"family": "gpt", "size": "modern-tiny", "key_heads": 2},
    "window": {"family": "gpt", "attention": {"kind": "window", "radius": 3}, "positions": {"kind": "sinusoid"}},
    "favor": {"family": "lm", "attention": {"kind": "favor", "features": 8}},
}  # fmt: skip


@pytest.mark.parametrize("how", [(1, 1, "first"), (4, 2, "exact"), (3, 3, "heuristic")], ids=["greedy", "exact", "top"])
@pytest.mark.parametrize("name", ONE_TOKEN_PROMPTS)
@torch.no_grad()
def test_one_token_prompt_as_a_step(name, how, monkeypatch):
    shape = dict(ONE_TOKEN_PROMPTS[name])
    module = family_of(shape.pop("family", name))
    torch.manual_seed(0)
    config = module.Config(**module.SIZES["tiny"] | {"vocab": 37, "width": 16, "heads": 4, "layers": 2} | shape)
    model, rows, (beam, nbest, stop) = module.Model(config).eval(), 6, how
    for each in model.parameters():
        each.data = each.data * 3
    source, limits = torch.randint(3, 37, (rows, 5)), torch.tensor([9, 4, 7, 12, 3, 6])
    reads = hasattr(model, "encode")
    settings, found = SearchSettings(2, beam, 1.0, nbest, stop, (Suppress([0, 1]),)), []
    for as_step in (False, True):
        monkeypatch.setattr(EagerStep, "prompt_as_step", as_step)
        for capacity in (None, 24):
            cache = model.start(inputs(source) if reads else None, rows, capacity)
            first = torch.arange(3, 3 + rows)[:, None]
            found.append(
                [[(x.tokens, x.ended) for x in best] for best in run_search(model, cache, first, limits, settings)]
            )
    assert found[0] == found[1] == found[2] == found[3]
    assert len({len(best[0][0]) for best in found[0]}) > 2 and len({str(best) for best in found[0]}) == rows


def test_first_token_filters_need_a_prompt_step():
    def prompt_as_step(*filters: Filter) -> bool:
        return BeamSearch(SearchSettings(2, 3, filters=filters), CacheBundle([]), torch.tensor([5])).prompt_as_step

    assert prompt_as_step() and prompt_as_step(Suppress([0]))
    assert not prompt_as_step(Suppress([0]), FirstToken(torch.tensor([True]), torch.ones(9) > 0))


def test_phrases_that_encode_to_nothing(tmp_path, runs):
    settings = {"data.train": f"{runs}/low,{runs}/up", "model.size": "tiny", "model.width": 32, "train.steps": 1}
    settings |= {"tokenizer.kind": "wordpiece", "tokenizer.vocab": 300, "train.tensorboard": False}
    small = regard.train("translate", settings, out=tmp_path / "run")
    for name in ("include", "exclude"):
        with pytest.raises(UserError, match=f"decode.{name}: nothing is left of '.u200b' in the target's vocabulary"):
            small.predict(LOW[0], **{name: "\u200b"})


def test_learned_positions_limit_the_length(tmp_path, runs):
    """Longer inputs are refused or, in training, left out; an output ends at the last position."""
    settings = {
        "data.train": f"{runs}/low,{runs}/up", "model.size": "tiny", "model.width": 32, "train.steps": 3, "tokenizer.kind": "byte",
        "model.positions": "learned", "model.positions.tokens": 40, "train.tensorboard": False, "train.tokens": 800,
    }  # fmt: skip
    small = regard.train("translate", settings, out=tmp_path / "run")
    short, long = "a cat", "a cat sees " * 9
    for how in ({"kind": "greedy"}, {}, {"prefix": "THE CAT"}):
        found = small.predict(short, max_tokens=99, details=True, **how)
        assert found["finish"] == "end" or len(found["tokens"]) == 39
    for refused in (lambda: small.predict(long), lambda: small.score(short, long), lambda: small.look(long)):
        with pytest.raises(UserError, match="a text has 100 tokens with END and the model has 40 positions"):
            refused()
    (tmp_path / "long").write_text(f"{long}\n")
    valid = {"data.valid": f"{tmp_path}/long,{tmp_path}/long"}
    with pytest.raises(UserError, match="a text of data.valid has 100 tokens with END"):
        regard.train("translate", settings | valid, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(UserError, match="decode.prefix with one more token has 101 tokens with END"):
        small.predict(short, prefix=long.strip() + "s")


def test_validation_of_a_sampling_run_is_greedy(tmp_path, runs):
    """With any sampling settings, also after a conversion."""
    settings = {
        "data.train": f"{runs}/low,{runs}/up", "data.valid": f"{runs}/low,{runs}/up", "model.size": "tiny", "model.width": 32,
        "train.steps": 2, "train.metric": "bleu", "train.tensorboard": False, "decode.kind": "sample", "decode.temperature": 0.8,
        "decode.top_k": 9, "decode.top_p": 0.9, "decode.min_p": 0.1, "decode.max_tokens": 9,
    }  # fmt: skip
    sampling = regard.train("translate", settings, out=tmp_path / "run")
    regard.convert(tmp_path / "run", to="huggingface", out=tmp_path / "folder")
    again = regard.load(tmp_path / "folder")
    assert again.run.decode == sampling.run.decode.model_copy(update={"batch": again.run.decode.batch})
    assert again.predict(LOW) == sampling.predict(LOW)
