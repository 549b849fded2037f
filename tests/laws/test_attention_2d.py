"""2-D attention: a map attends over time and over frequency, as written down channel by channel."""

import torch

from regard.parts.media.attention_2d import Attention2D


def plain_map(module: Attention2D, x: torch.Tensor) -> torch.Tensor:
    """The definition, for one map (channels, frames, bins) without padding."""
    normed = module.norm(x.permute(1, 2, 0)).permute(2, 0, 1)[None]
    q, k, v = (convolve(normed)[0] for convolve in (module.query, module.key, module.value))
    _, frames, bins = x.shape
    time = [torch.softmax(q[c] @ k[c].T / bins**0.5, -1) @ v[c] for c in range(len(x))]
    frequency = [(torch.softmax(q[c].T @ k[c] / frames**0.5, -1) @ v[c].T).T for c in range(len(x))]
    return x + module.out(torch.stack(time + frequency)[None])[0]


def test_definition_with_and_without_padding() -> None:
    torch.manual_seed(1)
    module, lengths = Attention2D(6), [9, 4, 1]
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # biases too
    maps = [torch.randn(6, length, 5) for length in lengths]
    valid = torch.arange(9) < torch.tensor(lengths)[:, None]
    padded = torch.stack([torch.nn.functional.pad(each, (0, 0, 0, 9 - each.size(1))) for each in maps])
    found = module(padded, valid)
    for row, own in enumerate(maps):
        wanted = plain_map(module, own)
        torch.testing.assert_close(found[row, :, : lengths[row]], wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(module(own[None])[0], wanted, rtol=1e-4, atol=1e-5)
        assert not found[row, :, lengths[row] :].any()


def test_rows_without_frames() -> None:
    module = Attention2D(4)
    x = torch.zeros(1, 4, 3, 5, requires_grad=True)
    module(x, torch.zeros(1, 3, dtype=torch.bool)).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_both_axes_learn() -> None:
    """Whether the pitches of two tones far apart in time are equal: a question for both axes at once."""
    torch.manual_seed(1)
    module, head = Attention2D(8), torch.nn.Linear(8, 2)
    lift = torch.nn.Conv2d(1, 8, 1)
    optimizer = torch.optim.Adam([*module.parameters(), *head.parameters(), *lift.parameters()], 1e-2)
    first, loss = 0.0, torch.tensor(0.0)
    for _ in range(150):
        x, pitch = torch.randn(32, 1, 12, 6) * 0.1, torch.randint(6, (32, 2))
        equal = torch.rand(32) < 0.5
        pitch[equal, 1] = pitch[equal, 0]
        for place, own in ((1, 0), (10, 1)):
            x[torch.arange(32), 0, place, pitch[:, own]] += 3
        labels = (pitch[:, 0] == pitch[:, 1]).long()
        loss = torch.nn.functional.cross_entropy(head(module(lift(x)).mean((2, 3))), labels)
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3 * first
