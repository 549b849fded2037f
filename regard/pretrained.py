"""Where a run begins: `start` names a run or a Hugging Face folder whose model, tokenizer and weights it takes over."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .config.merge import flat
from .errors import UserError
from .run_folder import read_run

NEW = 6  # names of tensors that are told


def settings(start: str) -> dict[str, Any]:
    """The settings of the model that lies there and, of a run, those of its tokenizer, by dotted key."""
    path = Path(start)
    if (path / "run.json").is_file():
        found = read_run(path)["config"]
        groups = {name: found.get(name, {}) for name in ("model", "tokenizer")}
    elif (path / "config.json").is_file() or (path / "modules.json").is_file():
        from .formats.huggingface.folder import load_folder

        groups = {"model": load_folder(path, {"device": "cpu"}).run.model.model_dump(mode="json")}
    else:
        here = "is not there" if not path.exists() else "has neither run.json (ours) nor config.json (Hugging Face's)"
        raise UserError(f"start={start} {here}; give a run folder or a Hugging Face folder to begin with")
    return dict(flat(groups))


def lay(draft: Any, start: str, family: str) -> None:
    """Put what lies at `start` over the recipe in a draft of settings. Dropout stays what the recipe has written, for
    no weight depends on it; what the command line says comes over all this."""
    found = settings(start)
    theirs = found.get("model.family")
    if theirs != family:
        raise UserError(
            f"start={start} holds a model of the family {theirs} and this run is to train {family}; begin with "
            f"another, or set model.family={theirs} if the task can use it"
        )
    free = {key for key in found if key.endswith(".dropout") and draft.origin.get(key, "").startswith("recipe")}
    draft.lay(f"start {start}", {key: value for key, value in found.items() if key not in free})


def refuse_tokenizer(draft: Any, start: str) -> None:
    """A run cannot have the weights of one tokenizer and the pieces of another."""
    found = settings(start)
    for key, value in draft.values.items():
        if key.startswith("tokenizer.") and draft.origin[key] == "command line" and value != found.get(key):
            draft.mistakes.append(
                f"{key} is {value!r} and a run begins with the tokenizer of its start"
                f"{f', where it is {found[key]!r}' if key in found else ''}; leave {key} out, or `start`"
            )


class Pretrained:
    """What lies at `start`, loaded."""

    def __init__(self, start: str, load: Callable[[str], Any]) -> None:
        self.start = start
        self.system = load(start)
        if self.system.run.tune.kind != "none":
            raise UserError(f"start={start} is tuned itself; fold it into one model first (`regard convert --merge`)")
        self.weights: dict[str, Any] = self.system.model.state_dict()
        self.new: list[str] = []  # tensors that a model has and the start has not
        self.whole: list[str] = []  # those, and heads whose rows are labels: what is trained where all else is frozen

    def digest(self) -> str:
        """Stands for the weights."""
        total = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(self.weights.items()):
            total.update(name.encode() + b"\0" + tensor.contiguous().numpy().tobytes())
        return total.hexdigest()

    def save_tokenizers(self, folder: Path) -> None:
        """As a run keeps them, wherever they come from."""
        for name, tokenizer in self.system.tokenizers.items():
            tokenizer.save(folder / name)

    def give(self, model: Any) -> list[str]:
        """Copy every tensor that the model has too."""
        import torch

        own, taken = model.state_dict(), self.shared(model)
        with torch.no_grad():
            for name in taken:
                own[name].copy_(self.weights[name])
        left = [name for name in self.weights if name not in own]
        new = f"new are {_some(self.new)}" if self.new else "none is new"
        told = [f"start: {len(taken)} tensors from {self.start}; {new}"]
        return told + ([f"start: not used are {_some(left)}"] if left else [])

    def lend(self, model: Any, device: Any) -> None:
        """Let the model use the very parameters of the start: however many do, they are there once."""
        base, taken = self.system.model.to(device), set(self.give_buffers(model)).difference(self.whole)
        theirs = {
            id(own): base.get_parameter(full)
            for path, module in model.named_modules()
            for name, own in module._parameters.items()
            if (full := f"{path}.{name}".lstrip(".")) in taken
        }
        for module in model.modules():  # a new head may share the table: it goes with it
            for name, own in module._parameters.items():
                module._parameters[name] = theirs.get(id(own), own)

    def give_buffers(self, model: Any) -> list[str]:
        """Copy what is no parameter; the names of all tensors that both have come back."""
        taken = self.shared(model)
        for name, buffer in model.named_buffers():
            if name in self.weights:
                buffer.copy_(self.weights[name])
        return taken

    def shared(self, model: Any, tuned: Path | None = None) -> list[str]:
        """The tensors that both have. The heads of a family may be new; nothing else may. `tuned` is the run that would
        have this as its base, where it is no training that begins."""
        from .families import family

        own = model.state_dict()
        heads = getattr(family(self.system.run.model.family), "HEAD_MODULES", ())
        top = {name for name in {*own, *self.weights} if name.partition(".")[0] in heads}
        taken = [name for name in own if name in self.weights and own[name].shape == self.weights[name].shape]
        wrong = [name for name in own if name not in taken and name not in top]
        wrong += [name for name in self.weights if name not in own and name not in top]
        if wrong:
            raise UserError(self._misfit(wrong[0], own, tuned))
        labels = getattr(family(self.system.run.model.family), "LABEL_MODULES", ())
        self.new = [name for name in own if name not in taken]
        self.whole = [name for name in own if name in self.new or name.partition(".")[0] in labels]
        return taken

    def _misfit(self, name: str, own: Mapping[str, Any], tuned: Path | None) -> str:
        here, there = (f"{tuple(some[name].shape)}" if name in some else "none" for some in (own, self.weights))
        if tuned is not None:
            return (
                f"{self.start} cannot be the base of {tuned}: {name} is {here} in what was tuned and {there} in it; "
                "give the base that it was trained over"
            )
        return (
            f"start={self.start} does not fit this model: {name} is {here} here and {there} there; leave out the "
            "settings of the model, which the start brings along"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:NEW]) + (f" and {len(names) - NEW} more" if len(names) > NEW else "")
