"""Runs that write token by token and score the translations of others."""

from pathlib import Path

import torch

from .. import run_folder
from ..config.run import load_config
from ..errors import UserError
from ..training.checkpoint import load_model
from .known_targets import KnownTargets
from .task import spec_of


def open_teacher(name: str, device: torch.device) -> KnownTargets:
    """The predictor of a translation run."""
    from . import restore

    folder = Path(name)
    if not run_folder.is_run(folder):
        raise UserError(f"decode.teacher is {name}, which is not a run folder; give one of the task translate")
    run = load_config(run_folder.read_run(folder)["config"], str(folder / run_folder.FILE))
    if run.task != "translate" or run.tune.kind != "none":
        what = f"of the task {run.task}" if run.task != "translate" else "tuned over a base, which must be merged first"
        raise UserError(f"decode.teacher is {name}, a run {what}; give a whole run of the task translate")
    if "target" not in spec_of(run.model.family).writes:
        raise UserError(
            f"decode.teacher is {name}, which writes all tokens at once; give a run that writes token by token"
        )
    predictor = restore(run, folder, device)
    load_model(predictor.model, folder / "model.safetensors")
    assert isinstance(predictor, KnownTargets)
    return predictor
