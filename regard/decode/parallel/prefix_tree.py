"""Scores of several targets of a source whose equal prefixes are read once.

A row is a tree: each node is a token that follows those of its ancestors, and node 0 is START. Attention follows the
ancestors (`Mask.beam_ancestry`), so that a causal decoder computes for a node what it computes after the same prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ...families.protocols import Seq2SeqModel
from ...parts import Attention, SequenceMixer
from ...parts.inputs import Inputs
from ...parts.masks import DENSE
from .decoding import source_inputs


@dataclass(frozen=True, eq=False)
class PrefixTrees:
    """The targets of each source as a tree. Padding has itself as its only ancestor."""

    tokens: Tensor  # (rows, nodes)
    depths: Tensor  # (rows, nodes)
    parents: Tensor  # (rows, nodes): of START itself
    valid: Tensor  # (rows, nodes)
    ancestry: Tensor  # (rows, nodes, nodes) bool: the ancestors of each node and itself
    rows: Tensor  # (targets,)
    leaves: Tensor  # (targets,): the last node of each target, in its row

    @staticmethod
    def of(targets: Sequence[Sequence[int]], numbers: Sequence[int], start: int) -> "PrefixTrees":
        """`numbers` are the rows of the targets, which have neither START nor END."""
        rows: list[dict[tuple[int, int], int]] = [{} for _ in range(max(numbers) + 1)]  # (parent, token) -> node
        leaves = []
        for number, target in zip(numbers, targets, strict=True):
            nodes, node = rows[number], 0
            for token in target:
                node = nodes.setdefault((node, token), len(nodes) + 1)
            leaves.append(node)
        shape = len(rows), max(map(len, rows)) + 1
        tokens, depths, parents = np.full(shape, start), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        valid, ancestry = np.zeros(shape, bool), np.tile(np.eye(shape[1], dtype=bool), (shape[0], 1, 1))
        for row, nodes in enumerate(rows):
            valid[row, : len(nodes) + 1] = True
            for (parent, token), node in nodes.items():  # parents come before their children
                tokens[row, node], depths[row, node], parents[row, node] = token, depths[row, parent] + 1, parent
                ancestry[row, node] |= ancestry[row, parent]
        arrays = tokens, depths, parents, valid, ancestry, np.array(numbers), np.array(leaves)
        return PrefixTrees(*map(torch.from_numpy, arrays))


def tree_logprobs(model: Seq2SeqModel, source: tuple[Tensor, Tensor], trees: PrefixTrees, end: int) -> Tensor:
    """Σ log p of the targets (targets,), including END, by an autoregressive model on a CPU."""
    encoded = model.encode(source_inputs(*source))
    inputs = Inputs("tokens", trees.tokens, positions=trees.depths, ancestry=trees.ancestry)
    table = model.logits(model.decode(inputs, encoded)[trees.valid]).float().log_softmax(-1)
    places = trees.valid.flatten().cumsum(0).view_as(trees.tokens) - 1
    parents = places.gather(1, trees.parents)  # the rows of the table that predict each node
    steps = table[parents, trees.tokens]
    steps[:, 0] = 0.0  # START is given
    sums = (trees.ancestry.to(steps.dtype) @ steps[..., None])[..., 0]
    last = places[trees.rows, trees.leaves]
    return sums[trees.rows, trees.leaves] + table[last, end]


def reads_trees(model: nn.Module) -> bool:
    """True if only attention that can follow ancestors moves information between tokens."""
    mixers = [part for part in model.modules() if isinstance(part, SequenceMixer)]
    return all(isinstance(part, Attention) and tuple(part.kernel.honors) == DENSE for part in mixers)
