"""`python -m benchmarks generate`: a row per program, and checks of equality."""

import pytest

from benchmarks import bench, generate
from benchmarks.__main__ import main
from regard.errors import UserError


def test_generate(capsys):
    assert main(["generate", "--device", "cpu", "--size", "tiny", "--rounds", "2"]) == 0
    out = capsys.readouterr().out
    assert "regard int8" in out and "HF generate bf16" in out and "HF GPT-2" in out and " × " not in out.splitlines()[0]
    assert "3 at once" in out and "(" in next(line for line in out.splitlines() if line.startswith("HF GPT-2"))


def test_different_losses_are_not_timed(monkeypatch):
    def worse(model, c, device):
        theirs = generate_hf(model, c, device)
        theirs.transformer.wpe.weight.data += 1.0
        theirs.transformer.ln_f.bias.data[::2] += 3.0
        return theirs

    generate_hf = generate.hugging_face
    monkeypatch.setattr(generate, "hugging_face", worse)
    with pytest.raises(UserError, match="not equal, so nothing was timed: losses per token"):
        bench("generate", "cpu", "tiny", 1, "training")


def test_different_texts_are_not_timed():
    first = [[5] * 4, [6] * 4]
    assert generate.compare({"regard fp32": first, "HF generate bf16": [[1] * 4] * 2}, 4) == [
        "HF generate bf16: 0 of 2 texts as regard fp32"
    ]
    with pytest.raises(UserError, match="HF generate fp32 gave 1 of 2 texts as regard fp32 does, so nothing was timed"):
        generate.compare({"regard fp32": first, "HF generate fp32": [[5] * 4, [7] * 4]}, 4)
