"""Laws of tuning over every family at size tiny: initial state, trained parameters, saving, merging, removal, errors.

Every method runs on every family, in the family's first variant. A method runs on another variant where its hooks meet
what that variant changes: `MEETS` declares which settings the hooks of a method meet, and a variant runs if it has a kind
of such a setting that no earlier variant of the same form has shown to the method. The laws of every family run LoRA and
adapters on first variants only: their hooks change the output of a layer, whatever it reads.
"""

import pytest
import torch
from helpers.families import CASES as TOKEN_CASES
from helpers.families import LOOSE, MEDIA_CASES, case_subject, ids, modality_of, output_of, sample, settings_of
from helpers.inputs import inputs
from torch import nn

from regard.adapt import lora, tune
from regard.adapt.prompt_tuning import prepend
from regard.config.family import family_of
from regard.config.registry import FAMILIES
from regard.config.tuning import Adapter, Lora, Prefix, Prompt
from regard.errors import UserError
from regard.look import record_attention
from regard.parts import Inputs
from regard.parts.cache.slots import DenseCache
from regard.parts.losses import smoothed_cross_entropy
from regard.testing import LAWS
from regard.training.checkpoint import load_model, save_model

EVERY_LAYER = Lora(rank=3, alpha=5.0, pattern="(?<!score)$")  # but not the score of an additive kernel, of rank 1
CASES = TOKEN_CASES + MEDIA_CASES
METHODS = {
    "lora": EVERY_LAYER,
    "adapter": Adapter(bottleneck=5),
    "prompt": Prompt(length=3),
    "prefix": Prefix(length=3),
}
INIT_TOKENS = [7, 21, 9]

# The settings of a variant that change what the hooks of a method meet. LoRA hooks linear layers: these settings add,
# remove or replace some. Adapters hook sublayers, by their names and the width of their outputs. Prompts hook the token
# embeddings and prefixes the stacks; both supply keys and values, move positions, and add states to what makes the output.
LAYERS = {"size", "attention", "feed", "inputs", "encoder", "source", "text"}
READERS = {"size", "attention", "positions", "key_heads", "memory", "inputs", "source", "text", "head"}
MEETS: dict[str, set[str]] = {
    "lora": LAYERS | {"tied", "key_heads", "attention_2d", "cell", "positional", "anchors", "ctc", "fertilities"},
    "adapter": LAYERS | {"head_width", "kernel_size", "attention_2d", "cell", "positional", "anchors"},
    "prompt": READERS | {"pool", "pooling", "tied", "target_vocab"},
    "prefix": READERS | {"pool", "pooling", "head_width", "same_length"},
}
CHECKED = {"attention", "memory", "cell", "inputs", "source", "text"}  # what decides whether a method is refused
# What no hook meets: norms and residuals, sizes, and what stands before the layers or after their outputs.
UNMET = {
    *("norm", "prenorm", "biased", "width", "heads", "layers", "inner", "decoder_layers"),
    *("stem", "bottleneck", "stages", "depths", "strides", "backbone_norm"),
    *("max_fertility", "max_length", "upsample", "denoising", "queries"),
}


def plain_model(case) -> nn.Module:
    return case_subject(case).module


def supported(model: nn.Module, method: str) -> bool:
    try:
        tune.detach(tune.attach(model, METHODS[method]))
    except UserError as error:
        if "does not work with this model" not in str(error):
            raise
        return False
    return True


def form(case, method: str) -> str:
    """Virtual tokens are placed in three ways, by what writes the output; LoRA and adapters serve every layer alike."""
    if method in ("lora", "adapter"):
        return "layer"
    return output if (output := output_of(case)) in ("next", "target") else modality_of(case)


def shown(case, method: str, settings: set[str]) -> set[tuple[str, ...]]:
    """What the method meets in this variant: the kinds of these settings, by form, and what the family reads."""
    kinds = {
        name: value.get("kind", "") if isinstance(value, dict) else value for name, value in settings_of(case).items()
    }
    met = {(form(case, method), name, repr(kind)) for name, kind in kinds.items() if name in settings}
    return met | {(case[0], "reads", modality_of(case))}


def choose(works: bool, settings: dict[str, set[str]]):
    """The pairs of first variants, and of variants that show something new to the method."""
    chosen = []
    for method, met in settings.items():
        cases = [case for case in CASES if SUPPORTED[case, method] == works]
        first = [case for case in cases if case[1] == FIRST[case[0]]]
        seen = set().union(*(shown(case, method, met) for case in first))
        for case in cases:
            if case in first or not shown(case, method, met) <= seen:
                chosen.append((case, method))
            seen |= shown(case, method, met)
    return chosen


