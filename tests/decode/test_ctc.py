"""CTC: loss, alignment, prefix scores and joint search equal an enumeration of all paths."""

import itertools
import math

import pytest
import torch
from helpers.generation import WithCTC
from helpers.inputs import inputs
from prototypes.checks import loud
from torch import Tensor
from torch.nn import functional as F

from regard.config.strategies import DecodeStrategy
from regard.decode import (
    Beam,
    Generator,
    Greedy,
    Hypothesis,
    JointCTC,
    SearchRequest,
    SearchSettings,
    Suppress,
    run_search,
)
from regard.families import transformer
from regard.parts import Encoded, Inputs
from regard.parts.parallel.ctc import PrefixScorer, best_path, ctc_fits, ctc_loss, force_align

BLANK, START, END = 0, 1, 2
VOCAB = 6  # labels 3, 4, 5
LABELS = range(3, VOCAB)


def random_logits(*shape: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


def spelled(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK)


def all_paths(logprobs: Tensor, symbols: list[int]) -> dict[tuple[int, ...], float]:
    """log p of every path over logprobs (frames, vocab)."""
    table = logprobs.double().tolist()
    return {
        path: sum(table[frame][token] for frame, token in enumerate(path))
        for path in itertools.product(symbols, repeat=len(table))
    }


def all_texts(logprobs: Tensor, symbols: list[int]) -> dict[tuple[int, ...], float]:
    """log p of every text that a path spells."""
    found: dict[tuple[int, ...], float] = {}
    for path, logprob in all_paths(logprobs, symbols).items():
        text = spelled(path)
        found[text] = found.get(text, 0.0) + math.exp(logprob)
    return {text: math.log(total) for text, total in found.items()}


def label_logprobs(logits: Tensor) -> Tensor:
    """Log-probabilities without START and END, as the prefix scores have them."""
    return logits.double().index_fill(-1, torch.tensor([START, END]), -torch.inf).log_softmax(-1)


# --- the loss -----------------------------------------------------------------------------------------------------


def test_loss_equals_the_sum_over_all_paths():
    """Rows of different lengths, a text with equal neighbors, an empty one, and one that does not fit."""
    logits, frames = random_logits(4, 5, VOCAB), torch.tensor([5, 4, 3, 2])
    valid = torch.arange(5) < frames[:, None]
    targets = torch.tensor([[3, 3, 5], [4, 5, -1], [-1, -1, -1], [4, 4, -1]])
    lengths = torch.tensor([3, 2, 0, 2])
    wanted = 0.0
    for row in range(3):
        texts = all_texts(logits[row, : frames[row]].log_softmax(-1), list(range(VOCAB)))
        wanted -= texts[tuple(targets[row, : lengths[row]].tolist())]
    assert ctc_fits(frames, targets, lengths).tolist() == [True, True, True, False]
    assert ctc_loss(logits, valid, targets, lengths, BLANK).item() == pytest.approx(wanted, abs=1e-4)
    assert ctc_loss(logits.bfloat16(), valid, targets, lengths, BLANK).dtype == torch.float32


def test_loss_equals_torch():
    logits = random_logits(3, 20, 9).requires_grad_()
    targets, lengths = torch.randint(1, 9, (3, 8), generator=torch.Generator().manual_seed(1)), torch.tensor([8, 5, 2])
    loss = ctc_loss(logits, None, targets, lengths, BLANK)
    logprobs = logits.log_softmax(-1).transpose(0, 1)
    wanted = F.ctc_loss(logprobs, targets, torch.tensor([20] * 3), lengths, reduction="none").sum()
    assert loss.item() == pytest.approx(wanted.item())
    loss.backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and logits.grad.abs().max() > 0


# --- greedy decoding and alignment --------------------------------------------------------------------------------


def test_best_path():
    paths = [[0, 3, 3, 0, 3, 4, 4], [5, 5, 0, 0, 4, 4, 4], [0, 0, 0, 0, 0, 0, 0]]
    valid = torch.tensor([[True] * 7, [True] * 5 + [False] * 2, [True] * 7])
    logprobs = random_logits(3, 7, VOCAB, spread=1.0) + 9 * F.one_hot(torch.tensor(paths), VOCAB)
    logprobs = logprobs.log_softmax(-1)
    found = best_path(logprobs, valid, BLANK)
    assert [[span[:3] for span in row] for row in found] == [
        [(3, 1, 2), (3, 4, 4), (4, 5, 6)],
        [(5, 0, 1), (4, 4, 4)],
        [],
    ]
    assert found[0][0].logprob == pytest.approx(logprobs[0, 1:3, 3].mean().item())
    assert found[1][1].logprob == pytest.approx(logprobs[1, 4, 4].item())
    assert [row[0][:3] for row in best_path(logprobs[:1], None, BLANK)] == [(3, 1, 2)]


@pytest.mark.parametrize("tokens", [(), (3,), (4, 4), (3, 4, 3), (5, 5, 5)], ids=str)
def test_alignment_equals_exhaustive_search(tokens):
    for seed in range(4):
        logprobs = random_logits(6, VOCAB, seed=seed).log_softmax(-1)
        paths = {path: p for path, p in all_paths(logprobs, [0, 3, 4, 5]).items() if spelled(path) == tokens}
        best = max(paths, key=lambda path: paths[path])
        spans, logprob = force_align(logprobs, tokens, BLANK)
        frames = [list(group) for token, group in itertools.groupby(range(6), best.__getitem__) if token != BLANK]
        assert spans == [(group[0], group[-1]) for group in frames]
        assert logprob == pytest.approx(paths[best])


def test_alignment_refuses_too_few_frames():
    with pytest.raises(ValueError, match="3 tokens, 1 of them equal to the one before, need at least 4 frames; the in"):
        force_align(random_logits(3, VOCAB).log_softmax(-1), [3, 3, 4], BLANK)
    with pytest.raises(ValueError, match="exclude every path"):
        force_align(label_logprobs(random_logits(3, VOCAB)), [START], BLANK)


# --- prefix scores ------------------------------------------------------------------------------------------------


def prefix_score(texts: dict[tuple[int, ...], float], prefix: tuple[int, ...]) -> float:
    """log p of all texts that begin with the prefix."""
    total = sum(math.exp(logprob) for text, logprob in texts.items() if text[: len(prefix)] == prefix)
    return math.log(total) if total else -math.inf


def test_prefix_scores_equal_enumeration():
    """Every prefix up to three labels, in a batch of different lengths, with repeated labels."""
    frames = torch.tensor([5, 3, 4, 1])
    logits, valid = random_logits(4, 5, VOCAB), torch.arange(5) < frames[:, None]
    every = [all_texts(label_logprobs(logits[row, :count]), [0, *LABELS]) for row, count in enumerate(frames)]
    prefixes = [prefix for size in range(4) for prefix in itertools.product(LABELS, repeat=size)]
    scorer = PrefixScorer(logits, valid, BLANK, START, END)
    for prefix in prefixes:
        state = scorer.initial()
        for token in (START, *prefix):
            state = scorer.advance(state, torch.full((4, 1), token))
        scores = scorer.scores(state)[:, 0]
        assert not scores.isnan().any()
        for row, texts in enumerate(every):
            total = prefix_score(texts, prefix)
            assert state.logprob[row].item() == pytest.approx(total, abs=1e-12)
            if total == -math.inf:  # it can only end
                assert scores[row, END] == 0 and (scores[row] > -math.inf).sum() == 1
                continue
            assert scores[row, END].item() == pytest.approx(texts.get(prefix, -math.inf) - total, abs=1e-9)
            wanted = [prefix_score(texts, (*prefix, label)) - total for label in LABELS]
            assert scores[row, 3:].tolist() == pytest.approx(wanted, abs=1e-9)
            assert scores[row, [BLANK, START]].tolist() == [-math.inf] * 2
            assert scores[row].exp().sum().item() == pytest.approx(1.0, abs=1e-9)


def test_beams_and_invalid_tokens():
    """Several hypotheses of a row equal each alone; tokens that are not valid change nothing."""
    logits = random_logits(2, 6, VOCAB)
    scorer = PrefixScorer(logits, None, BLANK, START, END)
    texts = [(3, 3, 4), (5, 4, 5)]
    alone = []
    for text in texts:
        state = scorer.initial()
        for token in text:
            state = scorer.advance(state, torch.full((2, 1), token))
            state = scorer.advance(state, torch.full((2, 1), 4), torch.zeros(2, 1, dtype=torch.bool))
        alone.append(scorer.scores(state))
    both = scorer.initial()
    for tokens in zip(*texts, strict=True):
        both = scorer.advance(both, torch.tensor([tokens] * 2))
    assert torch.allclose(scorer.scores(both), torch.cat(alone, 1), atol=1e-12, rtol=0)


def loop_scores(logprobs: Tensor, text: list[int]) -> Tensor:
    """The scores after a text, frame by frame, as a plain loop in the log domain. logprobs (frames, vocab) float64."""
    frames, vocab = logprobs.shape
    nonblank = torch.full((frames + 1,), -torch.inf, dtype=torch.double)
    blank = F.pad(logprobs[:, BLANK].cumsum(0), (1, 0))
    last, total = START, torch.tensor(0.0, dtype=torch.double)
    for token in text:
        new, ended = torch.full_like(nonblank, -torch.inf), torch.full_like(blank, -torch.inf)
        before = blank if token == last else torch.logaddexp(nonblank, blank)
        total = (before[:-1] + logprobs[:, token]).logsumexp(0)
        for t in range(1, frames + 1):
            new[t] = torch.logaddexp(new[t - 1], before[t - 1]) + logprobs[t - 1, token]
            ended[t] = torch.logaddexp(new[t - 1], ended[t - 1]) + logprobs[t - 1, BLANK]
        nonblank, blank, last = new, ended, token
    paths = torch.logaddexp(nonblank, blank)
    scores = (paths[:-1, None] + logprobs).logsumexp(0)
    scores[last] = (blank[:-1] + logprobs[:, last]).logsumexp(0)
    scores[[BLANK, START]], scores[END] = -torch.inf, paths[-1]
    return scores - total


@pytest.mark.parametrize("spread", [0.0, 3.0, 20.0])
def test_long_inputs_equal_a_loop(spread):
    """1,500 frames, flat or with log-probabilities far below -50; distributions stay normalized."""
    logits = random_logits(1, 1500, VOCAB, spread=spread)
    logits[:, :, BLANK] += spread
    scorer, text = PrefixScorer(logits, None, BLANK, START, END), [3, 4, 4, 5]
    state = scorer.initial()
    for token in text:
        state = scorer.advance(state, torch.tensor([[token]]))
    scores, wanted = scorer.scores(state)[0, 0], loop_scores(label_logprobs(logits)[0], text)
    assert (scores - wanted)[2:].abs().max() < 1e-9
    assert abs(scores.exp().sum().item() - 1) < 1e-9


@pytest.mark.parametrize("kind", ["silent", "confident", "huge"])
def test_scores_of_extreme_inputs_are_finite(kind):
    """Certain blanks, certain labels, logits of ±1e4: no NaN, and every text that fits stays possible."""
    paths = [0] * 100 if kind == "silent" else ([3] * 3 + [0] * 2 + [4] * 5) * 10
    logits = F.one_hot(torch.tensor([paths]), VOCAB) * (1e4 if kind == "huge" else 100.0)
    scorer = PrefixScorer(logits.repeat(2, 1, 1), torch.arange(100) < torch.tensor([[100], [60]]), BLANK, START, END)
    state = scorer.initial()
    for token in [3, 4, 3, 3, 5, 5, 4, 3] * 5:
        state = scorer.advance(state, torch.full((2, 1), token))
        scores = scorer.scores(state)
        assert scores[:, :, END:].isfinite().all() and (scores <= 1e-9).all()
        assert (scores.exp().sum(-1) - 1).abs().max() < 1e-9


# --- joint search -------------------------------------------------------------------------------------------------

SOURCES = [[7, 9, 4, 8, 5], [6, 6, 7], [9, 3, 5, 4], [8], [5, 5, 9, 9, 4]]
LIMIT = 4
SUPPRESS = Suppress([BLANK, START])
EXACT = {"beam": 3**LIMIT, "nbest": 7, "filters": (SUPPRESS,)}


def joint_model(weight: float) -> JointCTC:
    torch.manual_seed(0)
    config = transformer.Config(vocab=10, target_vocab=VOCAB, width=16, heads=2, layers=1, inner=32, dropout=0.0)
    return JointCTC(loud(WithCTC(config), 2.0), weight, BLANK, START, END)


def batch(rows: list[list[int]]) -> Inputs:
    longest = max(map(len, rows))
    table = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return inputs(table, torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None])


