"""Weights and checkpoints in safetensors and JSON, never pickle. A resumed run continues bit for bit."""

import base64
import dataclasses
import json
import os
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import files
from ..adapt.injection import injection_of
from ..data.loading.sampler import PLAN
from ..errors import UserError
from ..parts.finite import nonfinite_name

MODEL, OPTIMIZER, TASK, STATE = "model.safetensors", "optimizer.safetensors", "task.safetensors", "state.json"
FORMER_OPTIMIZER = "optimiser.safetensors"  # the name in checkpoints of runs of format 1


@dataclass
class TrainingState:
    """The state of a training between two steps. The field names are keys of state.json."""

    step: int = 0  # finished steps
    epoch: int = 0
    index: int = 0  # examples of this epoch consumed, over all processes
    offset: int = 0  # steps since this index: several steps may share the rows of a long example
    plan: int = PLAN  # version of the planning algorithm
    evaluated: int = -1  # the step of the last evaluation
    best: float | None = None  # best value of `metric`, and its step
    best_step: int = 0
    metric: str = ""
    waited: int = 0  # evaluations since the best
    compiled: bool = False
    loss: float = 0.0  # summed over the predicted tokens since the last train record, and their count
    count: int = 0
    seconds: float = 0.0  # training time, over all parts of a resumed run
    warm_seconds: float = 0.0  # the part of it before the end of the warm-up, if train.minutes limits it
    rate_scale: float = 1.0  # the factor of the learning rate that callbacks have set
    callbacks: dict[str, Any] = field(default_factory=dict)  # the state of callbacks that have one


# Weights


def save_model(model: nn.Module, path: Path, step: int) -> None:
    """Write the weights to `path` atomically. Equal weights of an equal step are equal bytes."""
    with files.atomic_write(path) as draft:
        _write(draft, tensors_to_save(model), {"step": str(step)})


def load_model(model: nn.Module, path: Path) -> int:
    """Load the weights in `path` into the model and return their step. Names and shapes must match exactly."""
    tensors, metadata = _read(path)
    own_tensors = tensors_to_save(model)
    problems = [f"{name} is missing" for name in own_tensors if name not in tensors]
    problems += [f"{name} is not in the model" for name in tensors if name not in own_tensors]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)} and the model's has {tuple(parameter.shape)}"
        for name, parameter in own_tensors.items()
        if name in tensors and tensors[name].shape != parameter.shape
    ]
    _raise_mismatch(problems, path)
    if name := nonfinite_name(tensors):
        raise UserError(f"{name} in {path} has NaN or infinite values; the file is damaged, restore it or train again")
    with torch.no_grad():
        for name, parameter in own_tensors.items():
            parameter.copy_(tensors[name])
    return int(metadata.get("step", 0))


