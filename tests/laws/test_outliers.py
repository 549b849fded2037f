"""Outlier columns in int8: found from the weights alone, with a scale of their own, batch-invariant to the last bit."""

import pytest
import torch
from helpers import causal
from helpers.inputs import inputs
from torch import Tensor, nn

import regard
from regard.adapt import precision
from regard.adapt.outliers import outlier_columns, random_inputs, smallest_vocab
from regard.config.registry import FAMILIES
from regard.families import family, gpt
from regard.parts import Inputs

CHANNELS = [3, 40, 61]


def model(factor: float = 1.0) -> gpt.Model:
    """A GPT whose pre-norms enlarge some channels, which the maps behind them undo: its outputs stay."""
    torch.manual_seed(0)
    shape = {"size": "modern", "vocab": 90, "width": 128, "heads": 4, "key_heads": 0, "layers": 2, "inner": 256}
    return enlarge(causal.loud(gpt.Model(gpt.Config(**gpt.SIZES["modern"] | shape)), 2.0), factor)


@torch.no_grad()
def enlarge(made: gpt.Model, factor: float) -> gpt.Model:
    for layer in made.stack.layers:
        attention, feed = layer.attention, layer.feed
        for norm, maps in (
            (layer.attention_residual.norm, (attention.query, attention.key, attention.value)),
            (layer.feed_residual.norm, (feed.gate, feed.into)),
        ):
            norm.weight[CHANNELS] *= factor
            for each in maps:
                each.weight[:, CHANNELS] /= factor
    return made


@torch.no_grad()
def logits(made: nn.Module) -> Tensor:
    return made(inputs(torch.randint(90, (6, 20), generator=torch.Generator().manual_seed(5))))


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def test_outliers_cost_no_quality():
    """With columns that are 50 times the others, int8 is as near to fp32 as without them; one scale per row is not."""
    wanted = logits(model())
    assert error(logits(model(50.0)), wanted) < 1e-5
    plain = error(logits(precision.apply_precision(model(), "int8", vocab=90)), wanted)
    alone = error(logits(precision.apply_precision(model(50.0), "int8", vocab=90)), wanted)
    together = error(logits(precision.apply_precision(model(50.0), "int8")), wanted)
    assert alone < 1.5 * plain and together > 4 * plain and plain < 0.05


def test_which_columns_are_outliers():
    found = outlier_columns(model(50.0), 90)
    reads_norm = ("query", "key", "value", "gate", "into")
    assert {*found} == {path for path, part in model().named_modules() if path.endswith(reads_norm)}
    assert all(columns.tolist() == CHANNELS for columns in found.values())
    assert outlier_columns(model(), 90) == {} and outlier_columns(model(50.0), 0) == {}
    kept = model(50.0).train()
    outlier_columns(kept, 90)
    assert kept.training and not any(part._forward_pre_hooks for part in kept.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_probed(name):
    own = family(name)
    vocab = {"vocab": 50} if "vocab" in own.Config.model_fields else {}
    made = own.Model(own.Config(**own.SIZES["tiny"] | {"size": "tiny"} | vocab))
    for given in random_inputs(made, 20, 1, 4):
        assert given.modality in own.SPEC.reads | {"tokens"} and len(given) == 1
        if given.modality == "tokens":
            makes_own = hasattr(made, "random_inputs")  # of its whole vocabulary
            assert given.values.max() < (50 if makes_own else 20) and (given.values.shape == (1, 4) or makes_own)
    assert random_inputs(made, 20, 1, 4) and isinstance(outlier_columns(made, 20), dict)


def test_a_model_that_reads_something_else_is_not_probed():
    assert outlier_columns(nn.Sequential(nn.Linear(40, 40)), 90) == {} and smallest_vocab(object()) == 0
    assert isinstance(
        precision.apply_precision(nn.Sequential(nn.Linear(40, 40)), "int8", vocab=9)[0], precision.Int8Linear
    )


@pytest.mark.parametrize("outputs", [50, 5000])
def test_a_layer_with_outliers(outputs):
    torch.manual_seed(0)
    linear, x = nn.Linear(96, outputs), torch.randn(40, 96)
    x[:, CHANNELS] *= 100
    linear.weight.data[:, CHANNELS] /= 100
    wanted = linear(x).detach()
    apart = precision.SplitInt8Linear(linear, torch.tensor(CHANNELS))
    assert error(apart(x), wanted) < 0.02 < 0.1 < error(precision.Int8Linear(linear)(x), wanted)
    assert error(apart.to_linear()(x), wanted) < 0.02 and [*apart.modules()] == [apart]
    whole = apart(x)
    for rows in (1, 5, 16):
        assert torch.equal(apart(x[:rows]), whole[:rows])
    assert torch.equal(apart(x.view(4, 10, 96)).flatten(0, 1), whole)
    assert apart(x.bfloat16()).dtype == torch.bfloat16 and apart(x[:0]).shape == (0, outputs)
    given = x.clone().requires_grad_()
    apart(given).sum().backward()
    torch.testing.assert_close(given.grad, apart.weight.sum(0).expand_as(x))


def test_loading_in_int8_finds_them(tmp_path):
    folder, theirs = causal.llama(tmp_path / "folder", hidden_size=128, num_attention_heads=4, intermediate_size=128)
    with torch.no_grad():
        for layer in theirs.model.layers:
            layer.input_layernorm.weight[CHANNELS] *= 60
            for each in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                each.weight[:, CHANNELS] /= 60
    theirs.save_pretrained(folder)
    predictor = regard.load(folder, precision="int8", device="cpu")
    assert predictor.model.stack.layers[0].attention.query.outliers.tolist() == CHANNELS
    assert type(predictor.model.stack.layers[0].feed.out) is precision.Int8Linear
    texts = [" ".join(causal.SENTENCES), "the", "a bird"]
    assert predictor.predict(texts, max_tokens=6) == [predictor.predict(text, max_tokens=6) for text in texts]
    assert isinstance(random_inputs(predictor.module, 9, 2, 3)[0], Inputs)
