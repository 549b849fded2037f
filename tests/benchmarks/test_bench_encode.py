"""`regard bench encode`: every program has its row, the peer its best batches, and what is not equal is not timed."""

import json
import time

import pytest
import torch

from benchmarks import bench, encode
from benchmarks.__main__ import main
from regard.errors import UserError

CPU = torch.device("cpu")


def test_encode(capsys):
    assert main(["encode", "--device", "cpu", "--size", "tiny", "--rounds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bench"], found["size"], found["rounds"], found["notes"]) == ("encode", "tiny", 2, [])
    assert [section["name"] for section in found["sections"]] == ["fp32", "bf16"]
    for section, ours in zip(found["sections"], (["regard fp32"], ["regard bf16", "regard int8"]), strict=True):
        names = [way["name"] for way in section["ways"]]
        assert names[: len(ours)] == ours == [way["name"] for way in section["ways"] if way["ours"]]
        peers = names[len(ours) :]
        assert peers[-1] == f"HF {section['name']}, 32 texts a batch"
        assert peers[0] in {f"HF {section['name']}, {cut} a batch" for cut in ("8 texts", "256 tokens")}
        assert all(len(way["rates"]) == 2 and way["median"] > 0 for way in section["ways"])
        assert sum("vectors apart by" in fact for fact in section["facts"]) == len(names)
        assert any("padding with the first" in fact for fact in section["facts"])
        best = next(fact for fact in section["facts"] if "tried once" in fact)
        assert peers[0].removeprefix(f"HF {section['name']}, ").removesuffix(" a batch") in best.split(":")[1][:12]


def test_what_is_not_equal_is_not_timed(monkeypatch):
    def worse(self, model, texts, cut):
        vectors = padded(self, model, texts, cut).clone()
        vectors[3, 5] += 2e-5
        return vectors

    padded = encode.Bench.padded
    monkeypatch.setattr(encode.Bench, "padded", worse)
    monkeypatch.setattr(encode.Bench, "best", lambda self, theirs: (encode.USUAL, ""))
    with pytest.raises(UserError, match=r"HF fp32, 32 texts a batch gave vectors that are 2.* so nothing was timed"):
        bench("encode", "cpu", "tiny", 1, "fp32")


def test_vectors_that_are_no_numbers_are_not_equal():
    it = encode.Bench.__new__(encode.Bench)
    it.exact = torch.ones(2, 3)
    with pytest.raises(UserError, match="HF gave vectors that are nan apart"):
        it.compare("HF", torch.full((2, 3), torch.nan), True)


def test_texts_have_the_lengths_they_should():
    plan = encode.planned("base", CPU)
    texts = encode.made(plan)
    lengths = [len(text.split()) + 2 for text in texts]
    assert len(texts) == 512 and min(lengths) >= 4 and max(lengths) == 200 and 28 < sum(lengths) / 512 < 34
    assert texts == encode.made(plan)


def test_batches_are_cut_by_texts_or_by_tokens():
    assert encode.Cut(rows=2).batches([3, 9, 5]) == [[1, 2], [0]]
    assert encode.Cut(tokens=11).batches([3, 9, 5]) == [[1], [2, 0]]
    assert str(encode.Cut(tokens=1024)) == "1,024 tokens"


def test_a_missing_peer_is_a_row_less(monkeypatch):
    monkeypatch.setattr(encode, "installed", lambda package, notes: notes.append(f"{package} is not there"))
    monkeypatch.setattr(encode.Bench, "compare", lambda self, name, vectors, equal: lengths.append(vectors.norm(dim=1)))
    lengths = []
    report = bench("encode", "cpu", "tiny", 1, "bf16")
    assert len(lengths) == 2 and all((each - 1).abs().max() < 1e-5 for each in lengths)
    assert [*report.sections[0].rates] == ["regard bf16", "regard int8"] and report.notes == [
        "transformers is not there"
    ]


@pytest.mark.parametrize("slow", [True, False])
def test_the_peer_is_timed_with_the_batches_that_suit_it_best(slow):
    """Here it either cannot stand batches of 8 texts, or any others."""
    plan = encode.planned("tiny", CPU)
    text, texts = encode.tokenizer(plan.vocab), encode.made(plan)
    it = encode.Bench.__new__(encode.Bench)
    it.plan, it.device, it.texts, it.lengths = plan, CPU, texts, [len(row) for row in encode.between(text, texts)]
    best, told = it.best(lambda cut: lambda some: time.sleep(0.1 if (len(some) == 8) == slow else 0.001))
    assert best == plan.cuts[slow] and f"tried once): {best}" in told
    assert it.tokens([[0, 1], [2]]) == 2 * max(it.lengths[:2]) + it.lengths[2]
