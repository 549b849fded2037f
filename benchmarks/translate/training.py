"""Training beside Hugging Face Marian and torch.nn.Transformer: the same weights, sentences, optimizer and dropout.

The peers get the sentences grouped by length as Hugging Face's Trainer does it; we get the same batches, and our own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.config.run import Run
from regard.config.schema import Adam, PairData, Train
from regard.data.collate import PairBatch
from regard.data.sampler import Step
from regard.errors import UserError
from regard.tasks.translate import TranslateObjective, TranslatePredictor
from regard.training import optim as optim

from ..report import Section
from ..timing import Way, rounds
from . import peers
from .plan import Plan, model
from .sentences import Encoded, Sentences, padding, real, spread, tokenizer

APART = 1e-4  # nats per token, at most, between programs with the same weights
SAME, PLAIN = "regard, same batches", "torch.nn.Transformer"

Loss = Callable[[Any, PairBatch], Tensor]  # of a model and a batch, summed over the real target tokens


class Program(NamedTuple):
    """Something that trains: its model, its loss, and what it learns from."""

    model: nn.Module
    loss: Loss
    updates: list[Step]
    steady: bool = False  # are they all of one shape?


def time(plan: Plan, device: torch.device, count: int, notes: list[str], every: bool = True) -> Section:
    """All programs, or only our own batches beside Marian: to compile the others for changing shapes takes minutes."""
    examples, text = Sentences(plan.corpus, plan.vocab, seed=1), tokenizer(plan.vocab)
    compiled = device.type == "cuda"
    encoded = Encoded(examples, text, multiple=8 if compiled else 1)
    programs = assembled(plan, examples, encoded, device, notes)
    apart = compare(programs, encoded, device)
    timed = programs if every else {name: one for name, one in programs.items() if name not in (SAME, PLAIN)}
    ways = {name: way(program, plan, device, count, compiled) for name, program in timed.items()}
    ours = tuple(name for name in timed if name.startswith("regard"))
    own = ", ".join(f"{padding(programs[name].updates):.1%} in those of {name}" for name in ours if name != SAME)
    facts = [
        f"{plan.sentences} sentences in an update, {plan.precision}{', compiled' if compiled else ''}",
        f"padding: {padding(programs[SAME].updates):.1%} in the peers' batches, {own}",
        f"losses before training apart by {apart:.1e} nats per token",
    ]
    return Section("training", "real tokens/s", rounds(ways, count, device), ours, facts)


def assembled(
    plan: Plan, examples: Sentences, encoded: Encoded, device: torch.device, notes: list[str]
) -> dict[str, Program]:
    """The programs by name, all with the same weights."""
    first = lesson(plan, examples, encoded, device)
    theirs = encoded.grouped(plan.sentences)
    found = {SAME: Program(first.model, first.loss, theirs)}
    packed = device.type == "cuda"
    own = lesson(plan, examples, encoded, device, packed)
    found[f"regard, {'packed' if packed else 'buckets'}"] = Program(own.model, own.loss, list(own.steps(0, 0)), packed)
    if peers.installed("transformers", notes):
        found["HF Marian"] = Program(peers.marian(first.translator), peers.marian_loss, theirs)
    plain = peers.TorchTransformer(first.model, first.run.model)
    found[PLAIN] = Program(plain, peers.torch_loss, theirs)
    return {
        name: Program(net.to(device), loss, [placed(each, device) for each in spread(updates, plan.updates)], steady)
        for name, (net, loss, updates, steady) in found.items()
    }


def lesson(
    plan: Plan, examples: Sentences, encoded: Encoded, device: torch.device, packed: bool = False
) -> TranslateObjective:
    """Our side as `regard train` has it, with updates as large as the peers' on average."""
    train = Train(tokens=round(sum(encoded.longer) / plan.corpus * plan.sentences), precision=plan.precision)
    run = Run(task="translate", model=model(plan), data=PairData(packed=packed), train=train, device=str(device))
    torch.manual_seed(run.train.seed)
    translator = TranslatePredictor(run, plan.family.Model(run.model), encoded.text, encoded.text, device)
    return TranslateObjective(translator, {"train": examples})


def placed(update: Step, device: torch.device) -> Step:
    return replace(update, micro_batches=[piece.to(device) for piece in update.micro_batches])


@torch.no_grad()
def compare(programs: dict[str, Program], encoded: Encoded, device: torch.device) -> float:
    """How far each program's loss is from ours over the same sentences, padded; what is not equal is not timed."""
    ours, worst = programs[SAME], 0.0
    for name, (net, loss, updates, _) in programs.items():
        for update in (updates[0], updates[-1]):
            one = sum(loss(net.eval(), piece).item() for piece in update.micro_batches)
            padded = placed(encoded.update(update.examples), device)
            apart = abs(one - ours.loss(ours.model.eval(), padded.micro_batches[0]).item()) / update.count
            if not apart <= APART:
                raise UserError(
                    f"{name} and regard are not equal: losses are apart by {apart:.1e}, so nothing was timed"
                )
            worst = max(worst, apart)
    return worst


def way(program: Program, plan: Plan, device: torch.device, count: int, compiled: bool) -> Way:
    """A round is every `count`-th update, so that all rounds together are all of them."""
    net, loss, updates, steady = program
    optimizer = optim.build_optimizer(net, Adam())
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    if compiled:
        torch._dynamo.config.recompile_limit = 64  # lengths of 1 and the like are apart; nothing falls back unnoticed
        loss = optim.compile_loss(loss, steady, device)

    def go(number: int) -> float:
        net.train()
        now = updates[number % len(updates) :: count]
        for update in now:
            for piece in update.micro_batches:
                with optim.autocast(device, plan.precision):
                    share = loss(net, piece) / update.count
                share.backward()
            optim.clip_gradients(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return real(now)

    return go
