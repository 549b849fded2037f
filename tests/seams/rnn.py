"""GRU encoder-decoder with additive attention (1409.0473): what the Transformer replaced, behind the same verbs."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.parts import Additive, Attention, Cache, Cross, Mask, Memory


class State(Memory):
    def __init__(self, now: Tensor) -> None:
        self.now = now  # (rows · beams, width)


class RNN(nn.Module):
    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.reader = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.bridge, self.attention = nn.Linear(width, width), Attention(width, 1, Additive(width))
        self.cell, self.head = nn.GRUCell(2 * width, width), nn.Linear(2 * width, vocab)

    def encode(self, source: Tensor, mask: Mask = Mask()) -> Tensor:
        x = self.embed(source)
        lengths = torch.full((len(x),), x.size(1)) if mask.keys is None else mask.keys.sum(1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.reader(packed)[0], batch_first=True, total_length=x.size(1))[0]

    def start(self, source: Tensor, mask: Mask = Mask(), capacity: int | None = None) -> Cache:
        memory = self.encode(source, mask)
        cache = Cache(len(source), source.device, [State(torch.tanh(self.bridge(memory[:, 0])))])
        cache.cross = Cross(None, mask, memories=(self.attention.remember(memory),))
        return cache

    def step(self, tokens: Tensor, cache: Cache, real: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)  # (rows, tokens or beams, width)
        cache.open(cache.ahead(tokens, real))
        if cache.beams:
            return self._move(x, cache, None)
        each = [self._move(x[:, t : t + 1], cache, None if real is None else real[:, t]) for t in range(x.size(1))]
        return torch.cat(each, 1)  # (rows, tokens, vocab)

    def _move(self, x: Tensor, cache: Cache, real: Tensor | None) -> Tensor:
        """One step of every state; x (rows, 1 or beams, width)."""
        state, cross = cache.layers[0], cache.cross
        seen = self.attention(state.now.view_as(x), None, None, cross.mask, memory=cross.memories[0])
        new = self.cell(torch.cat([x, seen], -1).flatten(0, 1), state.now)
        state.now = new if real is None else torch.where(real[:, None], new, state.now)
        return self.head(torch.cat([new.view_as(x), seen], -1))

    def forward(self, source: Tensor, target: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.step(target, self.start(source, mask))  # teacher forcing is one long step
