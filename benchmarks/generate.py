"""`regard bench generate`: GPT-2 writes and learns beside Hugging Face, and beside nanoGPT where its code is at hand.

Weights are random and the same in every program; each says exactly so many tokens. nanoGPT is one file, model.py, in a
folder peers/nanoGPT under the working directory; without it there is a column less.
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
from regard.config.schema import AdamW
from regard.data.corpus import TextWindow
from regard.decode import SearchSettings, Suppress, search
from regard.decode.beam import ROUND
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import gpt
from regard.formats.huggingface.gpt2_export import gpt2_config, tensors
from regard.tasks.language import LanguageObjective, Turn
from regard.training import optim as optim

from .report import Report, Section
from .timing import Way, rounds
from .translate import about
from .translate.peers import installed

SIZES = ("gpt2", "tiny")
PARTS = ("writing", "training")
PROMPT = 16  # tokens
APART = 1e-4  # nats per token, at most, between programs with the same weights
EQUAL = 0.9  # of the texts, at least: a tie between two tokens is decided by the last bits
END = 0

Writer = Callable[[], list[list[int]]]  # the tokens said after every prompt
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # of tokens and targets (rows, context): the mean


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    vocab: int = 50304  # a multiple of 64, as nanoGPT has it
    rows: tuple[int, ...] = (1,)  # prompts at once
    tokens: int = 48
    batch: int = 2  # windows in an update
    context: int = 256
    updates: int = 2  # in a round
    precision: str = "fp32"  # of training


def planned(size: str, device: torch.device) -> Plan:
    if size == "tiny":
        return Plan(vocab=320, rows=(1, 3), tokens=6, context=32, updates=1)
    if device.type == "cuda":
        return Plan(rows=(1, 32), tokens=256, batch=32, context=1024, updates=10, precision="bf16")
    return Plan()


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes = resolve_device(device), list[str]()
    plan = planned(size, where)
    positions = {"kind": "learned", "tokens": max(plan.context, PROMPT + plan.tokens)}
    c = gpt.Config.model_validate(gpt.SIZES[size] | {"size": size, "vocab": plan.vocab, "positions": positions})
    torch.manual_seed(1)
    model, sections = gpt.Model(c).to(where).eval(), []
    if "writing" in parts:
        print("timing writing …", file=sys.stderr)
        sections += [writing(model, c, replace(plan, rows=(rows,)), where, count, notes) for rows in plan.rows]
    if "training" in parts:
        print("timing training …", file=sys.stderr)
        sections.append(training(model, c, plan, where, count, notes))
    return Report("generate", about(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


def hugging_face(model: gpt.Model, c: gpt.Config, device: torch.device) -> Any:
    import transformers as hf

    hf.utils.logging.set_verbosity_error()
    words: dict[str, Any] = gpt2_config(c, model.context or 0) | {"attn_implementation": "sdpa"}
    theirs: Any = hf.GPT2LMHeadModel(hf.GPT2Config(**words))
    theirs.load_state_dict(tensors(model, c), strict=False)  # a tied table comes once
    theirs.tie_weights()
    return theirs.to(device)


# --- writing -------------------------------------------------------------------------------------------------------


def writing(model: gpt.Model, c: gpt.Config, plan: Plan, device: torch.device, count: int, notes: list[str]) -> Section:
    (rows,) = plan.rows
    prompt = torch.randint(4, plan.vocab, (rows, PROMPT), generator=torch.Generator().manual_seed(2)).to(device)
    programs = writers(model, c, prompt, plan, notes)
    texts = {name: go() for name, go in programs.items()}
    told = compare(texts, plan.tokens)
    rates = rounds({name: said(go) for name, go in programs.items()}, count, device)
    facts = [f"greedy, {plan.tokens} tokens after {PROMPT}", *told]
    ours = tuple(name for name in programs if name.startswith("regard"))
    return Section(f"{rows} at once", "tokens/s", rates, ours, facts)


def said(go: Writer) -> Way:
    return lambda number: sum(map(len, go()))


def compare(texts: dict[str, list[list[int]]], tokens: int) -> list[str]:
    """Every text has its length, and fp32 says the same in all programs; else nothing is timed."""
    first, told = texts["regard fp32"], []
    for name, some in texts.items():
        equal = sum(one == other for one, other in zip(some, first, strict=True))
        if any(len(text) != tokens for text in some) or ("fp32" in name and equal < EQUAL * len(first)):
            raise UserError(f"{name} gave {equal} of {len(first)} texts as regard fp32 does, so nothing was timed")
        told.append(f"{name}: {equal} of {len(first)} texts as regard fp32")
    return told[1:]


def writers(model: gpt.Model, c: gpt.Config, prompt: Tensor, plan: Plan, notes: list[str]) -> dict[str, Writer]:
    gpu, found = prompt.is_cuda, dict[str, Writer]()
    for kind in ("fp32", "bf16") if gpu else ("fp32", "bf16", "int8"):
        own = copy.deepcopy(model)
        precision.apply(own, kind)
        found[f"regard {kind}"] = ours(own, prompt, plan)
    if installed("transformers", notes):
        for kind in ("fp32", "bf16"):
            theirs = hugging_face(model, c, prompt.device).eval()
            theirs = theirs.to(torch.bfloat16) if kind == "bf16" else theirs
            for static in (False, True) if gpu else (False,):
                name = f"HF generate {kind}{', static cache' if static else ''}"
                found[name] = generated(theirs, prompt, plan, {"cache_implementation": "static"} if static else {})
    return found


def ours(model: Any, prompt: Tensor, plan: Plan) -> Writer:
    rows, tokens = prompt.shape
    capacity = ((tokens + plan.tokens) // ROUND + 2) * ROUND if prompt.is_cuda else None
    settings = SearchSettings(END, 1, early_stopping="first", filters=(Suppress([END]),))

    def go() -> list[list[int]]:
        limits = torch.full((rows,), plan.tokens, device=prompt.device)
        return [best[0].tokens for best in search(model, model.start(rows, capacity), prompt, limits, settings)]

    return go


def generated(model: Any, prompt: Tensor, plan: Plan, words: dict[str, Any]) -> Writer:
    seen = torch.ones_like(prompt)

    @torch.no_grad()
    def go() -> list[list[int]]:
        made = model.generate(
            prompt, attention_mask=seen, do_sample=False, max_new_tokens=plan.tokens, min_new_tokens=plan.tokens,
            eos_token_id=END, pad_token_id=END, **words,
        )  # fmt: skip
        texts: list[list[int]] = made[:, prompt.size(1) :].tolist()
        return texts

    return go


# --- training ------------------------------------------------------------------------------------------------------


def training(
    model: gpt.Model, c: gpt.Config, plan: Plan, device: torch.device, count: int, notes: list[str]
) -> Section:
    draw = torch.Generator().manual_seed(3)
    text = torch.randint(4, plan.vocab, (plan.batch, plan.context + 1), generator=draw).to(device)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    compiled = device.type == "cuda"
    programs = learners(model, c, plan, device, notes)
    with torch.no_grad():
        losses = {name: loss(net.eval(), tokens, targets).item() for name, (net, loss) in programs.items()}
    if (apart := max(losses.values()) - min(losses.values())) > APART:
        raise UserError(f"the programs are not equal, so nothing was timed: losses per token are {losses}")
    ways = {name: learning(net, loss, tokens, targets, plan, compiled) for name, (net, loss) in programs.items()}
    facts = [
        f"{plan.batch} × {plan.context} tokens in an update, {plan.precision}{', compiled' if compiled else ''}",
        f"losses before training apart by {apart:.1e} nats per token",
    ]
    return Section("training", "tokens/s", rounds(ways, count, device), ("regard",), facts)


def learners(
    model: gpt.Model, c: gpt.Config, plan: Plan, device: torch.device, notes: list[str]
) -> dict[str, tuple[nn.Module, Loss]]:
    """The programs, without dropout."""
    still = c.model_copy(update={"dropout": 0.0})
    own = gpt.Model(still).to(device)
    own.load_state_dict(model.state_dict())
    task: Any = SimpleNamespace(run=SimpleNamespace(train=SimpleNamespace(smoothing=0.0)))
    every = torch.ones(plan.batch, plan.context, dtype=torch.bool, device=device)

    def our_loss(net: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
        return LanguageObjective.loss(task, net, Turn(TextWindow(tokens, targets, every))) / targets.numel()

    found: dict[str, tuple[nn.Module, Loss]] = {"regard": (own, our_loss)}
    if installed("transformers", notes):
        found["HF GPT-2"] = hugging_face(model, still, device), their_loss
    if (Path("peers") / "nanoGPT" / "model.py").is_file():
        found["nanoGPT"] = nanogpt(model, still, device), lambda net, tokens, targets: net(tokens, targets)[1]
    else:
        notes.append("peers/nanoGPT/model.py is not there, so nanoGPT was not timed")
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
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    state = {name: each.t() if name.endswith(turned) else each for name, each in tensors(model, c).items()}
    theirs.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]}, strict=False)
    return theirs.to(device)


def learning(net: nn.Module, loss: Loss, tokens: Tensor, targets: Tensor, plan: Plan, compiled: bool) -> Way:
    optimizer = optim.build_optimizer(net, AdamW())
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    went = torch.compile(loss, dynamic=False) if compiled else loss

    def go(number: int) -> float:
        net.train()
        for _ in range(plan.updates):
            with optim.autocast(tokens.device, plan.precision):
                found = went(net, tokens, targets)
            found.backward()
            optim.clip_gradients(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return plan.updates * tokens.numel()

    return go