MODELS = {case: plain_model(case) for case in CASES}
SUPPORTED = {(case, method): supported(MODELS[case], method) for case in CASES for method in METHODS}
del MODELS
FIRST = dict(reversed(CASES))
PAIRS = choose(True, MEETS)
UNSUPPORTED = choose(False, dict.fromkeys(METHODS, CHECKED))
VIRTUAL = [each for each in PAIRS if each[1] in ("prompt", "prefix") or FIRST[each[0][0]] == each[0][1]]
GENERATORS = [each for each in VIRTUAL if output_of(each[0]) in ("target", "next")]
DECODER_ONLY = [each for each in VIRTUAL if output_of(each[0]) == "next"]
PREPENDED = [
    (case, method)
    for case, method in VIRTUAL
    if method == "prompt" or (method == "prefix" and (case, method) in DECODER_ONLY)
    if output_of(case) not in ("label", "embedding")  # they depend on all tokens
]

PACKED = [
    each
    for each in VIRTUAL
    if modality_of(each[0]) == "tokens" and "packing" not in LOOSE.get(each[0], ())
    if output_of(each[0]) not in ("label", "embedding")  # a row has one
]


def pair_id(pair) -> str:
    return f"{' '.join(pair[0])} {pair[1]}"


def tuned_subject(pair, perturbed: bool = True):
    """A subject of laws whose model is tuned; `perturbed`: its new parameters differ from their initial values."""
    case, method = pair
    subject = case_subject(case)
    model = tune.attach(subject.module, METHODS[method], init_tokens=INIT_TOKENS)
    if perturbed:
        torch.manual_seed(6)
        for each in model.tune.parameters():
            each.data += 0.1 * torch.randn_like(each)
    subject.module = model.eval()
    return subject


def tuned_model(case, method) -> nn.Module:
    return tuned_subject((case, method)).module


def outputs(subject, given, model: nn.Module | None = None):
    """The outputs of all rows, of this model or the subject's own."""
    if model is not None:
        subject.module = model
    return torch.stack(subject.read(given if isinstance(given, Inputs) else inputs(given)))


all_pairs = pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
one_per_family = pytest.mark.parametrize(
    "pair", [each for each in PAIRS if FIRST[each[0][0]] == each[0][1]], ids=pair_id
)
virtual = pytest.mark.parametrize("pair", VIRTUAL, ids=pair_id)


@torch.no_grad()
@pytest.mark.parametrize("pair", [each for each in PAIRS if each[1] in ("lora", "adapter")], ids=pair_id)
def test_lora_and_adapters_start_as_the_identity(pair):
    plain, tokens = case_subject(pair[0]), sample(pair[0], 2, 6)
    wanted = outputs(plain, tokens)
    assert (outputs(tuned_subject(pair, perturbed=False), tokens) - wanted).abs().max() < 1e-5
    assert (outputs(tuned_subject(pair), tokens) - wanted).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("pair", PREPENDED, ids=pair_id)
def test_initial_virtual_tokens_equal_real_tokens(pair):
    """Initial prompts, and in causal models initial prefixes, act like the same tokens before the text."""
    tokens = ids(2, 6)
    longer = torch.cat([torch.tensor([INIT_TOKENS, INIT_TOKENS]), tokens], 1)
    found, wanted = outputs(tuned_subject(pair, perturbed=False), tokens), outputs(case_subject(pair[0]), longer)
    before = 0 if output_of(pair[0]) == "target" else len(INIT_TOKENS)
    assert (found - wanted[:, before:]).abs().max() < 1e-4


@all_pairs
def test_only_injected_parameters_are_trained(pair):
    subject = tuned_subject(pair)
    model = subject.module
    whole = {name: each.clone() for name, each in model.state_dict().items()}
    found = outputs(subject, sample(pair[0], 2, 5))
    loss = smoothed_cross_entropy(found, torch.randint(4, 40, found.shape[:-1]))
    loss.backward()
    zeros = ("tune.decoder.layers.0.attention.",) if pair[0][0] == "detr" else ()  # its input is zeros, as in the paper
    zeros += ("tune.ctc.",) if pair[0][0] in ("speech", "omni") else ()  # the decoder does without
    zeros += ("tune.fertility.", "tune.length.") if pair[0][0] in ("nat", "cmlm") else ()  # so does theirs
    if pair[0][0] == "clip" and modality_of(pair[0]) != "tokens":
        zeros += ("tune.text.", "tune.text_projection.")  # the tower of texts is not read
    zeros += ("tune.anchors.",) if pair[0] == ("detr", "proposed") else ()  # the choice of boxes has no gradient
    for name, each in model.named_parameters():
        trained = name.startswith("tune.")
        assert each.requires_grad == trained and (each.grad is not None or name.startswith(zeros)) == trained, name
        if trained and not name.startswith(zeros):
            assert each.grad.abs().max() > 0, name
    torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1).step()
    for name, each in model.state_dict().items():
        assert name.startswith(zeros) or each.equal(whole[name]) == (not name.startswith("tune.")), name


