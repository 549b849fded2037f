"""Targets that share prefixes have the scores that they have as rows."""

from typing import Any

import pytest
import torch
from helpers import small

import regard
from regard.decode.parallel.decoding import target_logprobs
from regard.decode.parallel.prefix_tree import PrefixTrees, reads_trees, tree_logprobs
from regard.families import cnn, rnn, t5, transformer
from regard.parts import Inputs
from regard.tasks.parallel import teacher

START, END = 1, 2
TARGETS = [[5, 6, 7, 8], [5, 6, 9], [5, 6], [], [5, 6, 7, 8], [6, 6, 6, 6, 6], [4]]
NUMBERS = [0, 0, 0, 0, 0, 1, 1]
SMALL = {"vocab": 11, "width": 16, "heads": 2, "layers": 2, "inner": 16}
CASES: dict[str, Any] = {
    kind: transformer.Model(transformer.Config(**SMALL, positions={"kind": kind}))
    for kind in ("sinusoid", "learned", "rotary", "buckets")
} | {
    "additive": transformer.Model(transformer.Config(**SMALL, attention={"kind": "additive"})),
    "t5": t5.Model(t5.Config(**SMALL)),
}


def test_nodes_are_distinct_prefixes() -> None:
    trees = PrefixTrees.of(TARGETS, NUMBERS, START)
    assert trees.valid.sum(1).tolist() == [6, 7]  # START, 5, 6, 7, 8, 9 and START, five times 6, 4
    assert trees.tokens[0, :6].tolist() == [START, 5, 6, 7, 8, 9] and trees.depths[0, :6].tolist() == [0, 1, 2, 3, 4, 3]
    assert trees.leaves.tolist() == [4, 5, 2, 0, 4, 5, 6] and trees.rows.tolist() == NUMBERS
    assert trees.ancestry[0, 5].nonzero()[:, 0].tolist() == [0, 1, 2, 5]
    assert trees.ancestry[0, 6].nonzero()[:, 0].tolist() == [6]  # padding


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_trees_equal_rows(name: str) -> None:
    model = CASES[name].eval()
    assert reads_trees(model)
    values = torch.tensor([[3, 4, 5, 2], [6, 2, 0, 0]])
    source, rows = (values, values != 0), [[START, *target, END] for target in TARGETS]
    wanted = target_logprobs(model, source, NUMBERS, rows)
    alone = [  # token by token
        model.logits(
            model.decode(
                Inputs("tokens", torch.tensor([row[:-1]])),
                model.encode(Inputs("tokens", values[number : number + 1, : (4, 2)[number]])),
            )
        )[0]
        .log_softmax(-1)
        .gather(1, torch.tensor(row[1:])[:, None])
        .sum()
        for row, number in zip(rows, NUMBERS, strict=True)
    ]
    assert torch.allclose(wanted, torch.stack(alone), atol=1e-4)
    found = tree_logprobs(model, source, PrefixTrees.of(TARGETS, NUMBERS, START), END)
    assert torch.allclose(found, wanted, atol=1e-4)


def test_recurrences_and_convolutions_read_rows() -> None:
    for family in (rnn, cnn):
        assert not reads_trees(family.Model(family.Config(vocab=11, width=16, layers=1, head="target")))


def test_candidates_have_the_scores_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = regard.load(small.translator())
    candidates = [(0, "A B"), (0, "A C"), (1, "A B")]
    wanted = predictor.score(["a b", "a b", "c"], ["A B", "A C", "A B"])
    for trees in (True, False):
        monkeypatch.setattr(teacher, "reads_trees", lambda model, trees=trees: trees)
        found = teacher.candidate_scores(predictor, ["a b", "c"], candidates, 0.0)
        assert found == pytest.approx(wanted, abs=1e-4)
