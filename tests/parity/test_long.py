"""Attention for long texts end to end: language models with window and favor, and settings that are refused."""

import json
from pathlib import Path

import pytest
import torch
from helpers import marian
from helpers.inputs import inputs

import regard
from regard.cli import main
from regard.config.run import resolve_run
from regard.errors import UserError
from regard.families import bert, lm

SMALL = {
    "model.width": 32, "model.heads": 2, "model.layers": 2, "model.inner": 64, "data.max_tokens": 40, "tokenizer.vocab": 300,
    "train.batch": 4, "train.steps": 6, "train.save_every": 3, "train.eval_every": 3, "train.warmup": 2, "train.tensorboard": False, "device": "cpu", "train.schedule.kind": "constant",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Many short documents: nearly every window of the data holds several."""
    folder = tmp_path_factory.mktemp("texts")
    for seed, (name, count) in enumerate({"train": 120, "valid": 20}.items()):
        lines = marian.sentences(count, seed)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("family", ["gpt", "lm"])
@pytest.mark.parametrize("kind", ["window", "favor"])
def test_language_models_train_resume_and_generate(kind: str, family: str, files, tmp_path, capsys) -> None:
    """`regard train language model.attention.kind=…` gives the same bytes in one go and resumed, and then generates."""
    size = {"model.size": "modern-tiny"} if family == "gpt" else {"model.family": "lm"}
    own = {
        "window": {"model.attention.radius": 4},
        "favor": {"model.attention.features": 16, "model.attention.redraw": 2},
    }
    data = {
        "data.train": f"{files}/train.jsonl",
        "data.valid": f"{files}/valid.jsonl",
        "data.cache": f"{tmp_path}/cache",
    }
    settings = {**SMALL, **size, **data, "model.attention.kind": kind, **own[kind]}
    if family == "gpt":
        settings["model.key_heads"] = 0

    def train(out: str, *more: str, **changes: object) -> int:
        return main(
            ["train", "language", "--out", f"{tmp_path}/{out}", *more, *(f"{k}={v}" for k, v in changes.items())]
        )

    assert train("whole", **settings) == 0
    assert train("halves", **settings | {"train.steps": 3}) == 0 and train("halves", "--resume", **settings) == 0
    for name in (
        "model.safetensors",
        "checkpoints/step-6/model.safetensors",
        "checkpoints/step-6/optimizer.safetensors",
    ):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes(), name
    capsys.readouterr()
    assert main(["predict", f"{tmp_path}/whole", "--prompt", "the cat", "decode.max_tokens=9"]) == 0
    predictor = regard.load(tmp_path / "whole")
    for how in ({"kind": "greedy"}, {"kind": "beam", "beam": 3}):
        both = predictor.predict(["the cat", "a dog and the"], max_tokens=60, **how)
        assert both == [predictor.predict(text, max_tokens=60, **how) for text in ("the cat", "a dog and the")]


MISTAKES = {
    "no features": ("language", {"model.attention": {"kind": "favor", "features": 0}},
                    "model.attention.features is 0; expected at least 1"),
    "negative redraw": ("language", {"model.attention": {"kind": "favor", "redraw": -1}},
                         "model.attention.redraw is -1; expected at least 0"),
    "favor with buckets": ("language", {"model.attention.kind": "favor", "model.positions.kind": "buckets"},
                           "model.positions.kind=buckets adds to scores, of which model.attention.kind=favor has none"),
    "window with buckets": ("language", {"model.attention.kind": "window", "model.positions.kind": "buckets"},
                            "model.positions.kind=buckets adds to scores, of which model.attention.kind=window has none"),
    "causal lowrank": ("language", {"model.attention.kind": "lowrank"}, 'model.attention.kind is "lowrank"; expected one of dense, window, favor'),
    "no rank": ("classify", {"model.attention": {"kind": "lowrank", "rank": 0}},
                "model.attention.rank is 0; expected at least 1"),
    "no tokens": ("classify", {"model.attention": {"kind": "lowrank", "tokens": 0}},
                  "model.attention.tokens is 0; expected at least 1"),
    "unknown sharing": ("classify", {"model.attention": {"kind": "lowrank", "sharing": "values"}},
                         'model.attention.sharing is "values"; expected one of none, heads, key-value, layers'),
    "attention dropout of lm": ("language", {"model.family": "lm", "model.attention.dropout": 0.2},
                                      "model.attention.dropout is 0.2, but in family lm model.dropout covers attention weights too"),
    "global tokens in a language model": ("language", {"model.family": "lm", "model.attention": {"kind": "window", "globals": 1}},
                                          "model.attention.globals is 1, and global tokens attend to later ones; expected 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_settings_are_refused(name: str) -> None:
    recipe, settings, sentence = MISTAKES[name]
    with pytest.raises(UserError) as caught:
        resolve_run(recipe, settings)
    assert sentence in str(caught.value)


def test_lm_attention_has_the_models_dropout() -> None:
    model = lm.Model(lm.Config(vocab=50, width=32, heads=2, layers=1, inner=64, dropout=0.3))
    assert model.stack.layers[0].attention.kernel.dropout == 0.3


@pytest.mark.parametrize("kind", [{"kind": "window", "radius": 99}, {"kind": "window", "radius": 99, "globals": 1}])
@torch.no_grad()
def test_window_larger_than_the_text_equals_dense(kind: dict[str, object]) -> None:
    """Also with global tokens, if their projections equal the others'."""
    shape = {"vocab": 50, "width": 32, "heads": 2, "layers": 2, "inner": 64, "head": "words"}
    dense, windowed = (
        bert.Model(bert.Config.model_validate({**shape, "attention": each})).eval() for each in ("dense", kind)
    )
    weights = dense.state_dict()
    for name in windowed.state_dict():
        plain = name.replace(".near.", ".").replace(".wide.", ".")
        weights[name] = weights[plain]
    windowed.load_state_dict({name: weights[name] for name in windowed.state_dict()})
    tokens, valid = torch.randint(4, 50, (2, 13)), torch.arange(13)[None] < torch.tensor([[13], [8]])
    actual, expected = (model.encode(inputs(tokens, valid)).states[valid] for model in (windowed, dense))
    assert (actual - expected).abs().max() < 1e-5
