"""Public functions and classes without a docstring or a type: none."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import regard
from regard.families import protocols
from tests.helpers import setting_tables

# Every function and class of the package is public unless its name begins with an underscore. Methods count in the
# modules that the docs name, and in everything that `regard.load` returns.
DOCUMENTED_METHODS = (
    "regard.api", "regard.sklearn", "regard.html", "regard.progress", "regard.plugins", "regard.errors", "regard.look",
    "regard.families.", "regard.parts.masks", "regard.parts.inputs", "regard.parts.attention", "regard.parts.layer",
    "regard.data.batch", "regard.config.", "regard.decode.engine.generator", "regard.decode.engine.requests",
    "regard.config.strategies", "regard.decode.engine.wrappers", "regard.processors.base", "regard.processors.text.custom",
    "regard.tasks.predictor", "regard.messages.base", "regard.messages.media", "regard.messages.texts", "regard.messages.speech", "regard.messages.labels",
    "regard.messages.verbs", "regard.tasks.classify.task", "regard.tasks.classify_image.task",
    "regard.tasks.language.task", "regard.tasks.translate.task", "regard.tasks.masked.task", "regard.tasks.tag.task", "regard.tasks.detect.task",
    "regard.tasks.label.encoder", "regard.tasks.base", "regard.tasks.custom", "regard.tasks.saving", "regard.training.callbacks",
    "regard.training.fit", "regard.training.loop", "regard.training.objective", "regard.training.custom",
    "regard.training.protocols",
)  # fmt: skip
INTERFACE = {  # a method of a family is documented by the protocol that it satisfies
    name
    for _, part in inspect.getmembers(protocols, inspect.isclass)
    for name, each in vars(part).items()
    if getattr(each, "__doc__", None)
}


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(regard.__path__, "regard."):
        if found.name != "regard.__main__":
            yield importlib.import_module(found.name)


def methods(part: type) -> Iterator[tuple[str, Any]]:
    for name, each in vars(part).items():
        inner = each.__func__ if isinstance(each, classmethod | staticmethod) else getattr(each, "fget", None) or each
        defined = (
            inspect.isfunction(inner) and inner.__name__ == name and inner.__qualname__.startswith(part.__qualname__)
        )
        if defined and not name.startswith("_"):
            yield name, inner


def parts(module: Any) -> Iterator[tuple[str, Any]]:
    for name, each in vars(module).items():
        own = getattr(each, "__module__", None) == module.__name__
        if own and not name.startswith("_") and (inspect.isclass(each) or inspect.isfunction(each)):
            yield name, each


def has_doc(part: type, name: str, method: Any) -> bool:
    inherited = (getattr(vars(base).get(name), "__doc__", None) for base in part.__mro__[1:])
    family = part.__module__.startswith("regard.families.") and name in INTERFACE
    return bool(method.__doc__) or family or any(inherited)


def test_tables_of_settings_say_what_the_settings_say() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in setting_tables.DOCS.glob("*.md")}
    assert sum(text.count("<!-- settings of") for text in pages.values()) >= 10
    stale = [name for name, text in pages.items() if setting_tables.rewritten(text) != text]
    assert not stale, f"{stale}; run python -m tests.helpers.setting_tables"


def untyped(function: Any) -> list[str]:
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return [name for name in [*names, "return"] if name not in function.__annotations__]


def test_every_public_function_and_class_has_a_docstring() -> None:
    missing = []
    for module in modules():
        for name, part in parts(module):
            if not part.__doc__ or part.__doc__.startswith(f"{name}("):  # what dataclasses and named tuples make up
                missing.append(f"{module.__name__}.{name}")
            if inspect.isclass(part) and module.__name__.startswith(DOCUMENTED_METHODS):
                wrong = [own for own, method in methods(part) if not has_doc(part, own, method)]
                missing += [f"{module.__name__}.{name}.{own}" for own in wrong]
    assert not missing, f"{len(missing)}: {missing}"


def test_every_public_function_has_types() -> None:
    missing = []
    for module in modules():
        for name, part in parts(module):
            functions = [(name, part)] if inspect.isfunction(part) else list(methods(part))
            own = [(f"{module.__name__}.{name}", function) for name, function in functions]
            missing += [f"{where}: {each}" for where, function in own for each in untyped(function)]
    assert not missing, f"{len(missing)}: {missing}"


def test_the_public_names_exist() -> None:
    for name in regard.__all__:
        assert getattr(regard, name).__doc__, name
    assert set(regard.__all__) <= set(dir(regard))
