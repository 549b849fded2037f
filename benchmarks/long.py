"""`python -m benchmarks long`: Longformer and BigBird on a long text, beside Hugging Face with the same weights.

On a GPU in bf16, ours compiled and theirs compiled and not; on a CPU in fp32. One forward pass is timed.
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.device import resolve_device
from regard.errors import UserError
from regard.formats.huggingface import bigbird, longformer
from regard.parts import Inputs

from .report import Report, Section
from .timing import RunRound, rounds, synchronize
from .translate import environment
from .translate.peers import installed

SIZES = ("base", "tiny")
PARTS = ("longformer", "bigbird")
TOLERANCE = 1e-3  # between outputs in fp32, whose values are about 1
WEIGHT_SCALE = 3.0  # initial weights give attention so flat that errors would not show

Forward = Callable[[], Tensor]  # the last hidden states of the text


@dataclass(frozen=True)
class LongWorkload:
    """The text length and the size of the encoder."""

    tokens: int
    width: int
    heads: int
    radius: int = 256
    block: int = 64
    random: int = 3
    layers: int = 2
    vocab: int = 1000
    precision: torch.dtype = torch.float32


def make_workload(size: str, device: torch.device) -> LongWorkload:
    if size == "tiny":
        return LongWorkload(tokens=203, width=24, heads=2, radius=4, block=4)
    if device.type == "cuda":
        return LongWorkload(tokens=16384, width=768, heads=12, precision=torch.bfloat16)
    return LongWorkload(tokens=8192, width=256, heads=4)


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes = resolve_device(device), list[str]()
    workload, sections = make_workload(size, where), []
    if not installed("transformers", notes):
        raise UserError(
            "this benchmark compares with transformers, which is not installed; run pip install transformers"
        )
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        sections += SECTIONS[part](workload, where, count, notes)
    return Report("long", environment(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


def longformer_sections(workload: LongWorkload, device: torch.device, count: int, notes: list[str]) -> list[Section]:
    import transformers as hf

    config = hf.LongformerConfig(
        **shape(workload), attention_window=2 * workload.radius, pad_token_id=1, type_vocab_size=1
    )
    theirs = scale_weights(hf.LongformerModel(config, add_pooling_layer=False))
    state = theirs.state_dict()
    ours = longformer.FORMAT.build_model(Path(), config.to_dict(), dict(state)).model
    found = []
    for with_global in (False, True):
        global_mask = torch.zeros(1, workload.tokens, dtype=torch.long, device=device)
        global_mask[:, 0] = int(with_global)
        marked = torch.zeros(1, 1, dtype=torch.long, device=device) if with_global else None
        options = {"global_attention_mask": global_mask} if with_global else {}
        name = f"Longformer{', first token global' if with_global else ''}"
        found.append(section(name, workload, device, count, notes, (ours, marked), (theirs, options)))
    return found


def bigbird_sections(workload: LongWorkload, device: torch.device, count: int, notes: list[str]) -> list[Section]:
    import transformers as hf

    config = hf.BigBirdConfig(**shape(workload), block_size=workload.block, num_random_blocks=workload.random)
    theirs = scale_weights(hf.BigBirdModel(config, add_pooling_layer=False))
    state = theirs.state_dict()
    ours = bigbird.FORMAT.build_model(Path(), config.to_dict(), dict(state)).model
    return [section("BigBird", workload, device, count, notes, (ours, None), (theirs, {}), with_random_blocks(ours))]


def shape(workload: LongWorkload) -> dict[str, Any]:
    return {
        "vocab_size": workload.vocab, "hidden_size": workload.width, "num_attention_heads": workload.heads,
        "num_hidden_layers": workload.layers, "intermediate_size": 4 * workload.width,
        "max_position_embeddings": workload.tokens + workload.block,  # room for the padding of Hugging Face
    }  # fmt: skip


def scale_weights(model: Any) -> Any:
    torch.manual_seed(1)
    for each in model.parameters():
        each.data = each.data * WEIGHT_SCALE if each.dim() > 1 else each.data + 0.1 * torch.randn_like(each)
    return model.eval()


def with_random_blocks(model: Any) -> Any:
    """A copy whose random blocks are sampled, as regard trains it: another function, with more work."""
    other = copy.deepcopy(model)
    for layer in other.encoder.layers:
        layer.attention.kernel.drawn = True
    return other


# --- one section -----------------------------------------------------------------------------------------------------


def section(
    name: str,
    workload: LongWorkload,
    device: torch.device,
    count: int,
    notes: list[str],
    ours: Any,
    theirs: Any,
    more: Any = None,
) -> Section:
    """Time `ours` (model, global positions) and `theirs` (model, arguments) on one text; `more` is one more of ours."""
    gpu = device.type == "cuda"
    text = torch.randint(4, workload.vocab, (1, workload.tokens), generator=torch.Generator().manual_seed(2)).to(device)
    (model, marked), (peer, options) = ours, theirs
    models = {
        "regard": our_forward(model, marked, text, device),
        "HF": their_forward(peer, options, text, device),
    }
    if more is not None:
        models["regard, blocks drawn"] = our_forward(more, marked, text, device)
    exact = {who: read() for who, (_, read) in models.items()}
    difference = (exact["regard"] - exact["HF"]).abs().max().item()
    if not difference < TOLERANCE:
        raise UserError(f"{name}: outputs differ by {difference:.1e} in fp32, so nothing was timed")
    size = f"{workload.layers} layers × {workload.width}, {workload.heads} heads"
    facts = [
        f"1 × {workload.tokens} tokens, {size}, {str(workload.precision)[6:]}",
        f"outputs differ by {difference:.1e} in fp32",
    ]
    for model, _ in models.values():
        model.to(workload.precision)
    programs = {who: read for who, (_, read) in models.items()}
    if gpu:
        programs = compiled(programs, notes) | programs
    facts += check(name, programs, exact) if workload.precision != torch.float32 else []
    facts += peak_memory(programs, models, device) if gpu else []
    rates = rounds({who: count_tokens(read, workload.tokens) for who, read in programs.items()}, count, device)
    return Section(name, "tokens/s", rates, tuple(who for who in programs if who.startswith("regard")), facts)


def our_forward(
    model: Any, global_positions: Tensor | None, text: Tensor, device: torch.device
) -> tuple[nn.Module, Forward]:
    own, inputs = copy.deepcopy(model).to(device), Inputs("tokens", text, global_positions=global_positions)
    return own, torch.no_grad()(lambda: own.encode(inputs).states)


def their_forward(model: Any, options: dict[str, Any], text: Tensor, device: torch.device) -> tuple[nn.Module, Forward]:
    own, valid = copy.deepcopy(model).to(device), torch.ones_like(text)
    return own, torch.no_grad()(lambda: own(text, attention_mask=valid, **options).last_hidden_state)


def compiled(programs: dict[str, Forward], notes: list[str]) -> dict[str, Forward]:
    """Compile all programs; a note says which of theirs cannot be compiled."""
    found = {}
    for who, read in programs.items():
        print(f"compiling {who} …", file=sys.stderr)  # may take minutes
        faster = torch.compile(read, dynamic=False)
        try:
            faster()
        except Exception as error:  # any compiler failure
            if who.startswith("regard"):
                raise
            notes.append(f"{who} could not be compiled: {str(error).splitlines()[0]}")
        else:
            found[f"{who}, compiled"] = faster
    return found


def count_tokens(read: Forward, tokens: int) -> RunRound:
    def go(number: int) -> float:
        read()
        return tokens

    return go


def check(name: str, programs: dict[str, Forward], exact: dict[str, Tensor]) -> list[str]:
    """Check that in lower precision no program differs from fp32 by twice as much as Hugging Face."""
    errors = {
        who: (read() - exact[who.partition(", compiled")[0]]).abs().mean().item() for who, read in programs.items()
    }
    far = [who for who, each in errors.items() if not each < 2 * errors["HF"]]
    if far:
        raise UserError(
            f"{name}: {far[0]} differs from fp32 by {errors[far[0]]:.1e}, so nothing was timed; HF {errors['HF']:.1e}"
        )
    return ["mean difference from fp32: " + ", ".join(f"{who} {each:.1e}" for who, each in errors.items())]


def peak_memory(programs: dict[str, Forward], models: dict[str, Any], device: torch.device) -> list[str]:
    """Peak memory of each program in a forward pass, with its weights."""
    peaks = []
    for who, read in programs.items():
        own = models[who.partition(", compiled")[0]][0]
        held = sum(each.numel() * each.element_size() for each in own.parameters())
        read()
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        read()
        synchronize(device)
        peaks.append(f"{who} {(torch.cuda.max_memory_allocated(device) - before + held) / 2**30:.2f} GiB")
    return ["peak memory: " + ", ".join(peaks)]


SECTIONS = {"longformer": longformer_sections, "bigbird": bigbird_sections}
