"""Benches run whole at a small size: all programs are there and equal, and every ratio is a number."""

import json
import math

import pytest

from regard import bench as benches
from regard.bench import bench, generate
from regard.bench.timing import ratio
from regard.bench.translate import decoding
from regard.cli import main
from regard.errors import Mistake

PEERS = {
    "training": {"HF Marian", "torch.nn.Transformer"},
    "greedy": {"HF generate fp32", "HF generate bf16", "CTranslate2 fp32", "CTranslate2 int8"},
}


def checked(values: dict) -> dict[str, dict]:
    """The sections by name, after a look at all their figures."""
    for section in values["sections"]:
        ways = {way["name"] for way in section["ways"]}
        ours = {way["name"] for way in section["ways"] if way["ours"]}
        assert ours and ways - ours
        assert len(section["ratios"]) == len(ours) * len(ways - ours)
        assert all(math.isfinite(each["median"]) and each["low"] <= each["high"] for each in section["ratios"])
        assert all(way["median"] > 0 for way in section["ways"])
    return {section["name"]: section for section in values["sections"]}


def test_translate(capsys):
    assert main(["bench", "translate", "--device", "cpu", "--size", "tiny", "--rounds", "1", "--json"]) == 0
    sections = checked(json.loads(capsys.readouterr().out))
    assert set(sections) == {"training", "greedy", "beam 5"}
    for name, peers in PEERS.items():
        assert peers <= {way["name"] for way in sections[name]["ways"]}


def test_generate(capsys):
    assert main(["bench", "generate", "--device", "cpu", "--size", "tiny", "--rounds", "2"]) == 0
    out = capsys.readouterr().out
    assert "regard int8" in out and "HF generate bf16" in out and "HF GPT-2" in out and " × " not in out.splitlines()[0]
    assert "3 at once" in out and "(" in next(line for line in out.splitlines() if line.startswith("HF GPT-2"))


def test_what_is_not_equal_is_not_timed(monkeypatch):
    def worse(model, c, device):
        theirs = generate_hf(model, c, device)
        theirs.transformer.wpe.weight.data += 1.0
        theirs.transformer.ln_f.bias.data[::2] += 3.0
        return theirs

    generate_hf = generate.hugging_face
    monkeypatch.setattr(generate, "hugging_face", worse)
    with pytest.raises(Mistake, match=r"losses per token are|texts as regard fp32 does, so nothing was timed"):
        bench("generate", "cpu", "tiny", 1, "training")
    first = [[5] * 7, [6] * 7]
    plan = decoding.Plan("tiny", rows=2, tokens=7)
    with pytest.raises(Mistake, match="said 6 tokens and not 7"):
        decoding.compare({"regard fp32": first, "HF generate fp32": [[5] * 6, [6] * 7]}, "greedy", plan, [])
    with pytest.raises(Mistake, match="not equal in fp32"):
        decoding.compare({"regard fp32": first, "HF generate fp32": [[4] * 7, [3] * 7]}, "greedy", plan, [])


def test_ratios():
    assert ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]) == (2.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["everything"], "there is no bench 'everything'; expected generate or translate"),
        (["translate", "--rounds", "0"], "--rounds 0 times nothing; expected 1 or more"),
        (["translate", "--size", "huge"], "--size huge is no size of this bench; expected base, tiny, small, big"),
        (["generate", "--only", "reading"], "--only reading is no part of this bench; expected writing or training"),
    ],
)
def test_what_is_refused(arguments, sentence, capsys):
    assert main(["bench", *arguments]) == 2
    assert capsys.readouterr().err == f"regard: {sentence}\n"
    assert benches.BENCHES == ("generate", "translate")
