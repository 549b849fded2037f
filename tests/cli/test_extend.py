"""Plugins that are broken, in files and packages; test_pages.py runs docs/extend.md as it is."""

import importlib.metadata
import re
import sys

import pytest
from helpers.pages import read_blocks

import regard
from regard.cli.app import main
from regard.config import registry
from regard.config.registry import FAMILIES, TASKS
from regard.errors import UserError
from regard.plugins import load_plugin
from regard.processors.saved import PROCESSORS
from regard.testing import BrokenLaw, check_family, check_task
from regard.testing.tasks import BrokenTaskLaw

FILES = {block.text.partition("\n")[0].removeprefix("# "): block.text for block in read_blocks("docs/extend.md")}


BROKEN = {
    "no SPEC": ("SPEC = ", "OTHER = ", "no SPEC"),
    "no tiny": ('"tiny": {', '"mini": {', "no size tiny"),
    "built-in name": ('Literal["cosine"] = "cosine"\n    size', 'Literal["bert"] = "bert"\n    size', "is built in"),
    "an error": ("import math\n", "import mathematics\n", "cannot be loaded (ModuleNotFoundError"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_plugin_file_is_one_sentence(what, tmp_path):
    old, new, message = BROKEN[what]
    text = FILES["ratings/cosine.py"] + "\nimport regard\n\nregard.register(family=__name__)\n"
    assert old in text
    (tmp_path / "broken.py").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_plugin(str(tmp_path / "broken.py"))
    assert "\n" not in str(caught.value)


def test_a_plugin_must_exist_and_register_something(tmp_path):
    with pytest.raises(UserError, match=r"absent\.py is not a file"):
        load_plugin(str(tmp_path / "absent.py"))
    with pytest.raises(UserError, match="no_such_module cannot be imported"):
        load_plugin("no_such_module")
    for source in ("./folder", "some/folder", ""):
        with pytest.raises(UserError, match="is not a file; give the path of a .py file or the name of a module"):
            load_plugin(source)
    with pytest.raises(UserError, match="nothing to add"):
        regard.register()
    with pytest.raises(UserError, match="has no name; give it a class attribute `kind`"):
        regard.register(processor=dict)


def test_a_plugin_module_that_fails_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "failing_plugin.py").write_text("raise ValueError('one\\ntwo')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"failing_plugin cannot be imported \(ValueError: one two\); correct it"):
        load_plugin("failing_plugin")


def test_a_plugin_file_may_not_replace_a_module(tmp_path):
    for name in ("random", "torch", "regard"):
        before = sys.modules[name]
        (tmp_path / f"{name}.py").write_text("x = 1")
        with pytest.raises(UserError, match=f"has the name of an installed module, {name}; rename the file"):
            load_plugin(str(tmp_path / f"{name}.py"))
        assert sys.modules[name] is before


def test_a_plugin_without_a_verb_shows_the_help(tmp_path, capsys):
    (tmp_path / "empty_plugin.py").write_text("")
    assert main(["--plugin", str(tmp_path / "empty_plugin.py")]) == 0
    assert "Usage: regard" in capsys.readouterr().out


def test_an_installed_plugin_that_fails_is_told_at_every_use(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_entry.py").write_text("raise ValueError('one\\ntwo')")
    monkeypatch.syspath_prepend(tmp_path)
    broken = importlib.metadata.EntryPoint("mine", "broken_entry", "regard.plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [broken])
    for _ in range(2):
        assert main(["list"]) == 2
        message = capsys.readouterr().err
        assert "the plugin mine of an unknown package cannot be loaded (ValueError: one two); update" in message
        assert message.count("\n") == 1


LOOKS = {"by name": lambda: FAMILIES["cosine"], "all": lambda: [*FAMILIES], "their number": lambda: len(FAMILIES)}


@pytest.mark.parametrize("look", LOOKS)
def test_an_installed_plugin_is_loaded_with_the_first_look(look, tmp_path, monkeypatch):
    (tmp_path / "cosine_entry.py").write_text(
        FILES["ratings/cosine.py"] + "\n\nimport regard\n\nregard.register(family=__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cosine_entry", raising=False)
    entry = importlib.metadata.EntryPoint("mine", "cosine_entry", "regard.plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(registry, "_loaded", set())
    monkeypatch.setattr(FAMILIES, "added", {})
    LOOKS[look]()
    assert [*FAMILIES.added] == ["cosine"]


def test_a_plugin_that_breaks_a_law_is_one_sentence(tmp_path, monkeypatch):
    """Attention that ignores the mask: padding changes the output."""
    text = FILES["ratings/cosine.py"].replace(".exp(), mask, bias)", ".exp(), Mask(), bias)")
    assert text != FILES["ratings/cosine.py"]
    (tmp_path / "unmasked.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BrokenLaw, match="cosine, tokens to label: the output of a row depends on") as caught:
        check_family(importlib.import_module("unmasked"))
    assert "batch_invariance is a law of every family" in str(caught.value) and "\n" not in str(caught.value)


def test_a_task_that_breaks_a_law_is_one_sentence(tmp_path, monkeypatch):
    """An answer that depends on the answers before it."""
    package = tmp_path / "moody"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "numbers.py").write_text(FILES["ratings/numbers.py"])
    text = FILES["ratings/rate.py"].replace('"rate", TEXT', '"moody", TEXT')
    text = text.replace("RateResult(stars.decode(", "RateResult(len(asked.append(1) or asked) + stars.decode(")
    assert text.count("moody") == text.count("asked.append") == 1
    (package / "rate.py").write_text(text + "\nasked = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    for parts in (TASKS, PROCESSORS):  # other tests know nothing of them
        monkeypatch.setattr(parts, "added", {**parts.added})
    regard.register(processor=importlib.import_module("moody.numbers").NumberProcessor)
    task = importlib.import_module("moody.rate").TASK
    with pytest.raises(BrokenTaskLaw, match="task moody: not true that an item alone is answered as in a batch"):
        check_task(task, ["good great", "bad"], {"model.family": "bert", "tokenizer.kind": "word"})


@pytest.mark.parametrize(("does", "old", "new"), [("reads", "tokens", "boxes"), ("writes", "label", "waveform")])
def test_a_family_without_laws_is_one_sentence(tmp_path, monkeypatch, does, old, new):
    text = FILES["ratings/cosine.py"].replace(f'frozenset({{"{old}"}})', f'frozenset({{"{new}"}})')
    (tmp_path / "unusual.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unusual", raising=False)
    with pytest.raises(UserError, match=f"unusual {does} {new}; there are laws for"):
        check_family(importlib.import_module("unusual"))
