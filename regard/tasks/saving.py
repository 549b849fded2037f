"""Write a predictor as a run folder."""

import os
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ..adapt.injection import injection_of
from ..config import run_folder
from ..errors import UserError
from ..files import JsonObject, atomic_write, path_name
from ..processors.saved import save_processors
from ..training.checkpoint import MODEL, save_model

if TYPE_CHECKING:
    from .predictor import AnyPredictor


def save_predictor(predictor: "AnyPredictor", folder: str | PathLike[str]) -> Path:
    """Create the folder in one step; `regard.load` of it gives equal results."""
    out = Path(path_name(folder, "folder"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already; save to another folder, so that nothing there is lost")
    _check(predictor)
    about = _about(predictor, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out, replace=False) as draft:
        draft.mkdir()
        save_model(predictor.module, draft / MODEL, int((about.get("weights") or {}).get("step", 0)))
        config = predictor.run.dump()
        run_folder.write_run(
            draft, {**about, "config": config, "processors": save_processors(draft, predictor.processors)}
        )
        if out.exists():
            out.rmdir()
    return out


def _check(predictor: "AnyPredictor") -> None:
    if predictor.is_ensemble:
        raise UserError("an ensemble has several models and is not saved as one; save each of them")
    if predictor.run.precision != "fp32":
        raise UserError(
            f"this predictor was loaded with precision={predictor.run.precision}, which has rounded its weights; load "
            "it with precision=fp32 to save it"
        )
    if injection_of(predictor.module) is not None and predictor.folder_of_run is None:
        raise UserError("this adapter comes from a PEFT folder and is not saved as a run; merge it with regard.convert")


def _about(predictor: "AnyPredictor", out: Path) -> JsonObject:
    """The content of run.json of the loaded run, without versions. The path to the base of a tuned run is updated."""
    if predictor.folder_of_run is None:
        return {"recipe": "", "origin": {}, "data": {}}
    about = {key: value for key, value in run_folder.read_run(predictor.folder_of_run).items() if key != "versions"}
    start = about.get("start")
    if isinstance(start, dict) and "absolute" in start:
        paths = {key: value for key, value in start.items() if key != "relative"}
        with suppress(ValueError):  # on another drive of Windows
            paths["relative"] = os.path.relpath(start["absolute"], out.resolve())
        about["start"] = paths
    return about
