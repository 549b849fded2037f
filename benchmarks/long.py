"""`regard bench long`: Longformer and BigBird read one long text beside Hugging Face's, with the same weights.

On a GPU in bf16, ours compiled and theirs both ways; on a CPU in fp32. What is timed is one forward pass.
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.device import resolve_device
from regard.errors import UserError
from regard.families.bigbird import Model as BigBird
from regard.families.longformer import Model as Longformer
from regard.formats.huggingface import bigbird, longformer
from regard.formats.huggingface.weight_names import load_weights
from regard.parts import Mask
from regard.training import optim as optim

from .report import Report, Section
from .timing import Way, rounds, settle
from .translate import about
from .translate.peers import installed

SIZES = ("base", "tiny")
PARTS = ("longformer", "bigbird")
APART = 1e-3  # between outputs in fp32, of numbers that are about 1
LOUD = 3.0  # times the weights of a beginning, whose attention is so flat that mistakes would not show

Read = Callable[[], Tensor]  # the last states of the text


@dataclass(frozen=True)
class Plan:
    """One text, and the encoder that reads it."""

    tokens: int
    width: int
    heads: int
    radius: int = 256
    block: int = 64
    random: int = 3
    layers: int = 2
    vocab: int = 1000
    precision: torch.dtype = torch.float32


def planned(size: str, device: torch.device) -> Plan:
    if size == "tiny":
        return Plan(tokens=203, width=24, heads=2, radius=4, block=4)
    if device.type == "cuda":
        return Plan(tokens=16384, width=768, heads=12, precision=torch.bfloat16)
    return Plan(tokens=8192, width=256, heads=4)


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes = resolve_device(device), list[str]()
    plan, sections = planned(size, where), []
    if not installed("transformers", notes):
        raise UserError("this bench compares with transformers, which is not installed; pip install transformers")
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        sections += WAYS[part](plan, where, count, notes)
    return Report("long", about(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


def longformers(plan: Plan, device: torch.device, count: int, notes: list[str]) -> list[Section]:
    import transformers as hf

    config = hf.LongformerConfig(**shape(plan), attention_window=2 * plan.radius, pad_token_id=1, type_vocab_size=1)
    theirs = loud(hf.LongformerModel(config, add_pooling_layer=False))
    state = theirs.state_dict()
    c = longformer.from_huggingface(config.to_dict(), state)
    ours = load_weights(Longformer(c), state, longformer.names(c), longformer.unused(c))
    found = []
    for wide in (False, True):
        marks = torch.zeros(1, plan.tokens, dtype=torch.long, device=device)
        marks[:, 0] = int(wide)
        mask = Mask(global_positions=torch.zeros(1, 1, dtype=torch.long, device=device)) if wide else Mask()
        words = {"global_attention_mask": marks} if wide else {}
        name = f"Longformer{', first token global' if wide else ''}"
        found.append(section(name, plan, device, count, notes, (ours, mask), (theirs, words)))
    return found


def bigbirds(plan: Plan, device: torch.device, count: int, notes: list[str]) -> list[Section]:
    import transformers as hf

    config = hf.BigBirdConfig(**shape(plan), block_size=plan.block, num_random_blocks=plan.random)
    theirs = loud(hf.BigBirdModel(config, add_pooling_layer=False))
    state = theirs.state_dict()
    c = bigbird.from_huggingface(config.to_dict(), state)
    ours = load_weights(BigBird(c), state, bigbird.names(c), bigbird.unused(c))
    return [section("BigBird", plan, device, count, notes, (ours, Mask()), (theirs, {}), drawing(ours))]


def shape(plan: Plan) -> dict[str, Any]:
    return {
        "vocab_size": plan.vocab, "hidden_size": plan.width, "num_attention_heads": plan.heads,
        "num_hidden_layers": plan.layers, "intermediate_size": 4 * plan.width,
        "max_position_embeddings": plan.tokens + plan.block,  # some for what theirs pads
    }  # fmt: skip


def loud(model: Any) -> Any:
    torch.manual_seed(1)
    for each in model.parameters():
        each.data = each.data * LOUD if each.dim() > 1 else each.data + 0.1 * torch.randn_like(each)
    return model.eval()


def drawing(model: Any) -> Any:
    """The same, with blocks that are drawn, as it would be trained here: another function, of more work."""
    other = copy.deepcopy(model)
    for layer in other.encoder.layers:
        layer.attention.kernel.drawn = True
    return other


# --- one section -----------------------------------------------------------------------------------------------------


def section(
    name: str, plan: Plan, device: torch.device, count: int, notes: list[str], ours: Any, theirs: Any, more: Any = None
) -> Section:
    """`ours` with its mask and `theirs` with its arguments read the same text; `more` is another one of ours."""
    gpu = device.type == "cuda"
    text = torch.randint(4, plan.vocab, (1, plan.tokens), generator=torch.Generator().manual_seed(2)).to(device)
    (model, mask), (peer, words) = ours, theirs
    models = {"regard": reading(model, mask, text, device), "HF": asking(peer, words, text, device)}
    if more is not None:
        models["regard, blocks drawn"] = reading(more, mask, text, device)
    exact = {who: read() for who, (_, read) in models.items()}
    apart = (exact["regard"] - exact["HF"]).abs().max().item()
    if not apart < APART:
        raise UserError(f"{name}: outputs are {apart:.1e} apart in fp32, so nothing was timed")
    size = f"{plan.layers} layers × {plan.width}, {plan.heads} heads"
    facts = [f"1 × {plan.tokens} tokens, {size}, {str(plan.precision)[6:]}", f"outputs apart by {apart:.1e} in fp32"]
    for model, _ in models.values():
        model.to(plan.precision)
    ways = {who: read for who, (_, read) in models.items()}
    if gpu:
        ways = compiled(ways, notes) | ways
    facts += check(name, ways, exact) if plan.precision != torch.float32 else []
    facts += memories(ways, models, device) if gpu else []
    rates = rounds({who: work(read, plan.tokens) for who, read in ways.items()}, count, device)
    return Section(name, "tokens/s", rates, tuple(who for who in ways if who.startswith("regard")), facts)


def reading(model: Any, mask: Mask, text: Tensor, device: torch.device) -> tuple[nn.Module, Read]:
    own = copy.deepcopy(model).to(device)
    return own, torch.no_grad()(lambda: own.encode(text, mask))


def asking(model: Any, words: dict[str, Any], text: Tensor, device: torch.device) -> tuple[nn.Module, Read]:
    own, seen = copy.deepcopy(model).to(device), torch.ones_like(text)
    return own, torch.no_grad()(lambda: own(text, attention_mask=seen, **words).last_hidden_state)


def compiled(ways: dict[str, Read], notes: list[str]) -> dict[str, Read]:
    """Those that can be; of theirs it is said where they cannot."""
    found = {}
    for who, read in ways.items():
        print(f"compiling {who} …", file=sys.stderr)  # theirs may take minutes
        faster = torch.compile(read, dynamic=False)
        try:
            faster()
        except Exception as error:  # whatever a compiler may say
            if who.startswith("regard"):
                raise
            notes.append(f"{who} could not be compiled: {str(error).splitlines()[0]}")
        else:
            found[f"{who}, compiled"] = faster
    return found


def work(read: Read, tokens: int) -> Way:
    def go(number: int) -> float:
        read()
        return tokens

    return go


def check(name: str, ways: dict[str, Read], exact: dict[str, Tensor]) -> list[str]:
    """In a lower precision nobody may stray further from fp32 than theirs does, by much."""
    stray = {who: (read() - exact[who.partition(", compiled")[0]]).abs().mean().item() for who, read in ways.items()}
    far = [who for who, each in stray.items() if not each < 2 * stray["HF"]]
    if far:
        raise UserError(
            f"{name}: {far[0]} strays from fp32 by {stray[far[0]]:.1e}, so nothing was timed; HF {stray['HF']:.1e}"
        )
    return ["mean distance from fp32: " + ", ".join(f"{who} {each:.1e}" for who, each in stray.items())]


def memories(ways: dict[str, Read], models: dict[str, Any], device: torch.device) -> list[str]:
    """The most memory that each needs while it reads, its own weights counted."""
    told = []
    for who, read in ways.items():
        own = models[who.partition(", compiled")[0]][0]
        held = sum(each.numel() * each.element_size() for each in own.parameters())
        read()
        settle(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        read()
        settle(device)
        told.append(f"{who} {(torch.cuda.max_memory_allocated(device) - before + held) / 2**30:.2f} GiB")
    return ["peak memory: " + ", ".join(told)]


WAYS = {"longformer": longformers, "bigbird": bigbirds}
