"""Laws of tuning over every family at size tiny: initial state, trained parameters, saving, merging, removal, errors."""

import pytest
import test_laws as laws
import torch
from helpers.families import CASES, LOOSE, DecoderOnly, EncoderDecoder, config, ids, kind, loud, some
from helpers.inputs import inputs
from torch import nn

from regard.adapt import lora, tune
from regard.adapt.prompt_tuning import prepend
from regard.config.run import family_of
from regard.config.schema import Adapter, Lora, Prefix, Prompt
from regard.errors import UserError
from regard.families import FAMILIES
from regard.parts.cache.slots import DenseCache
from regard.parts.losses import smoothed_cross_entropy
from regard.training.checkpoint import load_model, save_model

EVERY_LAYER = Lora(rank=3, alpha=5.0, pattern="(?<!score)$")  # but not the score of an additive kernel, of rank 1
METHODS = {
    "lora": EVERY_LAYER,
    "adapter": Adapter(bottleneck=5),
    "prompt": Prompt(length=3),
    "prefix": Prefix(length=3),
}
INIT_TOKENS = [7, 21, 9]


def supported(case: tuple[str, str], method: str) -> bool:
    try:
        tune.attach(loud(*case), METHODS[method])
    except UserError as error:
        if "does not work with this model" not in str(error):
            raise
        return False
    return True


PAIRS = [(case, method) for case in CASES for method in METHODS if supported(case, method)]
UNSUPPORTED = [(case, method) for case in CASES for method in METHODS if (case, method) not in PAIRS]
FIRST = dict(reversed(CASES))
VIRTUAL = [each for each in PAIRS if each[1] in ("prompt", "prefix") or FIRST[each[0][0]] == each[0][1]]
GENERATORS = [each for each in VIRTUAL if kind(*each[0]).writes]
DECODER_ONLY = [each for each in VIRTUAL if kind(*each[0]) is DecoderOnly]
PREPENDED = [
    (case, method)
    for case, method in VIRTUAL
    if method == "prompt" or (method == "prefix" and (case, method) in DECODER_ONLY)
]


def pair_id(pair) -> str:
    return f"{' '.join(pair[0])} {pair[1]}"


def tuned_model(case, method, perturbed: bool = True) -> nn.Module:
    """A tuned model; `perturbed`: its new parameters differ from their initial values."""
    model = tune.attach(loud(*case), METHODS[method], init_tokens=INIT_TOKENS)
    if perturbed:
        torch.manual_seed(6)
        for each in model.tune.parameters():
            each.data += 0.1 * torch.randn_like(each)
    return model.eval()


def wrapped(pair):
    """A tuned model in the test wrapper of its architecture."""
    return kind(*pair[0])(tuned_model(*pair))


all_pairs = pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
one_per_family = pytest.mark.parametrize(
    "pair", [each for each in PAIRS if FIRST[each[0][0]] == each[0][1]], ids=pair_id
)
virtual = pytest.mark.parametrize("pair", VIRTUAL, ids=pair_id)
generators = pytest.mark.parametrize("pair", GENERATORS, ids=pair_id)


@torch.no_grad()
@pytest.mark.parametrize("pair", [each for each in PAIRS if each[1] in ("lora", "adapter")], ids=pair_id)
def test_lora_and_adapters_start_as_the_identity(pair):
    case, method = pair
    plain, tokens = loud(*case), ids(2, 6)
    tuned = tuned_model(case, method, perturbed=False)
    wanted = kind(*case)(plain).read(tokens)
    assert (kind(*case)(tuned).read(tokens) - wanted).abs().max() < 1e-5
    assert (kind(*case)(tuned_model(case, method)).read(tokens) - wanted).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("pair", PREPENDED, ids=pair_id)
def test_initial_virtual_tokens_equal_real_tokens(pair):
    """Initial prompts, and in causal models initial prefixes, act like the same tokens before the text."""
    case, method = pair
    tuned, plain, tokens = tuned_model(case, method, perturbed=False), loud(*case), ids(2, 6)
    longer = torch.cat([torch.tensor([INIT_TOKENS, INIT_TOKENS]), tokens], 1)
    if kind(*case) is EncoderDecoder:
        target = inputs(ids(2, 4))
        assert (tuned(inputs(tokens), target) - plain(inputs(longer), target)).abs().max() < 1e-4
    else:
        assert (tuned(inputs(tokens)) - plain(inputs(longer))[:, 3:]).abs().max() < 1e-4


