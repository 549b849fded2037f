"""Training beside Hugging Face Marian and torch.nn.Transformer: the same weights, sentences, optimizer and dropout.

The peers get batches grouped by length as the Trainer of Hugging Face does; we get the same batches, and our own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.config.data.texts import PairData
from regard.config.run import Run
from regard.config.train import Adam, Train
from regard.data.batch import Batch
from regard.data.loading.loader import LoadedStep
from regard.errors import UserError
from regard.tasks.translate.task import TranslateJob, TranslatePredictor
from regard.training import optim

from ..report import Section
from ..timing import RunRound, rounds
from . import peers
from .pairs import EncodedPairs, RandomPairs, padding, spread, tokenizer, valid_tokens
from .workload import TranslateWorkload, model_config

TOLERANCE = 1e-4  # nats per token between programs with the same weights
SAME_BATCHES, TORCH_NN = "regard, same batches", "torch.nn.Transformer"

Loss = Callable[[Any, Batch], Tensor]  # of a model and a batch, summed over the valid target tokens


class Program(NamedTuple):
    """A model, its loss and its training steps."""

    model: nn.Module
    loss: Loss
    steps: list[LoadedStep]
    static_shapes: bool = False  # true if all micro-batches have one shape


def time(
    workload: TranslateWorkload, device: torch.device, count: int, notes: list[str], every: bool = True
) -> Section:
    """Time all programs, or without `every` only our own batches beside Marian: compiling the others takes minutes."""
    examples, text = RandomPairs(workload.corpus, workload.vocab, seed=1), tokenizer(workload.vocab)
    compiled = device.type == "cuda"
    encoded = EncodedPairs(examples, text, multiple=8 if compiled else 1)
    programs = build_programs(workload, examples, encoded, device, notes)
    difference = compare(programs, encoded, device)
    timed = programs if every else {name: one for name, one in programs.items() if name not in (SAME_BATCHES, TORCH_NN)}
    run_rounds = {name: train_rounds(program, workload, device, count, compiled) for name, program in timed.items()}
    ours = tuple(name for name in timed if name.startswith("regard"))
    own = ", ".join(f"{padding(programs[name].steps):.1%} in those of {name}" for name in ours if name != SAME_BATCHES)
    facts = [
        f"{workload.sentences} sentences in a step, {workload.precision}{', compiled' if compiled else ''}",
        f"padding: {padding(programs[SAME_BATCHES].steps):.1%} in the peers' batches, {own}",
        f"losses before training differ by {difference:.1e} nats per token",
    ]
    return Section("training", "real tokens/s", rounds(run_rounds, count, device), ours, facts)


def build_programs(
    workload: TranslateWorkload, examples: RandomPairs, encoded: EncodedPairs, device: torch.device, notes: list[str]
) -> dict[str, Program]:
    """The programs by name, all with the same weights."""
    first = build_objective(workload, examples, encoded, device)
    theirs = encoded.grouped(workload.sentences)
    programs = {SAME_BATCHES: Program(first.model, loss_of(first), theirs)}
    packed = device.type == "cuda"
    own = build_objective(workload, examples, encoded, device, packed)
    programs[f"regard, {'packed' if packed else 'buckets'}"] = Program(
        own.model, loss_of(own), list(own.steps(0, 0)), packed
    )
    if peers.installed("transformers", notes):
        programs["HF Marian"] = Program(peers.marian(first.predictor), peers.marian_loss, theirs)
    plain = peers.TorchTransformer(first.model, first.run.model)
    programs[TORCH_NN] = Program(plain, peers.torch_loss, theirs)
    return {
        name: Program(
            net.to(device), loss, [move_step(each, device) for each in spread(steps, workload.steps)], static_shapes
        )
        for name, (net, loss, steps, static_shapes) in programs.items()
    }


def build_objective(
    workload: TranslateWorkload,
    examples: RandomPairs,
    encoded: EncodedPairs,
    device: torch.device,
    packed: bool = False,
) -> TranslateJob:
    """Our side as `regard train` has it, with updates as large as the peers' on average."""
    train = Train(
        tokens=round(sum(encoded.longer) / workload.corpus * workload.sentences), precision=workload.precision
    )
    run = Run(
        task="translate", model=model_config(workload), data=PairData(packed=packed), train=train, device=str(device)
    )
    torch.manual_seed(run.train.seed)
    translator = TranslatePredictor(run, workload.family.Model(run.model), encoded.text, encoded.text, device)
    return TranslateJob(translator, {"train": examples})


def loss_of(job: TranslateJob) -> Loss:
    """Our loss, called as the peers' are."""
    return lambda net, batch: job.objective.forward(batch).sum


def move_step(step: LoadedStep, device: torch.device) -> LoadedStep:
    return replace(step, micro_batches=[batch.to(device) for batch in step.micro_batches])


@torch.no_grad()
def compare(programs: dict[str, Program], encoded: EncodedPairs, device: torch.device) -> float:
    """The largest difference of a program's loss from ours on the same padded sentences; checked to be small."""
    ours, worst = programs[SAME_BATCHES], 0.0
    for name, (net, loss, steps, _) in programs.items():
        for step in (steps[0], steps[-1]):
            one = sum(loss(net.eval(), batch).item() for batch in step.micro_batches)
            padded = move_step(encoded.step(step.examples), device)
            difference = abs(one - ours.loss(ours.model.eval(), padded.micro_batches[0]).item()) / step.count
            if not difference <= TOLERANCE:
                raise UserError(
                    f"{name} and regard are not equal: losses differ by {difference:.1e}, so nothing was timed"
                )
            worst = max(worst, difference)
    return worst


def train_rounds(
    program: Program, workload: TranslateWorkload, device: torch.device, count: int, compiled: bool
) -> RunRound:
    """A round trains on every `count`-th step, so that all rounds together use all steps."""
    net, loss, steps, static_shapes = program
    optimizer = optim.build_optimizer(net, Adam())
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    if compiled:
        torch._dynamo.config.recompile_limit = 64  # special lengths such as 1 recompile; nothing falls back silently
        loss = optim.compile_forward(loss, static_shapes, device)

    def go(number: int) -> float:
        net.train()
        chosen = steps[number % len(steps) :: count]
        for step in chosen:
            for batch in step.micro_batches:
                with optim.autocast(device, workload.precision):
                    mean_loss = loss(net, batch) / step.count
                mean_loss.backward()
            optim.clip_gradients(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return valid_tokens(chosen)

    return go