def exhaustive(joint: JointCTC, row: list[int], alpha: float, prefix: tuple[int, ...] = ()) -> list[Hypothesis]:
    """Every possible text with its score, best first; `prefix` is given and does not count."""
    model, source = joint.model, batch([row])
    with torch.no_grad():
        encoded = model.encode(source)
        texts = all_texts(label_logprobs(model.ctc_logits(encoded))[0], [0, *LABELS])
        found, given = [], prefix_score(texts, prefix)
        for size in range(LIMIT + 1):
            bodies, ended = list(itertools.product(LABELS, repeat=size)), size < LIMIT
            written = torch.tensor([[*prefix, *body, *([END] * ended)] for body in bodies])
            repeated = Encoded(encoded.states.repeat(len(bodies), 1, 1))
            logits = model.logits(model.decode(inputs(F.pad(written, (1, 0), value=START)[:, :-1]), repeated))
            decoder = logits.log_softmax(-1).gather(2, written[:, :, None])[:, len(prefix) :].sum((1, 2)).tolist()
            for body, logprob in zip(bodies, decoder, strict=True):
                whole = (*prefix, *body)
                ctc = (texts.get(whole, -math.inf) if ended else prefix_score(texts, whole)) - given
                total = (1 - joint.weight) * logprob + (joint.weight * ctc if joint.weight else 0.0)
                if total > -math.inf:
                    found.append(Hypothesis(list(body), total / (size + ended) ** alpha, total, ended))
    return sorted(found, key=lambda each: -each.score)


