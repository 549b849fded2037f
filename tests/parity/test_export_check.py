"""The self-check of exports is relative: it accepts rounding of large outputs and refuses a wrong weight of any size."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.config.data.texts import TokenizerConfig
from regard.config.run import resolve_run
from regard.families import bert, gpt
from regard.formats.huggingface import causal as causal_files
from regard.formats.huggingface import encoders, gpt2
from regard.formats.huggingface.bert import FORMAT
from regard.formats.huggingface.format import HuggingFaceFormat
from regard.formats.parity import check_close, check_difference
from regard.processors.text import tokenizers

LINES = ["the old cat sees the small dog under the tree", "a bird never likes the red house"] * 5


def encoder(scale: float) -> SimpleNamespace:
    """A masked-word BERT of width 512 whose logits are `scale` times those of an untrained one."""
    text = tokenizers.train_tokenizer(TokenizerConfig(kind="wordpiece", vocab=90), LINES, control=(tokenizers.MASK,))
    c = bert.Config(size="small", layers=2, tied=False, head="words", vocab=text.size)
    torch.manual_seed(0)
    model = bert.Model(c).eval()
    assert model.words is not None
    model.words.out.weight.data *= scale
    return SimpleNamespace(run=SimpleNamespace(model=c, data=None), module=model, tokenizer=text)


def language_model(scale: float) -> SimpleNamespace:
    text = tokenizers.train_tokenizer(TokenizerConfig(kind="bpe", vocab=300), LINES)
    c = gpt.Config.model_validate({"size": "tiny", **gpt.SIZES["tiny"], "vocab": text.size, "tied": False})
    torch.manual_seed(0)
    model = gpt.Model(c).eval()
    model.head.weight.data *= scale
    run = resolve_run("language", {"model.family": "gpt"}).run.model_copy(update={"model": c})
    return SimpleNamespace(run=run, module=model, tokenizer=text, suppressed=[text.pad, text.start])


@pytest.mark.parametrize("scale", [1.0, 3e4])
def test_rounding_passes_and_a_wrong_weight_fails(
    scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = encoder(scale)
    sample = encoders.EncoderSample(ours)
    assert (sample.expected[0].abs().max() > 1000) == (scale > 1)
    FORMAT.write(ours, tmp_path / "right", "fp32")
    report = FORMAT.verify(ours, tmp_path / "right", "fp32")
    assert "regard and transformers" in report and float(report.rpartition(" by ")[2].split()[0]) < 1e-5
    tensors = HuggingFaceFormat.tensors

    def damaged(self: Any, predictor: Any) -> dict[str, torch.Tensor]:
        weights = tensors(self, predictor)
        weights["bert.encoder.layer.1.output.dense.weight"][3] += 0.02  # one of 512 rows, by a standard deviation
        return weights

    monkeypatch.setattr(HuggingFaceFormat, "tensors", damaged)
    FORMAT.write(ours, tmp_path / "wrong", "fp32")
    with pytest.raises(
        RuntimeError, match="the folder gives logits that are apart by .* more than 0.0001 of it; nothing"
    ):
        FORMAT.verify(ours, tmp_path / "wrong", "fp32")


def test_a_large_language_model_passes_where_an_absolute_bound_would_not(tmp_path: Path) -> None:
    ours = language_model(3e4)
    gpt2.FORMAT.write(ours, tmp_path / "out", "fp32")
    sample = causal_files.CausalSample(ours)
    report = gpt2.FORMAT.verify(ours, tmp_path / "out", "fp32")
    relative = float(report.rpartition(" by ")[2].split()[0])
    assert relative * sample.logits.abs().max() > 1e-4 and relative < 1e-5


def test_what_counts_as_rounding() -> None:
    ours = torch.tensor([-130.0, -30.0, 0.5])
    assert check_close("x gives logits", ours + 2.2e-4, ours) == pytest.approx(1.7e-6, rel=0.1)
    for wrong in (ours + 0.02, ours * 1.001, ours + float("nan"), ours.float() / 0):
        with pytest.raises(RuntimeError, match="x gives logits that are apart by"):
            check_close("x gives logits", wrong, ours)
    small = torch.tensor([1e-4, -2e-4])  # of an untrained head
    assert check_close("x gives logits", small + 1e-8, small) < 1e-5
    with pytest.raises(RuntimeError, match="apart by 0.0001 where the largest is 0.0002"):
        check_close("x gives logits", small - 1e-4, small)
    with pytest.raises(RuntimeError, match="CTranslate2 gives log-probabilities that are apart by 0.02"):
        check_difference("CTranslate2 gives log-probabilities", 0.02, 90.0)
    assert check_difference("CTranslate2 gives log-probabilities", 2e-4, 90.0) < 1e-5
