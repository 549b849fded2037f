"""`python -m benchmarks generate`: generation and training of GPT-2, beside Hugging Face and nanoGPT.

Weights are random and the same in every program; each generates a fixed number of tokens. nanoGPT is one file,
peers/nanoGPT/model.py in the working directory; if that does not exist, it is left out.
"""

import copy
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.adapt import precision
from regard.config.losses import SmoothedLoss
from regard.config.train import AdamW
from regard.data.batch import Batch
from regard.decode import SearchSettings, Suppress, run_search
from regard.decode.search.beam import SHAPE_MULTIPLE
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import gpt
from regard.formats.huggingface.gpt2 import FORMAT
from regard.parts.inputs import Inputs
from regard.tasks.objectives import LanguageObjective
from regard.training import optim

from .report import Report, Section
from .timing import RunRound, rounds
from .translate import environment
from .translate.peers import installed

SIZES = ("gpt2", "tiny")
PARTS = ("writing", "training")
PROMPT = 16  # tokens
TOLERANCE = 1e-4  # nats per token between programs with the same weights
MIN_EQUAL = 0.9  # of the texts: rounding decides between two tokens of equal probability
END = 0

SearchRequest = Callable[[], list[list[int]]]  # the tokens generated after every prompt
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # mean loss of tokens and targets (rows, context)


@dataclass(frozen=True)
class GenerateWorkload:
    """How much is generated and trained."""

    vocab: int = 50304  # a multiple of 64, as nanoGPT has it
    rows: tuple[int, ...] = (1,)  # prompts at once
    tokens: int = 48
    batch: int = 2  # windows in a step
    context: int = 256
    steps: int = 2  # in a round
    precision: str = "fp32"  # of training


def make_workload(size: str, device: torch.device) -> GenerateWorkload:
    if size == "tiny":
        return GenerateWorkload(vocab=320, rows=(1, 3), tokens=6, context=32, steps=1)
    if device.type == "cuda":
        return GenerateWorkload(rows=(1, 32), tokens=256, batch=32, context=1024, steps=10, precision="bf16")
    return GenerateWorkload()


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes = resolve_device(device), list[str]()
    workload = make_workload(size, where)
    positions = {"kind": "learned", "tokens": max(workload.context, PROMPT + workload.tokens)}
    c = gpt.Config.model_validate(gpt.SIZES[size] | {"size": size, "vocab": workload.vocab, "positions": positions})
    torch.manual_seed(1)
    model, sections = gpt.Model(c).to(where).eval(), []
    if "writing" in parts:
        print("timing writing …", file=sys.stderr)
        sections += [
            generation(model, c, replace(workload, rows=(rows,)), where, count, notes) for rows in workload.rows
        ]
    if "training" in parts:
        print("timing training …", file=sys.stderr)
        sections.append(training(model, c, workload, where, count, notes))
    return Report(
        "generate", environment(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes))
    )


def tensors(model: gpt.Model, c: gpt.Config) -> dict[str, Tensor]:
    """The weights by the names of transformers."""
    return FORMAT.tensors(SimpleNamespace(module=model, run=SimpleNamespace(model=c)))  # type: ignore[arg-type]


def hugging_face(model: gpt.Model, c: gpt.Config, device: torch.device) -> Any:
    import transformers as hf

    hf.utils.logging.set_verbosity_error()
    settings: dict[str, Any] = FORMAT.config(c) | {"attn_implementation": "sdpa"}
    theirs: Any = hf.GPT2LMHeadModel(hf.GPT2Config(**settings))
    theirs.load_state_dict(tensors(model, c), strict=False)  # a tied table is stored once
    theirs.tie_weights()
    return theirs.to(device)


# --- generation ----------------------------------------------------------------------------------------------------


def generation(
    model: gpt.Model, c: gpt.Config, workload: GenerateWorkload, device: torch.device, count: int, notes: list[str]
) -> Section:
    (rows,) = workload.rows
    prompt = torch.randint(4, workload.vocab, (rows, PROMPT), generator=torch.Generator().manual_seed(2)).to(device)
    programs = generators(model, c, prompt, workload, notes)
    texts = {name: go() for name, go in programs.items()}
    facts = compare(texts, workload.tokens)
    rates = rounds({name: count_tokens(go) for name, go in programs.items()}, count, device)
    facts = [f"greedy, {workload.tokens} tokens after {PROMPT}", *facts]
    ours = tuple(name for name in programs if name.startswith("regard"))
    return Section(f"{rows} at once", "tokens/s", rates, ours, facts)


def count_tokens(go: SearchRequest) -> RunRound:
    return lambda number: sum(map(len, go()))


def compare(texts: dict[str, list[list[int]]], tokens: int) -> list[str]:
    """Check that texts have full length and that fp32 programs agree; return the facts for the report."""
    first, facts = texts["regard fp32"], []
    for name, some in texts.items():
        equal = sum(one == other for one, other in zip(some, first, strict=True))
        if any(len(text) != tokens for text in some) or ("fp32" in name and equal < MIN_EQUAL * len(first)):
            raise UserError(f"{name} gave {equal} of {len(first)} texts as regard fp32 does, so nothing was timed")
        facts.append(f"{name}: {equal} of {len(first)} texts as regard fp32")
    return facts[1:]