def check_equal(found: list[Hypothesis], wanted: list[Hypothesis]) -> None:
    assert [(each.tokens, each.ended) for each in found] == [(each.tokens, each.ended) for each in wanted]
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted], abs=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.7, 1.0])
def test_joint_search_equals_exhaustive_search(weight, alpha):
    """A beam that holds every prefix: the n-best lists of a batch of different lengths."""
    joint, rows = joint_model(weight), len(SOURCES)
    with torch.no_grad():
        cache = joint.start(batch(SOURCES), rows)
    prompt, limits = torch.full((rows, 1), START), torch.full((rows,), LIMIT)
    found = run_search(joint, cache, prompt, limits, SearchSettings(END, length_penalty=alpha, **EXACT))
    for row, best in zip(SOURCES, found, strict=True):
        check_equal(best, exhaustive(joint, row, alpha)[:7])


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_joint_search_continues_prefixes(weight):
    """Prompts of different lengths, one with equal neighbors."""
    joint, prefixes = joint_model(weight), [(3,), (), (4, 4), (), (5,)]
    engine = Generator(joint, END, (SUPPRESS,))
    handles = [
        engine.submit(SearchRequest((START, *prefix), batch([row]), Beam(3**LIMIT, 7, 0.0), LIMIT))
        for row, prefix in zip(SOURCES, prefixes, strict=True)
    ]
    for handle, row, prefix in zip(handles, SOURCES, prefixes, strict=True):
        check_equal(handle.result(), exhaustive(joint, row, 0.0, prefix)[:7])


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3, 2), Beam(2, 2, 0.5, "heuristic")], ids=str)
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_joint_search_is_batch_invariant(weight, strategy: DecodeStrategy):
    """A request alone, in a closed batch, and in an open one that it joins later, also with fixed shapes."""
    joint = joint_model(weight)
    prompts = [(START, *[3, 5, 5][: i % 4]) for i in range(10)]
    requests = [SearchRequest(prompt, batch([SOURCES[i % 5]]), strategy, 3 + i) for i, prompt in enumerate(prompts)]
    alone = []
    for request in requests:
        engine = Generator(joint, END, (SUPPRESS,))
        alone.append(engine.submit(request).result())
    engine = Generator(joint, END, (SUPPRESS,))
    handles = [engine.submit(request) for request in requests]
    engine.drain()
    for fixed in (False, True):
        engine = Generator(joint, END, (SUPPRESS,), rows=12, capacity=32)
        engine._batch.fixed = fixed
        for request in sorted(requests, key=lambda each: each.length):  # later ones have more frames
            handles.append(engine.submit(request))
            engine.tick()
    for handle in handles:
        check_equal(handle.result(), alone[requests.index(handle.request)])


