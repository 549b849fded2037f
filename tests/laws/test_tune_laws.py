"""Laws of tuning, over every family at size tiny: what begins as nothing, what learns, what stays, what comes back."""

import pytest
import test_laws as laws
import torch
from helpers.families import CASES, LOOSE, DecoderOnly, EncoderDecoder, config, ids, kind, loud, some
from torch import nn

from regard.adapt import lora, tune
from regard.config.run import family_of
from regard.config.schema import Adapter, Lora, Prefix, Prompt
from regard.errors import UserError
from regard.families import FAMILIES
from regard.parts.cache.slots import DenseCache
from regard.parts.losses import smoothed_cross_entropy
from regard.training.checkpoint import load_model, save_model

EVERY = Lora(rank=3, alpha=5.0, pattern="(?<!score)$")  # every map but that of an additive kernel, of rank 1
METHODS = {"lora": EVERY, "adapter": Adapter(bottleneck=5), "prompt": Prompt(length=3), "prefix": Prefix(length=3)}
WORDS = [7, 21, 9]


def sensible(case: tuple[str, str], method: str) -> bool:
    try:
        tune.attach(loud(*case), METHODS[method])
    except UserError as mistake:
        if "makes no sense" not in str(mistake):
            raise
        return False
    return True


PAIRS = [(case, method) for case in CASES for method in METHODS if sensible(case, method)]
SENSELESS = [(case, method) for case in CASES for method in METHODS if (case, method) not in PAIRS]
FIRST = dict(reversed(CASES))
FRONT = [each for each in PAIRS if each[1] in ("prompt", "prefix") or FIRST[each[0][0]] == each[0][1]]
WRITERS = [each for each in FRONT if kind(*each[0]).writes]
ALONE = [each for each in FRONT if kind(*each[0]) is DecoderOnly]  # writers that read nothing else
PRECEDED = [
    (case, method) for case, method in FRONT if method == "prompt" or (method == "prefix" and (case, method) in ALONE)
]


def named(pair) -> str:
    return f"{' '.join(pair[0])} {pair[1]}"


def attached(case, method, stirred: bool = True) -> nn.Module:
    """A tuned model; `stirred`: what it has learnt is no zero any more."""
    model = tune.attach(loud(*case), METHODS[method], words=WORDS)
    if stirred:
        torch.manual_seed(6)
        for each in model.tune.parameters():
            each.data += 0.1 * torch.randn_like(each)
    return model.eval()


def told(pair):
    """A tuned model behind the verbs of its kind."""
    return kind(*pair[0])(attached(*pair))


every = pytest.mark.parametrize("pair", PAIRS, ids=named)
firsts = pytest.mark.parametrize("pair", [each for each in PAIRS if FIRST[each[0][0]] == each[0][1]], ids=named)
front = pytest.mark.parametrize("pair", FRONT, ids=named)
writers = pytest.mark.parametrize("pair", WRITERS, ids=named)


@torch.no_grad()
@pytest.mark.parametrize("pair", [each for each in PAIRS if each[1] in ("lora", "adapter")], ids=named)
def test_they_begin_as_nothing(pair):
    case, method = pair
    plain, tokens = loud(*case), ids(2, 6)
    tuned = attached(case, method, stirred=False)
    wanted = kind(*case)(plain).read(tokens)
    assert (kind(*case)(tuned).read(tokens) - wanted).abs().max() < 1e-5
    assert (kind(*case)(attached(case, method)).read(tokens) - wanted).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("pair", PRECEDED, ids=named)
def test_words_before_a_text_are_words_of_the_text(pair):
    """What prompts begin as, and in models that see only the past prefixes too: the same text with words in front."""
    case, method = pair
    tuned, plain, tokens = attached(case, method, stirred=False), loud(*case), ids(2, 6)
    longer = torch.cat([torch.tensor([WORDS, WORDS]), tokens], 1)
    if kind(*case) is EncoderDecoder:
        target = ids(2, 4)
        assert (tuned(tokens, target) - plain(longer, target)).abs().max() < 1e-4
    else:
        assert (tuned(tokens) - plain(longer)[:, 3:]).abs().max() < 1e-4


