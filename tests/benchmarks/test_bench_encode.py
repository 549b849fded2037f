"""`python -m benchmarks encode`: a row per program, the best batch size of the peer, and checks of equality."""

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
        assert peers[0] in {f"HF {section['name']}, {batch_size} a batch" for batch_size in ("8 texts", "256 tokens")}
        assert all(len(way["rates"]) == 2 and way["median"] > 0 for way in section["ways"])
        assert sum("vectors differ by" in fact for fact in section["facts"]) == len(names)
        assert any("padding with the first" in fact for fact in section["facts"])
        best = next(fact for fact in section["facts"] if "tried once" in fact)
        assert peers[0].removeprefix(f"HF {section['name']}, ").removesuffix(" a batch") in best.split(":")[1][:12]


def test_different_vectors_are_not_timed(monkeypatch):
    def worse(self, model, texts, batch_size):
        vectors = padded(self, model, texts, batch_size).clone()
        vectors[3, 5] += 2e-5
        return vectors

    padded = encode.EncodeBenchmark.padded
    monkeypatch.setattr(encode.EncodeBenchmark, "padded", worse)
    monkeypatch.setattr(encode.EncodeBenchmark, "best", lambda self, theirs: (encode.USUAL, ""))
    with pytest.raises(
        UserError, match=r"HF fp32, 32 texts a batch gave vectors that differ by 2.* so nothing was timed"
    ):
        bench("encode", "cpu", "tiny", 1, "fp32")


def test_nan_vectors_are_not_equal():
    it = encode.EncodeBenchmark.__new__(encode.EncodeBenchmark)
    it.exact = torch.ones(2, 3)
    with pytest.raises(UserError, match="HF gave vectors that differ by nan"):
        it.compare("HF", torch.full((2, 3), torch.nan), True)


def test_length_distribution_of_texts():
    workload = encode.make_workload("base", CPU)
    texts = encode.random_texts(workload)
    lengths = [len(text.split()) + 2 for text in texts]
    assert len(texts) == 512 and min(lengths) >= 4 and max(lengths) == 200 and 28 < sum(lengths) / 512 < 34
    assert texts == encode.random_texts(workload)


def test_batch_sizes_in_texts_or_tokens():
    assert encode.BatchSize(rows=2).batches([3, 9, 5]) == [[1, 2], [0]]
    assert encode.BatchSize(tokens=11).batches([3, 9, 5]) == [[1], [2, 0]]
    assert str(encode.BatchSize(tokens=1024)) == "1,024 tokens"


def test_a_missing_peer_is_left_out(monkeypatch):
    monkeypatch.setattr(encode, "installed", lambda package, notes: notes.append(f"{package} is not there"))
    monkeypatch.setattr(
        encode.EncodeBenchmark, "compare", lambda self, name, vectors, equal: lengths.append(vectors.norm(dim=1))
    )
    lengths = []
    report = bench("encode", "cpu", "tiny", 1, "bf16")
    assert len(lengths) == 2 and all((each - 1).abs().max() < 1e-5 for each in lengths)
    assert [*report.sections[0].rates] == ["regard bf16", "regard int8"] and report.notes == [
        "transformers is not there"
    ]


@pytest.mark.parametrize("slow", [True, False])
def test_the_peer_uses_its_fastest_batch_size(slow):
    """Here either batches of 8 texts are slow, or all others."""
    workload = encode.make_workload("tiny", CPU)
    text, texts = encode.tokenizer(workload.vocab), encode.random_texts(workload)
    it = encode.EncodeBenchmark.__new__(encode.EncodeBenchmark)
    it.workload, it.device, it.texts, it.lengths = (
        workload,
        CPU,
        texts,
        [len(row) for row in encode.encode_with_specials(text, texts)],
    )
    best, fact = it.best(lambda batch_size: lambda some: time.sleep(0.1 if (len(some) == 8) == slow else 0.001))
    assert best == workload.batch_sizes[slow] and f"tried once): {best}" in fact
    assert it.tokens([[0, 1], [2]]) == 2 * max(it.lengths[:2]) + it.lengths[2]