def test_the_encoder_runs_once_and_the_decoder_not_at_all():
    """Weight 1 never calls the decoder; weight 0 never calls CTC; the encoder runs once."""
    for weight, unused in ((0.0, "ctc"), (1.0, "decoder"), (0.5, None)):
        joint, calls = joint_model(weight), []
        joint.model.encoder.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        if unused is not None:
            delattr(joint.model, unused)
        Generator(joint, END, (SUPPRESS,)).submit(SearchRequest((START,), batch(SOURCES[:1]), Beam(2))).result()
        assert len(calls) == 1
    with pytest.raises(ValueError, match=r"the weight of CTC is 1\.5; expected 0 to 1"):
        joint_model(1.5)


def test_beams_share_the_probabilities():
    """Branching and reordering copy states and no probabilities, and keep the addresses of all tensors."""
    joint = joint_model(0.5)
    with torch.no_grad():
        cache = joint.start(batch(SOURCES), 5, 16)
        assert cache.fixed and cache.prefix is not None
        cache.branch(3, 8)
        joint.step(torch.full((5, 3), START), cache)
        scorer, state = cache.prefix.scorer, cache.prefix.state
        places = [getattr(owner, name).data_ptr() for owner in (scorer, state) for name in owner.NAMES]
        joint.step(torch.tensor([[3, 4, 5]] * 5), cache)
        cache.reorder(torch.tensor([[2, 2, 0]] * 5))
        scores = joint.step(torch.tensor([[3, 5, 3]] * 5), cache)
        assert places == [getattr(owner, name).data_ptr() for owner in (scorer, state) for name in owner.NAMES]
        assert scorer.probabilities.shape == (5, VOCAB, 5) and state.blank.shape == (5, 3, 6)
        for beam, text in enumerate([(5, 3), (5, 5), (3, 3)]):
            single = joint.start(batch(SOURCES), 5)
            wanted = joint.step(torch.tensor([[START, *text]] * 5), single)[:, -1]
            assert torch.allclose(scores[:, beam], wanted, atol=1e-4)