def generators(
    model: gpt.Model, c: gpt.Config, prompt: Tensor, workload: GenerateWorkload, notes: list[str]
) -> dict[str, SearchRequest]:
    gpu, programs = prompt.is_cuda, dict[str, SearchRequest]()
    for kind in ("fp32", "bf16") if gpu else ("fp32", "bf16", "int8"):
        own = copy.deepcopy(model)
        precision.apply_precision(own, kind)
        programs[f"regard {kind}"] = ours(own, prompt, workload)
    if installed("transformers", notes):
        for kind in ("fp32", "bf16"):
            theirs = hugging_face(model, c, prompt.device).eval()
            theirs = theirs.to(torch.bfloat16) if kind == "bf16" else theirs
            for static in (False, True) if gpu else (False,):
                name = f"HF generate {kind}{', static cache' if static else ''}"
                programs[name] = hf_generate(
                    theirs, prompt, workload, {"cache_implementation": "static"} if static else {}
                )
    return programs


def ours(model: Any, prompt: Tensor, workload: GenerateWorkload) -> SearchRequest:
    rows, tokens = prompt.shape
    capacity = ((tokens + workload.tokens) // SHAPE_MULTIPLE + 2) * SHAPE_MULTIPLE if prompt.is_cuda else None
    settings = SearchSettings(END, 1, early_stopping="first", filters=(Suppress([END]),))

    def go() -> list[list[int]]:
        limits = torch.full((rows,), workload.tokens, device=prompt.device)
        return [
            best[0].tokens for best in run_search(model, model.start(None, rows, capacity), prompt, limits, settings)
        ]

    return go


def hf_generate(model: Any, prompt: Tensor, workload: GenerateWorkload, options: dict[str, Any]) -> SearchRequest:
    valid = torch.ones_like(prompt)

    @torch.no_grad()
    def go() -> list[list[int]]:
        output = model.generate(
            prompt, attention_mask=valid, do_sample=False, eos_token_id=END, pad_token_id=END,
            max_new_tokens=workload.tokens, min_new_tokens=workload.tokens, **options,
        )  # fmt: skip
        texts: list[list[int]] = output[:, prompt.size(1) :].tolist()
        return texts

    return go


# --- training ------------------------------------------------------------------------------------------------------


def training(
    model: gpt.Model, c: gpt.Config, workload: GenerateWorkload, device: torch.device, count: int, notes: list[str]
) -> Section:
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(4, workload.vocab, (workload.batch, workload.context + 1), generator=generator).to(device)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    compiled = device.type == "cuda"
    programs = trainers(model, c, workload, device, notes)
    with torch.no_grad():
        losses = {name: loss(net.eval(), tokens, targets).item() for name, (net, loss) in programs.items()}
    if (difference := max(losses.values()) - min(losses.values())) > TOLERANCE:
        raise UserError(f"the programs are not equal, so nothing was timed: losses per token are {losses}")
    run_rounds = {
        name: train_rounds(net, loss, tokens, targets, workload, compiled) for name, (net, loss) in programs.items()
    }
    facts = [
        f"{workload.batch} × {workload.context} tokens a step, {workload.precision}{', compiled' if compiled else ''}",
        f"losses before training differ by {difference:.1e} nats per token",
    ]
    return Section("training", "tokens/s", rounds(run_rounds, count, device), ("regard",), facts)


def trainers(
    model: gpt.Model, c: gpt.Config, workload: GenerateWorkload, device: torch.device, notes: list[str]
) -> dict[str, tuple[nn.Module, Loss]]:
    """The programs, without dropout."""
    without_dropout = c.model_copy(update={"dropout": 0.0})
    own = gpt.Model(without_dropout).to(device)
    own.load_state_dict(model.state_dict())
    objective = LanguageObjective(own, SmoothedLoss(smoothing=0.0))

    def our_loss(net: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
        inputs = {"text": Inputs("tokens", tokens), "labels": Inputs("tokens", targets)}
        return objective.forward(Batch(inputs, targets.numel())).sum / targets.numel()

    found: dict[str, tuple[nn.Module, Loss]] = {"regard": (own, our_loss)}
    if installed("transformers", notes):
        found["HF GPT-2"] = hugging_face(model, without_dropout, device), their_loss
    if (Path("peers") / "nanoGPT" / "model.py").is_file():
        found["nanoGPT"] = nanogpt(model, without_dropout, device), lambda net, tokens, targets: net(tokens, targets)[1]
    else:
        notes.append("peers/nanoGPT/model.py does not exist, so nanoGPT was not timed")
    return found


def their_loss(net: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(net(tokens).logits.flatten(0, 1), targets.flatten())


def nanogpt(model: gpt.Model, c: gpt.Config, device: torch.device) -> nn.Module:
    spec = importlib.util.spec_from_file_location("nanogpt", Path("peers") / "nanoGPT" / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt"] = module
    spec.loader.exec_module(module)
    shape = {"n_layer": c.layers, "n_head": c.heads, "n_embd": c.width, "dropout": 0.0, "bias": True}
    theirs: nn.Module = module.GPT(module.GPTConfig(block_size=model.context, vocab_size=c.vocab, **shape))
    transposed = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    state = {name: each.t() if name.endswith(transposed) else each for name, each in tensors(model, c).items()}
    theirs.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]}, strict=False)
    return theirs.to(device)


def train_rounds(
    net: nn.Module, loss: Loss, tokens: Tensor, targets: Tensor, workload: GenerateWorkload, compiled: bool
) -> RunRound:
    optimizer = optim.build_optimizer(net, AdamW())
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    compute_loss = torch.compile(loss, dynamic=False) if compiled else loss

    def go(number: int) -> float:
        net.train()
        for _ in range(workload.steps):
            with optim.autocast(tokens.device, workload.precision):
                mean_loss = compute_loss(net, tokens, targets)
            mean_loss.backward()
            optim.clip_gradients(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return workload.steps * tokens.numel()

    return go
