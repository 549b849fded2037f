"""CTC: loss, alignment and prefix scores equal an enumeration of all paths."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.parts.ctc import PrefixScorer, best_path, ctc_fits, ctc_loss, force_align

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
