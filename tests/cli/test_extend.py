"""docs/extend.md as a third-party package: its files are written, installed with pip, and all its commands run."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.cli.app import main
from regard.errors import UserError
from regard.plugins import load_plugin
from regard.testing import BrokenLaw, check_family, laws_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = {block.partition("\n")[0].removeprefix("# "): block for kind, block in BLOCKS if kind != "sh"}
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]


class Sandbox:
    """A folder outside the checkout. The package is installed in a folder of its own, as pip does elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site, binaries = folder, folder / "site", folder / "bin"
        binaries.mkdir()
        for name, command in (("regard", f"{sys.executable} -m regard"), ("python", sys.executable)):
            (binaries / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (binaries / name).chmod(0o755)
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        path = [str(self.site), str(ROOT)]
        self.env = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": ":".join(path)}
        self.env |= {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}  # the package must not be found in the folder

    def run(self, command: str, site: bool = True) -> subprocess.CompletedProcess[str]:
        env = self.env if site else {**self.env, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, shell=True, cwd=self.folder, env=env, capture_output=True, text=True, timeout=300
        )

    def install(self) -> None:
        options = "--no-deps --no-build-isolation --disable-pip-version-check --quiet"
        done = self.run(f"{sys.executable} -m pip install {options} --target site .")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    made = Sandbox(tmp_path_factory.mktemp("extend"))
    made.install()
    made.outputs = {}
    for command in COMMANDS:
        done = made.run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        made.outputs[command] = done.stdout
    return made


def test_every_command_of_the_page_works(sandbox):
    laws = sandbox.outputs["python test_cosine.py"].splitlines()
    assert len(laws) == len(laws_of("tokens", "label")) and "cosine, tokens to label: batch_invariance" in laws
    assert "cosine  sizes: tiny, small" in sandbox.outputs["regard list"]
    (predicted,) = (text for command, text in sandbox.outputs.items() if command.endswith("regard predict runs/rate"))
    good, bad = map(float, predicted.split())
    assert good > 3.5 and bad < 2.5  # 4.67 and 1.33 in the data
    (evaluated,) = (text for command, text in sandbox.outputs.items() if command == "regard eval runs/rate")
    assert float(re.search(r"error ([\d.]+)", evaluated)[1]) < 0.5


def test_the_run_keeps_the_processor_of_the_plugin(sandbox):
    run = (sandbox.folder / "runs/rate/run.json").read_text()
    assert '"number"' in run and (sandbox.folder / "runs/rate/number.json").is_file()
    assert '"best_step"' in run or '"weights"' in run


def test_conversion_of_a_plugin_family_is_refused(sandbox):
    done = sandbox.run("regard convert runs/rate --to huggingface --out runs/converted")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "cosine" in done.stderr, done.stderr
    assert not (sandbox.folder / "runs/converted").exists()


def test_without_the_package_a_run_is_refused_in_one_sentence(sandbox):
    for command, word in (("predict runs/rate", "rate"), ("predict runs/single", "cosine")):
        done = sandbox.run(f"echo text | regard {command}", site=False)
        assert done.returncode == 2 and f"={word}, which is not built in; install the plugin" in done.stderr, (
            done.stderr
        )
        assert done.stderr.count("\n") == 1


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


def test_a_plugin_that_breaks_a_law_is_one_sentence(tmp_path, monkeypatch):
    """Attention that ignores the mask: padding changes the output."""
    text = FILES["ratings/cosine.py"].replace(".exp(), mask, bias)", ".exp(), Mask(), bias)")
    assert text != FILES["ratings/cosine.py"]
    (tmp_path / "unmasked.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BrokenLaw, match="cosine, tokens to label: the output of a row depends on") as caught:
        check_family(importlib.import_module("unmasked"))
    assert "batch_invariance is a law of every family" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("does", "old", "new"), [("reads", "tokens", "boxes"), ("writes", "label", "waveform")])
def test_a_family_without_laws_is_one_sentence(tmp_path, monkeypatch, does, old, new):
    text = FILES["ratings/cosine.py"].replace(f'frozenset({{"{old}"}})', f'frozenset({{"{new}"}})')
    (tmp_path / "unusual.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unusual", raising=False)
    with pytest.raises(UserError, match=f"unusual {does} {new}; there are laws for"):
        check_family(importlib.import_module("unusual"))
