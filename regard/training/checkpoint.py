"""Weights and checkpoints: safetensors and JSON, never a pickle; enough to come back bit for bit."""

import base64
import dataclasses
import json
import os
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import files
from ..adapt.injection import injection_of
from ..errors import UserError

MODEL, OPTIMIZER, TASK, STATE = "model.safetensors", "optimizer.safetensors", "task.safetensors", "state.json"
FORMER_OPTIMIZER = "optimiser.safetensors"  # the name in checkpoints of runs of format 1


@dataclass
class TrainingState:
    """Where a training stands at the boundary between two updates."""

    step: int = 0  # finished updates
    epoch: int = 0
    index: int = 0  # examples of this epoch, over all processes, that are behind
    evaluated: int = -1  # the step of the last evaluation
    best: float | None = None  # of `metric`, and the step it was seen at
    best_step: int = 0
    metric: str = ""
    waited: int = 0  # evaluations since the best
    compiled: bool = False
    loss: float = 0.0  # summed over the predicted tokens since the last train record, and their number
    count: int = 0
    seconds: float = 0.0  # spent in training, over all parts of a resumed run


# Weights


def save_model(model: nn.Module, path: Path, step: int) -> None:
    """Write the weights to `path`, whole or not at all. Equal weights of an equal step are equal bytes."""
    with files.atomic_write(path) as draft:
        _write(draft, stored(model), {"step": str(step)})


def load_model(model: nn.Module, path: Path) -> int:
    """Fill the model from `path` and return the step of these weights; anything that does not fit is refused."""
    tensors, metadata = _read(path)
    wanted = stored(model)
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{name} is not in the model" for name in tensors if name not in wanted]
    problems += [
        f"{name} is {tuple(tensors[name].shape)} and the model's is {tuple(own.shape)}"
        for name, own in wanted.items()
        if name in tensors and tensors[name].shape != own.shape
    ]
    _refuse(problems, path)
    with torch.no_grad():
        for name, own in wanted.items():
            own.copy_(tensors[name])
    return int(metadata.get("step", 0))


def stored(model: nn.Module) -> dict[str, Tensor]:
    """Each tensor of the model once: one that has several names (tied) goes by the alphabetically first.

    Of a tuned model only what is trained: the base has a place of its own.
    """
    seen: set[tuple[Any, ...]] = set()
    found = {}
    kept = {name for name, each in model.named_parameters() if each.requires_grad} if injection_of(model) else None
    for name, tensor in sorted(model.state_dict().items()):
        if kept is not None and name not in kept:
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in seen or not tensor.numel():
            found[name] = tensor
        seen.add(place)
    return found


def _refuse(problems: list[str], path: Path) -> None:
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(
            f"{path} does not fit this model: {'; '.join(problems[:3])}{more}; "
            "use the model settings that it was trained with"
        )


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    path.touch()
    mode = path.stat().st_mode  # safetensors writes through a private file of its own and leaves that one's mode
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), str(error)) from error
        raise
    path.chmod(mode)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(f"{path} is not there; give the folder of a run that has saved its weights") from error
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is cut off or damaged ({error}); restore it from a copy, or train again") from error


# Checkpoints