@every
def test_only_they_learn(pair):
    it = told(pair)
    whole = {name: each.clone() for name, each in it.model.state_dict().items()}
    tokens = ids(2, 6)
    loss = smoothed_cross_entropy(it.read(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    for name, each in it.model.named_parameters():
        learns = name.startswith("tune.")
        assert each.requires_grad == learns and (each.grad is not None) == learns, name
        assert not learns or each.grad.abs().max() > 0, name
    torch.optim.SGD([each for each in it.model.parameters() if each.requires_grad], 0.1).step()
    for name, each in it.model.state_dict().items():
        assert each.equal(whole[name]) != name.startswith("tune."), name


@torch.no_grad()
@firsts
def test_saved_and_loaded_is_the_same_and_small(pair, tmp_path):
    case, method = pair
    model, tokens = attached(*pair), ids(2, 5)
    save_model(model, tmp_path / "model.safetensors", 7)
    again = tune.attach(loud(*case), METHODS[method])  # from other words
    assert load_model(again, tmp_path / "model.safetensors") == 7
    assert kind(*case)(again.eval()).read(tokens).equal(kind(*case)(model).read(tokens))
    size = sum(each.numel() for each in model.tune.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * size + 200 * len(list(model.tune.parameters())) + 200


@torch.no_grad()
@firsts
def test_taken_away_the_base_is_there_again(pair):
    case, _ = pair
    plain, tokens = loud(*case), ids(2, 5)
    model = tune.detach(attached(*pair))
    assert type(model) is type(plain) and getattr(model, "context", 0) == getattr(plain, "context", 0)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True))
    assert kind(*case)(model).read(tokens).equal(kind(*case)(plain).read(tokens))
    assert all(each.requires_grad for each in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("case", [case for case, method in PAIRS if method == "lora"], ids=" ".join)
def test_merged_is_the_side_path_and_unmerged_the_same_bytes(case):
    it, tokens = kind(*case)(attached(case, "lora")), ids(2, 6)
    base = {name: each.clone() for name, each in it.model.state_dict().items()}
    beside = it.read(tokens)
    with lora.merged(it.model):
        folded = it.read(tokens)
        assert not all(each.equal(base[name]) for name, each in it.model.state_dict().items())
    assert (folded - beside).abs().max() < 1e-4 * beside.abs().max().clamp(min=1)
    assert all(each.equal(base[name]) for name, each in it.model.state_dict().items())
    assert it.read(tokens).equal(beside)


# --- the laws of every family hold for tuned models, too -------------------------------------------------------------


@front
def test_padding_and_batch_mates_change_nothing(pair):
    laws.test_padding_and_batch_mates_change_nothing(told(pair))


@pytest.mark.parametrize("pair", [each for each in FRONT if "packed" not in LOOSE.get(each[0], ())], ids=named)
def test_packed_is_separate(pair):
    it = told(pair)
    if pair[1] == "prompt" and hasattr(it.model, "encode"):
        with pytest.raises(ValueError, match="a prompt goes before a text, and packed rows hold several"):
            it.packed(some(6, 3, 8))
    else:
        laws.test_packed_is_separate(it, pair[0])


@writers
def test_the_future_changes_nothing(pair):
    laws.test_the_future_changes_nothing(told(pair))


@writers
def test_cached_is_uncached(pair):
    laws.test_cached_is_uncached(told(pair), None if pair[0][1] in ("rotary", "additive", "prenorm") else 24)


@torch.no_grad()
@pytest.mark.parametrize("pair", [each for each in WRITERS if FIRST[each[0][0]] == each[0][1]], ids=named)
def test_a_capacity_is_that_of_the_text(pair):
    it, tokens = told(pair), ids(2, 7)
    with torch.enable_grad():
        cache = it.start(2, 7)
    dense = [each for each in cache.layers if isinstance(each, DenseCache)]
    assert not any(each.k.requires_grad for each in dense)  # nobody learns from writing
    found = it.model.step(tokens, cache)
    assert (found - it.read(tokens)).abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("pair", ALONE, ids=named)
def test_a_row_that_starts_anew_finds_what_stands_before_it(pair):
    it = told(pair)
    cache, first, second = it.start(2, 24), ids(2, 4), ids(2, 3)
    it.model.step(first, cache)
    cache.reset(torch.tensor([True, False]))
    found = it.model.step(second, cache)
    assert (found[0] - it.read(second[:1])[0]).abs().max() < 1e-4


@torch.no_grad()
@front
def test_what_is_seen_of_attention_is_the_text(pair):
    it, texts = told(pair), some(6, 3)
    plain = it.together(texts)
    with laws.recording(it.model) as maps:
        assert all((a - b).abs().max() < 1e-4 for a, b in zip(it.together(texts), plain, strict=True))
    assert sorted(maps) == sorted(it.paths())
    for path, weights in maps.items():
        assert weights.shape[2:] == it.hidden(path, texts).expand(-1, -1, weights.size(2), -1).shape[2:]


@pytest.mark.parametrize("method", METHODS)
def test_they_compile_into_one_graph(method):
    it, tokens = told((("gpt", "gpt2"), method)), ids(2, 6)
    torch._dynamo.reset()
    compiled = torch.compile(it.read, backend="eager", fullgraph=True)
    assert (compiled(tokens) - it.read(tokens)).abs().max() < 1e-5


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "method"), SENSELESS, ids=[f"{' '.join(case)} {method}" for case, method in SENSELESS]
)
def test_where_they_make_no_sense(case, method):
    model = loud(*case)
    with pytest.raises(
        UserError,
        match=f"tune.kind={method} makes no sense for this model: (its attention|its first token|it has no linear)",
    ):
        tune.attach(model, METHODS[method])


