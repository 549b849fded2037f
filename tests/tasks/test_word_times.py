"""Which heads follow a recording, where the model does not tell."""

import torch

from regard.tasks.whisper.word_times import align_tokens, alignment_weights

TOKENS, POSITIONS = 6, 60


def following(spread: float) -> torch.Tensor:
    """Weights of a head that follows the recording, ten positions a token."""
    centers = torch.arange(TOKENS)[:, None] * 10 + 4.5
    return (-((torch.arange(POSITIONS) - centers) ** 2) / spread).softmax(1)


def test_heads_that_follow_the_recording_are_found() -> None:
    torch.manual_seed(1)
    scattered = torch.randn(3, TOKENS, POSITIONS).mul(3).softmax(2)
    layers = [torch.stack([scattered[0], following(9.0)]), torch.stack([following(30.0), scattered[1]])]
    found = alignment_weights(layers, ())
    assert torch.equal(found, torch.stack([following(9.0), following(30.0)]))
    spans = align_tokens(found)
    assert len(spans) == TOKENS - 1 and all(abs(first - 10 * i) <= 1 for i, (first, _) in enumerate(spans))
    assert torch.equal(alignment_weights(layers, [(1, 1)]), scattered[1:2])


def test_of_an_odd_number_of_heads_the_larger_half_is_kept() -> None:
    weights = torch.stack([following(9.0), following(20.0), following(40.0)])
    assert torch.equal(alignment_weights([weights], ()), weights[:2])


def test_silence_before_the_first_token_belongs_to_none() -> None:
    silent = torch.cat([torch.full((TOKENS, 20), 1e-4), following(9.0)], 1)[None]
    spans = align_tokens(silent / silent.sum(2, keepdim=True))
    assert 20 <= spans[0][0] <= 24 and spans[0][1] >= 28
