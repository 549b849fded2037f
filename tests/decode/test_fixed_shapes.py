"""Decoding of all tokens at once by functions of fixed shapes, which a GPU replays as graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import small

import regard
from regard.config.strategies import MaskPredict
from regard.decode.engine.fixed_shapes import bucket
from regard.decode.parallel import decoding as parallel
from regard.families import cmlm, nat, nat_ctc, transformer
from regard.tasks.parallel.teacher import candidate_scores

TEXTS = ["the cat sleeps.", "a dog", "one two three four five six seven", "x"]
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_buckets_are_few_and_close() -> None:
    sizes = range(1, 600)
    found = [bucket(size, CUDA) for size in sizes]
    assert all(size <= own < max(2 * size, 9) for size, own in zip(sizes, found, strict=True))
    assert len(set(found)) < 20 and found == sorted(found)
    assert [bucket(size, CPU) for size in (1, 9, 70)] == [1, 9, 70]


@pytest.fixture(scope="module")
def runs() -> dict[str, Path]:
    return {
        "teacher": small.translator(),
        "nat": small.translator(model__family="nat", decode__kind="argmax"),
        "cmlm": small.translator(model__family="cmlm", decode__kind="mask-predict"),
    }


def test_padding_to_buckets_changes_no_text(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("nat", {}),
        ("nat", {"kind": "average"}),
        ("nat", {"kind": "npd", "samples": 6, "teacher": str(runs["teacher"])}),
        ("cmlm", {"iterations": 3, "length_beam": 2}),
    ]
    before = [regard.load(runs[name]).predict(TEXTS, details=True, **decode) for name, decode in cases]
    monkeypatch.setattr(parallel, "bucket", lambda size, device: bucket(size, CUDA))
    for (name, decode), wanted in zip(cases, before, strict=True):
        found = regard.load(runs[name]).predict(TEXTS, details=True, **decode)
        assert [each["text"] for each in found] == [each["text"] for each in wanted]
        assert [each["score"] for each in found] == pytest.approx([each["score"] for each in wanted], abs=1e-4)


def test_equal_samples_are_written_once() -> None:
    kept, places = parallel.distinct_rows(torch.tensor([[1, 0], [1, 0], [2, 0], [1, 0]]), samples=2)
    assert kept.tolist() == [0, 2, 3] and places.tolist() == [0, 0, 1, 2]


def test_candidates_are_scored_as_known_targets(runs: dict[str, Path]) -> None:
    teacher = regard.load(runs["teacher"])
    pairs = [(0, "THE CAT"), (1, "A"), (0, ""), (2, "ONE TWO THREE FOUR")]
    found = candidate_scores(teacher, TEXTS[:3], pairs, 0.7)
    logprobs = teacher.score([TEXTS[number] for number, _ in pairs], [target for _, target in pairs])
    lengths = [len(teacher.target.encode([target])[0]) + 1 for _, target in pairs]
    wanted = [logprob / length**0.7 for logprob, length in zip(logprobs, lengths, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("kind", ["argmax", "average", "npd", "path", "mask-predict", "teacher"])
def test_functions_of_fixed_shapes_never_wait_for_the_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors without storage, an operation that needs a value raises. Only the longest length is given."""
    small_model: dict[str, Any] = {"vocab": 50, "width": 32, "heads": 2, "layers": 1, "inner": 32}
    monkeypatch.setattr(parallel, "int", lambda value: 10, raising=False)
    with torch.device("meta"), torch.no_grad():
        source = torch.zeros(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.bool)
        limits, hidden = torch.full((2,), 9), torch.tensor([0, 1])
        if kind == "mask-predict":
            infill = cmlm.Model(cmlm.Config(**small_model, max_length=20)).eval()
            found = parallel.decode_mask_predict(infill, source, limits, hidden, 0, MaskPredict(4, 3))
            assert found.tokens.shape == (6, 16)
        elif kind == "path":
            speller = nat_ctc.Model(nat_ctc.Config(**small_model)).eval()
            assert parallel.decode_ctc_path(speller, source, hidden).tokens.shape == (2, 24)
        elif kind == "teacher":
            model = transformer.Model(transformer.Config(**small_model)).eval()
            assert parallel.target_logprobs(model, source, [0] * 5, [[1, 4, 2]] * 5).shape == (5,)
        else:
            fertile = nat.Model(nat.Config(**small_model)).eval()
            keys = torch.zeros(2, 4, dtype=torch.long) if kind == "npd" else None
            found = parallel.decode_fertilities(fertile, source, limits, hidden, kind == "average", keys)
            assert found.tokens.shape == (2 if keys is None else 8, 16)