def tensors_to_save(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model once; a tied tensor has the alphabetically first of its names.

    For a tuned model, only the trained parameters: the base is stored elsewhere.
    """
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    tensors = {}
    trained = {name for name, p in model.named_parameters() if p.requires_grad} if injection_of(model) else None
    for name, tensor in sorted(model.state_dict().items()):
        if trained is not None and name not in trained:
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in seen or not tensor.numel():
            tensors[name] = tensor
        seen.add(place)
    return tensors


def _raise_mismatch(problems: list[str], path: Path) -> None:
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(
            f"{path} does not fit this model: {'; '.join(problems[:3])}{more}; "
            "use the model settings that it was trained with"
        )


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    path.touch()
    mode = path.stat().st_mode  # safetensors replaces the file by a private one, with that one's mode
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
        raise UserError(f"{path} does not exist; give the folder of a run that has saved its weights") from error
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); restore it from a copy, or train again") from error


# Checkpoints


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keep: int,
    task_state: dict[str, Tensor] | None = None,
) -> Path:
    """Write checkpoints/step-N of the run `folder` and remove all but the newest `keep`.

    `task_state` is the state that the task carries over from step to step, if any.
    """
    path = folder / "checkpoints" / f"step-{state.step}"
    with files.atomic_write(path) as draft:
        draft.mkdir(parents=True)
        _write(draft / MODEL, tensors_to_save(model), {"step": str(state.step)})
        _write(draft / OPTIMIZER, _optimizer_tensors(model, optimizer), {"step": str(state.step)})
        if task_state:
            _write(draft / TASK, task_state, {"step": str(state.step)})
        sums = {file.name: _checksum(file) for file in sorted(draft.iterdir())}
        record = {"format": 1, **dataclasses.asdict(state), "random": rng_state(), "checksums": sums}
        (draft / STATE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for old in _checkpoint_paths(folder)[keep:]:
        files.remove(old)
    return path


def save_state(folder: Path, state: TrainingState) -> None:
    """Update state.json in the checkpoint of this step; its weights and random generators are still the same."""
    path = folder / "checkpoints" / f"step-{state.step}" / STATE
    files.write_json(path, {**files.read_json(path), **dataclasses.asdict(state)})


def newest_checkpoint(folder: Path, notify: Callable[[str], None]) -> Path | None:
    """Return the newest intact checkpoint of a run, or None. Newer damaged ones are renamed and reported."""
    damaged: dict[str, str] = {}
    for path in _checkpoint_paths(folder):
        if not (problem := _find_damage(path)):
            for name, why in damaged.items():
                aside = path.with_name(f"{name}.damaged")  # under its own name it would count towards `keep`
                files.remove(aside)
                os.replace(path.with_name(name), aside)
                notify(
                    f"checkpoint {name} is damaged ({why}) and was renamed to {aside.name}; resuming from {path.name}"
                )
            return path
        damaged[path.name] = problem
    if damaged:
        problems = "; ".join(f"checkpoint {name} is damaged ({why})" for name, why in damaged.items())
        raise UserError(f"{problems}; no older one is left: remove {folder / 'checkpoints'} to start from step 0")
    return None


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Restore model, optimizer and random generators from the checkpoint."""
    load_model(model, path / MODEL)
    former = path / FORMER_OPTIMIZER
    _load_optimizer(former if former.exists() else path / OPTIMIZER, model, optimizer)
    record = files.read_json(path / STATE)
    restore_rng_state(record["random"])
    names = {field.name for field in dataclasses.fields(TrainingState)}  # an older version wrote fewer
    return TrainingState(**{"plan": 1} | {name: value for name, value in record.items() if name in names})


def realign(state: TrainingState, align: Callable[[int, int], int]) -> list[str]:
    """Find the position in the data for a checkpoint of another PLAN; return a note if it moved."""
    if state.plan == PLAN:
        return []
    before, state.plan, state.index = state.index, PLAN, align(state.epoch, state.index)
    if state.index == before:
        return []
    return [
        "an older version of regard, which divided an epoch into other steps, wrote the checkpoint: epoch "
        f"{state.epoch} goes on after {state.index:,} instead of {before:,} examples, and reads some of them twice"
    ]


def load_task_state(path: Path) -> dict[str, Tensor]:
    """The state of the task at the checkpoint; empty if it has none."""
    return {name: tensor.clone() for name, tensor in _read(path / TASK)[0].items()} if (path / TASK).exists() else {}


def latest_checkpoints(folder: Path, count: int) -> list[Path]:
    """The newest checkpoints of a run, at most `count`."""
    return _checkpoint_paths(folder)[:count]


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files that a killed process left behind."""
    for place in (folder, folder / "checkpoints"):
        for pattern in (".*.tmp", ".tmp*"):  # regard's, and those of safetensors
            for left in place.glob(pattern):
                files.remove(left)


def _checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    folders = (folder / "checkpoints").glob("step-*")
    return sorted((path for path in folders if path.name[5:].isdecimal()), key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name[5:])


def _find_damage(path: Path) -> str | None:
    """Describe the damage of a checkpoint, or return None."""
    try:
        record = json.loads((path / STATE).read_text(encoding="utf-8"))
        wrong = [name for name, value in record["checksums"].items() if _checksum(path / name) != value]
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{STATE} is incomplete"
    return f"{wrong[0]} has changed since it was written" if wrong else None


def _checksum(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            total = zlib.crc32(block, total)
    return total


# Optimizer and random generators


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `name/exp_avg`, `name/exp_avg_sq`, `name/step`."""
    states = ((name, optimizer.state.get(parameter, {})) for name, parameter in model.named_parameters())
    return {f"{name}/{key}": value for name, values in states for key, value in values.items()}


def _load_optimizer(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tensors, _ = _read(path)
    parameters = dict(model.named_parameters())
    problems = []
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or (key != "step" and tensor.shape != parameter.shape):
            problems.append(f"{full} matches no parameter of this shape")
            continue
        # The tensors are views of a memory-mapped file that may be replaced, so they are copied.
        copy = torch.empty_like(parameter) if key != "step" else torch.empty_like(tensor, device=parameter.device)
        optimizer.state[parameter][key] = copy.detach().copy_(tensor)
    _raise_mismatch(problems, path)


def rng_state() -> files.JsonObject:
    """The state of every random generator that a model or a task may use, as JSON."""
    version, words, gauss = random.getstate()
    legacy: Any = numpy.random.get_state(legacy=False)
    states = {
        "python": [version, _encode_array(numpy.array(words, numpy.uint32)), gauss],
        "numpy": {**legacy, "state": {**legacy["state"], "key": _encode_array(legacy["state"]["key"])}},
        "torch": _encode_array(torch.get_rng_state().numpy()),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = [_encode_array(state.numpy()) for state in torch.cuda.get_rng_state_all()]
    return states


def restore_rng_state(states: files.JsonObject) -> None:
    """Restore what `rng_state` returned."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(_decode_array(words, numpy.uint32).tolist()), gauss))
    legacy, inner = states["numpy"], states["numpy"]["state"]
    numpy.random.set_state({**legacy, "state": {**inner, "key": _decode_array(inner["key"], numpy.uint32)}})
    torch.set_rng_state(torch.from_numpy(_decode_array(states["torch"], numpy.uint8)))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(torch.from_numpy(_decode_array(state, numpy.uint8)), index)


def _encode_array(values: numpy.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


def _decode_array(text: str, dtype: type) -> numpy.ndarray:
    return numpy.frombuffer(base64.b64decode(text), dtype).copy()