@all_pairs
def test_only_injected_parameters_are_trained(pair):
    it = wrapped(pair)
    whole = {name: each.clone() for name, each in it.model.state_dict().items()}
    tokens = ids(2, 6)
    loss = smoothed_cross_entropy(it.read(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    for name, each in it.model.named_parameters():
        trained = name.startswith("tune.")
        assert each.requires_grad == trained and (each.grad is not None) == trained, name
        assert not trained or each.grad.abs().max() > 0, name
    torch.optim.SGD([each for each in it.model.parameters() if each.requires_grad], 0.1).step()
    for name, each in it.model.state_dict().items():
        assert each.equal(whole[name]) != name.startswith("tune."), name


@torch.no_grad()
@one_per_family
def test_saving_and_loading_is_the_identity_and_small(pair, tmp_path):
    case, method = pair
    model, tokens = tuned_model(*pair), ids(2, 5)
    save_model(model, tmp_path / "model.safetensors", 7)
    again = tune.attach(loud(*case), METHODS[method])  # with other initial tokens
    assert load_model(again, tmp_path / "model.safetensors") == 7
    assert kind(*case)(again.eval()).read(tokens).equal(kind(*case)(model).read(tokens))
    size = sum(each.numel() for each in model.tune.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * size + 200 * len(list(model.tune.parameters())) + 200


@torch.no_grad()
@one_per_family
def test_detach_restores_the_base(pair):
    case, _ = pair
    plain, tokens = loud(*case), ids(2, 5)
    model = tune.detach(tuned_model(*pair))
    assert type(model) is type(plain) and getattr(model, "context", 0) == getattr(plain, "context", 0)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True))
    assert kind(*case)(model).read(tokens).equal(kind(*case)(plain).read(tokens))
    assert all(each.requires_grad for each in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("case", [case for case, method in PAIRS if method == "lora"], ids=" ".join)
def test_merged_equals_unmerged_and_unmerge_restores_the_bytes(case):
    it, tokens = kind(*case)(tuned_model(case, "lora")), ids(2, 6)
    base = {name: each.clone() for name, each in it.model.state_dict().items()}
    beside = it.read(tokens)
    with lora.merged(it.model):
        folded = it.read(tokens)
        assert not all(each.equal(base[name]) for name, each in it.model.state_dict().items())
    assert (folded - beside).abs().max() < 1e-4 * beside.abs().max().clamp(min=1)
    assert all(each.equal(base[name]) for name, each in it.model.state_dict().items())
    assert it.read(tokens).equal(beside)


# --- the laws of every family hold for tuned models too --------------------------------------------------------------


@virtual
def test_rows_are_batch_invariant(pair):
    laws.test_rows_are_batch_invariant(wrapped(pair))


@pytest.mark.parametrize("pair", [each for each in VIRTUAL if "packed" not in LOOSE.get(each[0], ())], ids=pair_id)
def test_packed_equals_separate(pair):
    it = wrapped(pair)
    if pair[1] == "prompt" and hasattr(it.model, "encode"):
        with pytest.raises(ValueError, match="a prompt precedes one text and packed rows hold several"):
            it.packed(some(6, 3, 8))
    else:
        laws.test_packed_equals_separate(it, pair[0])


@generators
def test_later_tokens_change_nothing(pair):
    laws.test_later_tokens_change_nothing(wrapped(pair))


@generators
def test_cached_equals_uncached(pair):
    laws.test_cached_equals_uncached(wrapped(pair), None if pair[0][1] in ("rotary", "additive", "prenorm") else 24)


@torch.no_grad()
@pytest.mark.parametrize("pair", [each for each in GENERATORS if FIRST[each[0][0]] == each[0][1]], ids=pair_id)
def test_capacity_excludes_virtual_tokens(pair):
    it, tokens = wrapped(pair), ids(2, 7)
    with torch.enable_grad():
        cache = it.start(2, 7)
    dense = [each for each in cache.layers if isinstance(each, DenseCache)]
    assert not any(each.k.requires_grad for each in dense)  # generation needs no gradients
    found = it.model.step(tokens, cache)
    assert (found - it.read(tokens)).abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("pair", DECODER_ONLY, ids=pair_id)
def test_a_reset_row_keeps_its_virtual_tokens(pair):
    it = wrapped(pair)
    cache, first, second = it.start(2, 24), ids(2, 4), ids(2, 3)
    it.model.step(first, cache)
    cache.reset(torch.tensor([True, False]))
    found = it.model.step(second, cache)
    assert (found[0] - it.read(second[:1])[0]).abs().max() < 1e-4


@torch.no_grad()
@virtual
def test_recorded_attention_excludes_virtual_tokens(pair):
    it, texts = wrapped(pair), some(6, 3)
    plain = it.together(texts)
    with laws.record_attention(it.model) as maps:
        assert all((a - b).abs().max() < 1e-4 for a, b in zip(it.together(texts), plain, strict=True))
    assert sorted(maps) == sorted(it.paths())
    for path, weights in maps.items():
        assert weights.shape[2:] == it.hidden(path, texts).expand(-1, -1, weights.size(2), -1).shape[2:]


@pytest.mark.parametrize("method", METHODS)
def test_tuned_models_compile_into_one_graph(method):
    it, tokens = wrapped((("gpt", "gpt2"), method)), ids(2, 6)
    torch._dynamo.reset()
    compiled = torch.compile(it.read, backend="eager", fullgraph=True)
    assert (compiled(tokens) - it.read(tokens)).abs().max() < 1e-5


def test_a_prompt_moves_positions_and_global_positions():
    marks, types = torch.tensor([[0, -1]]), torch.tensor([[0, 0, 1]])
    longer = prepend(
        inputs(ids(1, 3), positions=torch.tensor([[0, 1, 2]]), token_types=types, global_positions=marks), 2
    )
    assert longer.positions.tolist() == [[0, 1, 2, 3, 4]] and longer.global_positions.tolist() == [[2, -1]]
    assert longer.token_types.tolist() == [[0, 0, 0, 0, 1]]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "method"), UNSUPPORTED, ids=[f"{' '.join(case)} {method}" for case, method in UNSUPPORTED]
)
def test_unsupported_methods_are_refused(case, method):
    model = loud(*case)
    with pytest.raises(
        UserError,
        match=f"tune.kind={method} does not work with this model: (its attention|its first token|it has no linear)",
    ):
        tune.attach(model, METHODS[method])


