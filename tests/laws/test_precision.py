"""Precision passes: bf16 and int8 compute in their type on every family, and translate as well as fp32."""

import copy

import pytest
import torch
from helpers import marian, small
from helpers.families import CASES, MEDIA_CASES, case_subject
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.adapt import precision
from regard.errors import UserError
from regard.metrics.text import text_metrics
from regard.parts import Attention, Mask


@pytest.fixture(scope="module")
def run():
    return small.translator(
        400, 4000, train__lr=6e-3, train__tokens=600, train__schedule="linear", tokenizer__kind="word",
        train__objective__smoothing=0.0, model__dropout=0.0, train__eval_every=1000, train__save_every=1000,
    )  # fmt: skip


class Products(TorchDispatchMode):
    """Counts matrix products by their data type."""

    def __init__(self):
        super().__init__()
        self.seen: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        if any(word in str(operator) for word in ("addmm", "aten.mm", "_int_mm", "qlinear", "aten.linear", "bmm")):
            kinds = [each.dtype for each in arguments if isinstance(each, torch.Tensor)]
            self.seen[kinds[-1]] = self.seen.get(kinds[-1], 0) + 1
        return operator(*arguments, **(named or {}))


def products(system) -> dict[torch.dtype, int]:
    with Products() as counter:
        system.predict(["the small cat sees the dog."], kind="greedy")
    return counter.seen


def test_translation_quality_and_data_types(run):
    texts = marian.sentences(400, seed=9)
    right = [[text.upper()] for text in texts]
    found = {}
    for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("int8", torch.int8)):
        system = regard.load(run, precision=name)
        assert system.run.precision == name
        assert set(products(system)) == {kind}  # of every linear layer; attention itself is one fused operation
        found[name] = text_metrics(system.predict(texts, kind="greedy"), right, ("bleu",))["bleu"]
        pairs = texts[:50], [text.upper() for text in texts[:50]]
        found[name, "score"] = torch.tensor(system.score(*pairs))
    assert found["fp32"] > 98
    assert abs(found["bf16"] - found["fp32"]) <= 0.2 and abs(found["int8"] - found["fp32"]) <= 0.2
    for name in ("bf16", "int8"):
        apart = (found[name, "score"] - found["fp32", "score"]).abs()
        assert apart.max() > 0 and apart.mean() < 0.2  # different, but nearly the same


def test_int8_is_batch_invariant(run):
    """Scales are per row and sums are integers, so a result does not depend on the batch, to the last bit."""
    system = regard.load(run, precision="int8")
    layer = system.model.decoder.layers[0].feed.into
    x = torch.randn(80, 64) * torch.rand(80, 1) * 10
    whole = layer(x)
    for rows in (1, 5, 16):
        assert torch.equal(layer(x[:rows]), whole[:rows])
    assert torch.equal(layer(x.view(4, 20, 64)).flatten(0, 1), whole)
    texts = marian.sentences(20, seed=3)
    assert system.predict(texts) == [system.predict(text) for text in texts]


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 32, 32), (7, 37, 41), (3, 64, 5000), (1, 33, 4097)])
@pytest.mark.parametrize("bias", [True, False])
def test_int8_linear_is_close_to_linear(rows, inputs, outputs, bias):
    linear = nn.Linear(inputs, outputs, bias=bias)
    model = precision.apply_precision(nn.Sequential(linear), "int8")
    x = torch.randn(rows, inputs) * 3
    x[0] *= 100
    wanted, found = linear(x), model(x)
    assert isinstance(model[0], precision.Int8Linear) and found.shape == wanted.shape
    assert ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max() < 0.02
    assert (model[0].weight - linear.weight).abs().max() <= linear.weight.abs().max() / 254 + 1e-6
    assert torch.equal(model(torch.zeros(2, inputs)), model[0].bias.expand(2, -1))


class PrepackedProducts(TorchDispatchMode):
    """Counts the products with weights in oneDNN's layout."""

    seen = 0

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.seen += "_linear_pointwise" in str(operator)
        return operator(*arguments, **(named or {}))


