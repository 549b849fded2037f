"""Registries of named parts: the built-in ones, and those that plugins add.

Built-in families and tasks are registered by import name, so settings do not import their code.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from ..errors import UserError

ENTRY_POINTS = "regard.plugins"  # the group of entry points; each is a module, or a function without arguments
Part = TypeVar("Part")


class Registry(Mapping[str, Part]):
    """Parts by name. Looking up an unknown name and listing all names load the installed plugins first."""

    def __init__(self, part_type: str, builtin: Mapping[str, Part]) -> None:
        self.part_type, self.builtin, self.added = part_type, dict(builtin), dict[str, Part]()

    def add(self, name: str, part: Part) -> None:
        """Add the part of a plugin. Adding it again replaces it, for example when its file is reloaded."""
        if name in self.builtin:
            raise UserError(f"{self.part_type} {name!r} is built in; register yours under another name")
        self.added[name] = part

    def __getitem__(self, name: str) -> Part:
        if name in self.builtin:
            return self.builtin[name]
        if name not in self.added:
            load_plugins()
        return self.added[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter([*self.builtin, *self.added])

    def __len__(self) -> int:
        load_plugins()
        return len(self.builtin) + len(self.added)


def describe_error(error: Exception) -> str:
    """The type and message of an exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


_loaded: set[str] = set()  # entry points, by value


def load_plugins() -> None:
    """Load every installed plugin once. A plugin registers its parts when it is imported or called."""
    from importlib.metadata import entry_points  # searching all installed packages takes 20 ms

    for entry in entry_points(group=ENTRY_POINTS):
        if entry.value in _loaded:
            continue
        _loaded.add(entry.value)
        try:
            plugin = entry.load()
            if callable(plugin):
                plugin()
        except Exception as error:
            _loaded.discard(entry.value)  # so that the next use raises the error again
            if isinstance(error, UserError):
                raise
            package = entry.dist.name if entry.dist else "an unknown package"
            raise UserError(
                f"the plugin {entry.name} of {package} cannot be loaded ({describe_error(error)}); "
                "update the package or uninstall it"
            ) from error


Entry: TypeAlias = str | Any  # the import name of a built-in module; of a plugin a module, or a declared task

FAMILIES: Registry[Entry] = Registry(
    "family",
    {
        name: f"regard.families.{name.replace('-', '_')}"
        for name in (
            "transformer", "bert", "longformer", "bigbird", "t5", "lm", "gpt", "xl", "rnn", "cnn", "vit", "detr",
            "captioner", "speech", "whisper", "omni", "nat", "nat-ctc", "cmlm", "clip",
        )
    },
)  # fmt: skip
TASKS: Registry[Entry] = Registry(
    "task",
    {
        name: f"regard.tasks.{name.replace('-', '_')}"
        for name in (
            "language", "translate", "classify", "tag", "masked", "text2text", "spans", "classify-image", "detect",
            "caption", "transcribe", "multitask", "contrastive",
        )
    },
)  # fmt: skip


def load_module(source: Entry, part: str = "") -> Any:
    """The module behind an entry. A built-in task has its settings and its code in two modules, `part` of a package."""
    if not isinstance(source, str):
        return source
    return import_module(f"{source}.{part}" if part else source)