def test_the_list_of_unsupported_methods():
    assert {case for case, _ in UNSUPPORTED} >= {
        ("xl", "paper"),
        ("gpt", "window"),
        ("gpt", "favor"),
        ("bert", "favor"),
    }
    assert (("xl", "without memory"), "prefix") in PAIRS and (("bert", "favor"), "prompt") in PAIRS
    assert {case for case, method in PAIRS if method == "adapter"} == set(CASES)  # every model has a sublayer
    assert {case[0] for case, method in UNSUPPORTED if method == "lora"} == {
        "rnn"
    }  # fused recurrences are not linear layers


@pytest.mark.parametrize("case", [case for case in CASES if case[1] in ("paper", "gpt2", "later")], ids=" ".join)
def test_an_unmatched_pattern_lists_the_layers(case):
    with pytest.raises(
        UserError, match=r"tune.pattern='qeury' matches no linear layer of the model; it has \S+\.\*\.attent"
    ):
        tune.attach(loud(*case), Lora(pattern="qeury"))
    model = family_of(case[0]).Model(config(*case))
    with pytest.raises(UserError, match="matches no linear layer"):  # a tied head shares the table of the embedding
        tune.attach(model, Lora(pattern="^(head|words.out)$")) if case[0] != "t5" else attach_to_positions(model)


def attach_to_positions(model):
    tune.attach(model, Lora(pattern="^positions$"))


def test_other_errors():
    case = ("gpt", "sinusoid")
    for settings, words in (
        (Lora(pattern="("), "tune.pattern is '('; expected a regular expression"),
        (Lora(rank=60, pattern="feed|head"), "tune.rank is 60, above the 53 that head (53 × 128) allows"),
        (Lora(rank=129), "tune.rank is 129, above the 128 that stack.layers.0.attention.query (128 × 128) allows"),
    ):
        model = loud(*case)
        with pytest.raises(UserError) as error:
            tune.attach(model, settings)
        assert words in str(error.value) and not any(each._forward_hooks for each in model.modules())
    with pytest.raises(UserError, match="the model is tuned with lora already; detach that first"):
        tune.attach(tuned_model(case, "lora"), Adapter())
    with pytest.raises(UserError, match="only LoRA can be merged into a model and this one has none"):
        lora.merge(tuned_model(case, "adapter"))
    with pytest.raises(UserError, match="does not work with this model: it has no sublayer called attention or cross"):
        tune.attach(nn.Sequential(nn.Linear(3, 3)), Adapter())
    with pytest.raises(UserError, match="tune.kind=prefix does not work with this model: it has no attention"):
        tune.attach(nn.Sequential(nn.Linear(3, 3)), Prefix())


@pytest.mark.parametrize("name", FAMILIES)
def test_families_with_labels_declare_their_label_modules(name):
    """Label heads depend on the data, so they are trained whatever is frozen."""
    module = family_of(name)
    assert ("labels" in module.Config.model_fields) == bool(module.SPEC.label_modules)


def test_a_fully_trained_head_has_no_lora_branch():
    model = loud("bert", "tags")
    tune.attach(model, EVERY_LAYER, fully_trained=("classes.weight", "classes.bias"))
    assert "classes" not in [path for path, _, _ in lora.branches(model)]
    trained = {name for name, each in model.named_parameters() if each.requires_grad and not name.startswith("tune.")}
    assert trained == {"classes.weight", "classes.bias"}