@pytest.mark.parametrize("rows", [(1,), (5,), (80,), (3, 7), (2, 3, 4), (0,)])
@pytest.mark.parametrize("bias", [True, False])
def test_prepacked_linear_equals_linear(rows, bias):
    linear = nn.Linear(257, 261, bias=bias)
    model, x = precision.apply_precision(copy.deepcopy(nn.Sequential(linear)), "fp32"), torch.randn(*rows, 257)
    with torch.no_grad(), PrepackedProducts() as counter:
        found = model(x)
    assert counter.seen == (rows != (0,)) and list(model.state_dict()) == list(nn.Sequential(linear).state_dict())
    torch.testing.assert_close(found, linear(x).detach(), atol=1e-5, rtol=1e-5)
    half = precision.apply_precision(copy.deepcopy(model), "bf16")
    with torch.no_grad():
        torch.testing.assert_close(half(x.bfloat16()).float(), linear(x), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(("bias", "key_bias"), [(True, True), (True, False), (False, False)])
def test_fused_qkv_equals_separate_maps(bias, key_bias):
    """As on a GPU: one fused map, with fewer key heads too, that follows changes of the weights."""
    plain = Attention(24, 4, key_heads=2, bias=bias, key_bias=key_bias)
    fused, x, other = copy.deepcopy(plain), torch.randn(2, 5, 24), torch.randn(2, 5, 24)
    fused.__class__ = precision.FusedQKVAttention
    with torch.no_grad():
        for _ in range(2):
            for inputs in ((x, x, x), (x, other, other)):
                assert (fused(*inputs, Mask(causal=True)) - plain(*inputs, Mask(causal=True))).abs().max() < 1e-6
            for each in (plain, fused):
                each.key.weight.mul_(1.5)
        assert fused._fused is not None and copy.deepcopy(fused)._fused is None
        for each in (plain, fused):  # as LoRA does
            each.value.register_forward_hook(lambda module, inputs, out: out + 1)
        assert (fused(x, x, x, Mask()) - plain(x, x, x, Mask())).abs().max() < 1e-6
    assert fused(x, x, x, Mask()).requires_grad  # training uses the three maps


def test_prepacked_linear_follows_its_weights_and_is_trainable():
    model = precision.apply_precision(nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 20)), "fp32")
    assert type(model[1]) is nn.Linear  # too small to gain
    twin, x = nn.Linear(300, 300), torch.randn(4, 300)

    def agree() -> None:
        twin.load_state_dict(model[0].state_dict())
        with torch.no_grad(), PrepackedProducts() as counter:
            torch.testing.assert_close(model[0](x), twin(x), atol=1e-5, rtol=1e-5)
        assert counter.seen == 1

    agree()
    with PrepackedProducts() as counter:
        model(x).square().sum().backward()
    assert counter.seen == 0 and model[0].weight.grad.abs().sum() > 0
    torch.optim.SGD(model.parameters(), 1e-3).step()
    agree()
    model.load_state_dict({name: torch.randn_like(held) for name, held in model.state_dict().items()})
    agree()
    model[0].weight = nn.Parameter(torch.randn(300, 300))
    agree()
    again = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(again[0](x), model[0](x))
        again[0].weight.zero_()
        assert not torch.equal(again[0](x), model[0](x))
        with pytest.raises(RuntimeError):  # as an ordinary linear layer
            model[0](x.double())


COMPARED = [case for case in CASES + MEDIA_CASES if case != ("detr", "proposed")]  # which chooses other boxes


@pytest.mark.parametrize("case", COMPARED, ids=" ".join)
def test_every_family(case):
    subject = case_subject(case)
    torch.manual_seed(0)
    model = subject.family.Model(subject.config).eval()  # of usual weights
    for each in model.parameters():
        if each.dim() > 1 and not each.any():  # a head that starts with zeros
            each.data.normal_(0, 0.02)
    inputs = subject.probe.batch(subject.sample(7, 7, 7))

    def logprobs(model: nn.Module) -> torch.Tensor:
        subject.module = model
        return torch.stack(subject.read(inputs)).float().log_softmax(-1)

    with torch.no_grad():
        wanted = logprobs(model)
        for each in ("bf16", "int8"):
            assert (
                1e-5 < (logprobs(precision.apply_precision(copy.deepcopy(model), each)) - wanted).abs().max() < 0.5
            ), each


def test_int8_keeps_a_tied_embedding():
    from regard.families import transformer

    model = transformer.Model(transformer.Config(**transformer.SIZES["tiny"], size="tiny", vocab=60))
    table = model.target.weight.detach().clone()
    precision.apply_precision(model, "int8")
    assert isinstance(model.head, precision.Int8Linear) and torch.equal(model.target.weight, table)
    names = {type(part).__name__ for part in model.modules()}
    assert "Linear" not in names and "Int8Linear" in names


def test_errors(run):
    with pytest.raises(UserError, match='precision is "int4"; expected one of fp32, bf16, int8'):
        regard.load(run, precision="int4")
    elsewhere = nn.Linear(64, 64, device="meta")
    with pytest.raises(
        UserError, match="precision=int8 runs on the CPU and the model is on meta; use bf16, or set dev"
    ):
        precision.apply_precision(elsewhere, "int8")


def test_int8_linear_accepts_bf16_input():
    """bf16 has too few bits for the row scale: the largest value would overflow and change its sign."""
    torch.manual_seed(0)
    for outputs in (96, 5000):
        linear, x = nn.Linear(768, outputs), torch.randn(200, 768)
        found = precision.Int8Linear(linear)(x.bfloat16())
        assert found.dtype == torch.bfloat16
        assert (found.float() - linear(x.bfloat16().float())).abs().max() < 0.06