def save(
    folder: Path,
    state: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keep: int,
    carried: dict[str, Tensor] | None = None,
) -> Path:
    """Write checkpoints/step-N of the run `folder` and remove those beyond the newest `keep`.

    `carried` is what the task takes along from update to update, if anything.
    """
    path = folder / "checkpoints" / f"step-{state.step}"
    with files.atomic_write(path) as draft:
        draft.mkdir(parents=True)
        _write(draft / MODEL, stored(model), {"step": str(state.step)})
        _write(draft / OPTIMIZER, _optimizer_tensors(model, optimizer), {"step": str(state.step)})
        if carried:
            _write(draft / TASK, carried, {"step": str(state.step)})
        sums = {file.name: _checksum(file) for file in sorted(draft.iterdir())}
        record = {"format": 1, **dataclasses.asdict(state), "random": randomness(), "checksums": sums}
        (draft / STATE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for old in _all(folder)[keep:]:
        files.remove(old)
    return path


def save_state(folder: Path, state: TrainingState) -> None:
    """Bring the checkpoint of this very step up to date: its weights and random generators are still the same."""
    path = folder / "checkpoints" / f"step-{state.step}" / STATE
    files.write_json(path, {**files.read_json(path), **dataclasses.asdict(state)})


def newest(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint of a run, None where there is none yet; damaged ones are told and set aside."""
    bad: dict[str, str] = {}
    for path in _all(folder):
        if not (problem := _problem(path)):
            for name, why in bad.items():
                aside = path.with_name(f"{name}.damaged")  # under its own name it would count as one to keep
                files.remove(aside)
                os.replace(path.with_name(name), aside)
                say(f"checkpoint {name} is damaged ({why}) and was renamed {aside.name}; going on from {path.name}")
            return path
        bad[path.name] = problem
    if bad:
        told = "; ".join(f"checkpoint {name} is damaged ({why})" for name, why in bad.items())
        raise UserError(f"{told}; no older one is left: remove {folder / 'checkpoints'} to start from step 0")
    return None


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Put model, optimizer and random generators where they were at the checkpoint."""
    load_model(model, path / MODEL)
    former = path / FORMER_OPTIMIZER
    _load_optimizer(former if former.exists() else path / OPTIMIZER, model, optimizer)
    record = files.read_json(path / STATE)
    restore_randomness(record["random"])
    return TrainingState(**{field.name: record[field.name] for field in dataclasses.fields(TrainingState)})


def load_task_state(path: Path) -> dict[str, Tensor]:
    """What the task took along at the checkpoint."""
    return {name: tensor.clone() for name, tensor in _read(path / TASK)[0].items()} if (path / TASK).exists() else {}


def last(folder: Path, count: int) -> list[Path]:
    """The newest checkpoints of a run, at most so many."""
    return _all(folder)[:count]


def sweep(folder: Path) -> None:
    """Remove what a killed process left under temporary names."""
    for place in (folder, folder / "checkpoints"):
        for pattern in (".*.tmp", ".tmp*"):  # ours, and those of safetensors
            for left in place.glob(pattern):
                files.remove(left)


def _all(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    found = (folder / "checkpoints").glob("step-*")
    return sorted((path for path in found if path.name[5:].isdecimal()), key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name[5:])


def _problem(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        record = json.loads((path / STATE).read_text(encoding="utf-8"))
        wrong = [name for name, value in record["checksums"].items() if _checksum(path / name) != value]
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{STATE} is not whole"
    return f"{wrong[0]} has changed since it was written" if wrong else None


def _checksum(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            total = zlib.crc32(block, total)
    return total


# What a checkpoint holds besides weights


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's memory by the name of the parameter: `name/exp_avg`, `name/exp_avg_sq`, `name/step`."""
    named = ((name, optimizer.state.get(parameter, {})) for name, parameter in model.named_parameters())
    return {f"{name}/{key}": value for name, values in named for key, value in values.items()}


def _load_optimizer(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tensors, _ = _read(path)
    parameters = dict(model.named_parameters())
    problems = []
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        own = parameters.get(name)
        if own is None or (key != "step" and tensor.shape != own.shape):
            problems.append(f"{full} belongs to no parameter of this shape")
            continue
        # The file's tensors are views of a mapped file that may be replaced, so they are copied.
        copy = torch.empty_like(own) if key != "step" else torch.empty_like(tensor, device=own.device)
        optimizer.state[own][key] = copy.detach().copy_(tensor)
    _refuse(problems, path)


def randomness() -> dict[str, Any]:
    """The state of every random generator a model or a task may draw from, as JSON."""
    kind, words, gauss = random.getstate()
    theirs: Any = numpy.random.get_state(legacy=False)
    found = {
        "python": [kind, _packed(numpy.array(words, numpy.uint32)), gauss],
        "numpy": {**theirs, "state": {**theirs["state"], "key": _packed(theirs["state"]["key"])}},
        "torch": _packed(torch.get_rng_state().numpy()),
    }
    if torch.cuda.is_initialized():
        found["cuda"] = [_packed(state.numpy()) for state in torch.cuda.get_rng_state_all()]
    return found


def restore_randomness(found: dict[str, Any]) -> None:
    kind, words, gauss = found["python"]
    random.setstate((kind, tuple(_unpacked(words, numpy.uint32).tolist()), gauss))
    theirs, inner = found["numpy"], found["numpy"]["state"]
    numpy.random.set_state({**theirs, "state": {**inner, "key": _unpacked(inner["key"], numpy.uint32)}})
    torch.set_rng_state(torch.from_numpy(_unpacked(found["torch"], numpy.uint8)))
    if torch.cuda.is_initialized():
        for index, state in enumerate(found.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(torch.from_numpy(_unpacked(state, numpy.uint8)), index)


def _packed(values: numpy.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


def _unpacked(text: str, kind: type) -> numpy.ndarray:
    return numpy.frombuffer(base64.b64decode(text), kind).copy()