@torch.no_grad()
@one_per_family
def test_saving_and_loading_is_the_identity_and_small_and_detach_restores_the_base(pair, tmp_path):
    case, method = pair
    subject, tokens = tuned_subject(pair), sample(case, 2, 5)
    model, plain = subject.module, plain_model(case)
    save_model(model, tmp_path / "model.safetensors", 7)
    again = tune.attach(plain_model(case), METHODS[method])  # with other initial tokens
    assert load_model(again, tmp_path / "model.safetensors") == 7
    assert outputs(subject, tokens).equal(outputs(subject, tokens, again.eval()))
    size = sum(each.numel() for each in model.tune.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * size + 200 * len(list(model.tune.parameters())) + 200

    model = tune.detach(model)
    assert type(model) is type(plain) and getattr(model, "context", 0) == getattr(plain, "context", 0)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True))
    assert outputs(subject, tokens, plain).equal(outputs(subject, tokens, model))
    assert all(each.requires_grad for each in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("case", [case for case, method in PAIRS if method == "lora"], ids=" ".join)
def test_merged_equals_unmerged_and_unmerge_restores_the_bytes(case):
    subject, tokens = tuned_subject((case, "lora")), sample(case, 2, 6)
    model = subject.module
    base = {name: each.clone() for name, each in model.state_dict().items()}
    beside = outputs(subject, tokens)
    with lora.merged(model):
        folded = outputs(subject, tokens)
        assert not all(each.equal(base[name]) for name, each in model.state_dict().items())
    assert (folded - beside).abs().max() < 1e-4 * beside.abs().max().clamp(min=1)
    assert all(each.equal(base[name]) for name, each in model.state_dict().items())
    assert outputs(subject, tokens).equal(beside)


# --- the laws of every family hold for tuned models too --------------------------------------------------------------


@torch.no_grad()
@virtual
def test_tuned_models_keep_the_laws(pair):
    """Of rows and recordings, and where they apply of packed rows, of generation and of its caches."""
    subject = tuned_subject(pair)
    LAWS["batch_invariance"](subject)
    check_recorded_attention_excludes_virtual_tokens(subject, case_subject(pair[0]))
    if pair in PACKED:
        check_packed_equals_separate(subject, pair[1])
    if pair in GENERATORS:
        LAWS["causality"](subject)
        LAWS["growing_cache" if pair[0][1] in ("rotary", "additive", "prenorm") else "fixed_cache"](subject)
        check_capacity_excludes_virtual_tokens(subject)
    if pair in DECODER_ONLY:
        check_a_reset_row_keeps_its_virtual_tokens(subject)


def check_recorded_attention_excludes_virtual_tokens(subject, plain):
    texts = subject.probe.batch(subject.sample(6, 3))
    wanted = subject.read(texts)
    with record_attention(subject.module) as maps:
        assert all((a - b).abs().max() < 1e-4 for a, b in zip(subject.read(texts), wanted, strict=True))
    with record_attention(plain.module) as plain_maps:
        plain.read(texts)
    assert {path: each.shape for path, each in maps.items()} == {path: each.shape for path, each in plain_maps.items()}


def check_packed_equals_separate(subject, method):
    if method == "prompt" and hasattr(subject.module, "encode"):
        with pytest.raises(ValueError, match="a prompt precedes one text and packed rows hold several"):
            subject.read_packed(subject.sample(6, 3, 8))
    else:
        subject.read_packed(subject.sample(6, 3, 8))  # is not refused
        LAWS["packing"](subject)


def check_capacity_excludes_virtual_tokens(subject):
    tokens = ids(2, 7)
    with torch.enable_grad():
        cache = subject.start(2, 7)
    dense = [each for each in cache.layers if isinstance(each, DenseCache)]
    assert not any(each.k.requires_grad for each in dense)  # generation needs no gradients
    assert (subject.step(tokens, cache) - subject.write(tokens)).abs().max() < 1e-4


def check_a_reset_row_keeps_its_virtual_tokens(subject):
    cache, first, second = subject.start(2, 24), ids(2, 4), ids(2, 3)
    subject.step(first, cache)
    cache.reset(torch.tensor([True, False]))
    found = subject.step(second, cache)
    assert (found[0] - subject.write(second[:1])[0]).abs().max() < 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_tuned_models_compile_into_one_graph(method):
    subject, tokens = tuned_subject((("gpt", "gpt2"), method)), ids(2, 6)
    torch._dynamo.reset()
    compiled = torch.compile(subject.write, backend="eager", fullgraph=True)
    assert (compiled(tokens) - subject.write(tokens)).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("method", ["lora", "prompt", "prefix"])
def test_tuned_models_of_images_compile_into_one_graph(method):
    subject, image = tuned_subject((("vit", "paper"), method)), sample(("vit", "paper"), 2, 0)
    torch._dynamo.reset()
    compiled = torch.compile(lambda given: torch.stack(subject.read(given)), backend="eager", fullgraph=True)
    assert (compiled(image) - torch.stack(subject.read(image))).abs().max() < 1e-5


def test_a_failing_call_leaves_no_keys_of_the_prompt():
    model = tuned_model(("gpt", "gpt2"), "prompt")
    with pytest.raises(IndexError):
        model.decode(inputs(torch.full((1, 3), 10**6)))
    assert not model.tune._key_values and not model.tune._prompted and not model.tune._captures


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
    model = plain_model(case)
    with pytest.raises(
        UserError,
        match=f"tune.kind={method} does not work with this model: (its attention|its first token|its decoder|it has no linear)",
    ):
        tune.attach(model, METHODS[method])


def test_the_list_of_unsupported_methods():
    refused = {pair for pair, works in SUPPORTED.items() if not works}
    assert {case for case, _ in refused} >= {
        ("xl", "paper"),
        ("gpt", "window"),
        ("gpt", "favor"),
        ("bert", "favor"),
    }
    assert SUPPORTED[("xl", "without memory"), "prefix"] and SUPPORTED[("bert", "favor"), "prompt"]
    assert all(works for (_, method), works in SUPPORTED.items() if method == "adapter")  # every model has a sublayer
    assert {case[0] for case, method in refused if method == "lora"} == {
        "rnn"
    }  # fused recurrences are not linear layers


def test_every_method_runs_on_every_family_and_every_setting_is_declared():
    families = {family for family, _ in CASES}
    for method in METHODS:
        assert {case[0] for case, name in PAIRS + UNSUPPORTED if name == method} == families
        assert MEETS[method].isdisjoint(UNMET)
    assert {name for case in CASES for name in settings_of(case)} == set.union(UNMET, *MEETS.values())


@pytest.mark.parametrize("case", [case for case in CASES if case[1] in ("paper", "gpt2", "later")], ids=" ".join)
def test_an_unmatched_pattern_lists_the_layers(case):
    with pytest.raises(
        UserError, match=r"tune.pattern='qeury' matches no linear layer of the model; it has \S+\.\*\.attent"
    ):
        tune.attach(plain_model(case), Lora(pattern="qeury"))
    model = plain_model(case)
    with pytest.raises(UserError, match="matches no linear layer"):  # a tied head shares the table of the embedding
        tune.attach(model, Lora(pattern="^(head|words.out)$")) if case[0] != "t5" else attach_to_positions(model)


def attach_to_positions(model):
    tune.attach(model, Lora(pattern="^positions$"))


def test_other_errors():
    case = ("gpt", "sinusoid")
    vocab = case_subject(case).size
    for settings, words in (
        (Lora(pattern="("), "tune.pattern is '('; expected a regular expression"),
        (Lora(rank=60, pattern="feed|head"), f"tune.rank is 60, above the {vocab} that head ({vocab} × 128) allows"),
        (Lora(rank=129), "tune.rank is 129, above the 128 that stack.layers.0.attention.query (128 × 128) allows"),
    ):
        model = plain_model(case)
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
    model = plain_model(("bert", "tags"))
    tune.attach(model, EVERY_LAYER, fully_trained=("classes.weight", "classes.bias"))
    assert "classes" not in [path for path, _, _ in lora.branches(model)]
    trained = {name for name, each in model.named_parameters() if each.requires_grad and not name.startswith("tune.")}
    assert trained == {"classes.weight", "classes.bias"}