def test_some_are_refused():
    assert {case for case, _ in SENSELESS} >= {("xl", "paper"), ("gpt", "window"), ("gpt", "favor"), ("bert", "favor")}
    assert (("xl", "without memory"), "prefix") in PAIRS and (("bert", "favor"), "prompt") in PAIRS
    assert {case for case, method in PAIRS if method == "adapter"} == set(
        CASES
    )  # every model has something to stand behind
    assert {case[0] for case, method in SENSELESS if method == "lora"} == {
        "rnn"
    }  # fused recurrences are no linear maps


@pytest.mark.parametrize("case", [case for case in CASES if case[1] in ("paper", "gpt2", "later")], ids=" ".join)
def test_a_pattern_that_fits_nothing_shows_what_there_is(case):
    with pytest.raises(
        UserError, match=r"tune.pattern='qeury' fits no linear map of the model; it has \S+\.\*\.attent"
    ):
        tune.attach(loud(*case), Lora(pattern="qeury"))
    model = family_of(case[0]).Model(config(*case))
    with pytest.raises(UserError, match="fits no linear map"):  # its table is the embedding's: not its own to change
        tune.attach(model, Lora(pattern="^(head|words.out)$")) if case[0] != "t5" else matching_nothing(model)


def matching_nothing(model):
    tune.attach(model, Lora(pattern="^positions$"))


def test_more_mistakes():
    case = ("gpt", "sinusoid")
    for settings, words in (
        (Lora(pattern="("), "tune.pattern is '(', no regular expression"),
        (Lora(rank=60, pattern="feed|head"), "tune.rank is 60, above the 53 that head (53 × 128) can have"),
        (Lora(rank=129), "tune.rank is 129, above the 128 that stack.layers.0.attention.query (128 × 128) can have"),
    ):
        model = loud(*case)
        with pytest.raises(UserError) as error:
            tune.attach(model, settings)
        assert words in str(error.value) and not any(each._forward_hooks for each in model.modules())
    with pytest.raises(UserError, match="the model is tuned by lora already; one module takes one method"):
        tune.attach(attached(case, "lora"), Adapter())
    with pytest.raises(UserError, match="only LoRA can be folded into a model, and this one has none"):
        lora.merge(attached(case, "adapter"))
    with pytest.raises(UserError, match="makes no sense for this model: nothing that it could stand behind is called"):
        tune.attach(nn.Sequential(nn.Linear(3, 3)), Adapter())
    with pytest.raises(UserError, match="tune.kind=prefix makes no sense for this model: it has no attention"):
        tune.attach(nn.Sequential(nn.Linear(3, 3)), Prefix())


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_that_say_labels_are_known(name):
    """They are every data's own, so they are trained whatever is frozen."""
    module = family_of(name)
    assert ("labels" in module.Config.model_fields) == bool(getattr(module, "LABEL_MODULES", ()))


def test_a_head_that_is_trained_whole_has_no_path_beside_it():
    model = loud("bert", "tags")
    tune.attach(model, EVERY, whole=("classes.weight", "classes.bias"))
    assert "classes" not in [path for path, _, _ in lora.sides(model)]
    learns = {name for name, each in model.named_parameters() if each.requires_grad and not name.startswith("tune.")}
    assert learns == {"classes.weight", "classes.bias"}
