"""Autoregressive runs that score the translations of other runs and teach them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...config import run_folder
from ...config.losses import TEACHER
from ...config.run import load_config
from ...decode.parallel.decoding import padded_source, target_logprobs
from ...decode.parallel.prefix_tree import PrefixTrees, reads_trees, tree_logprobs
from ...errors import UserError
from ...families.protocols import as_module
from ...training.checkpoint import load_model
from ..task import spec_of
from ..translate.settings import TranslateRun

if TYPE_CHECKING:
    from ..translate.task import TranslatePredictor


def teacher_config(name: str, key: str) -> TranslateRun:
    """The settings of the run that the setting `key` names."""
    folder = Path(name)
    if not run_folder.is_run(folder):
        raise UserError(f"{key} is {name}, which is not a run folder; give one of the task translate")
    run: TranslateRun = load_config(run_folder.read_run(folder)["config"], str(folder / run_folder.FILE))
    if run.task != "translate" or run.tune.kind != "none":
        description = (
            f"of the task {run.task}" if run.task != "translate" else "tuned over a base, which must be merged first"
        )
        raise UserError(f"{key} is {name}, a run {description}; give a whole run of the task translate")
    if "target" not in spec_of(run.model.family).writes:
        raise UserError(f"{key} is {name}, which writes all tokens at once; give a run that writes token by token")
    return run


def open_teacher(name: str, device: torch.device, key: str = "decode.strategy.teacher") -> "TranslatePredictor":
    """The predictor of the run that the setting `key` names."""
    from ..translate.task import restore

    run, folder, cpu = teacher_config(name, key), Path(name), torch.device("cpu")
    with cpu:  # also in a context of tensors without storage
        predictor = restore(run, folder, cpu if device.type == "meta" else device)
        load_model(predictor.model, folder / "model.safetensors")
    return predictor


@torch.no_grad()
def candidate_scores(
    teacher: "TranslatePredictor", texts: Sequence[str], candidates: Sequence[tuple[int, str]], length_penalty: float
) -> list[float]:
    """ln P / length^length_penalty of targets, each with the number of its text; every text is encoded once.

    On a CPU equal prefixes of candidates are read once. A GPU replays rows of fixed shapes instead.
    """
    sources = teacher.modality.encode_all(texts)
    targets = teacher.target.encode([target for _, target in candidates])
    for tokens in targets:
        teacher.modality.refuse_long(len(tokens) + 1)
    source = padded_source([row.tolist() for row in sources], teacher.source.pad, teacher.device)
    numbers = [number for number, _ in candidates]
    if teacher.device.type == "cpu" and reads_trees(teacher.module):
        trees = PrefixTrees.of(targets, numbers, teacher.target.start)
        logprobs = tree_logprobs(teacher.model, source, trees, teacher.target.end).tolist()
    else:
        rows = [[teacher.target.start, *ids, teacher.target.end] for ids in targets]
        logprobs = target_logprobs(teacher.model, source, numbers, rows).tolist()
    return [total / (len(ids) + 1) ** length_penalty for total, ids in zip(logprobs, targets, strict=True)]


@torch.no_grad()
def copy_teacher_weights(name: str, model: nn.Module) -> str:
    """Copy the weights of the teacher that fit, by name and shape, and say how many."""
    weights, teacher_weights = (
        model.state_dict(),
        as_module(open_teacher(name, torch.device("cpu"), TEACHER).model).state_dict(),
    )
    fitting = [
        key for key, tensor in weights.items() if key in teacher_weights and teacher_weights[key].shape == tensor.shape
    ]
    for key in fitting if not any(tensor.is_meta for tensor in weights.values()) else ():
        weights[key].copy_(teacher_weights[key])
    return f"{len(fitting)} of {len(weights)} weights begin with those of {name}"
