"""docs/parallel.md: its commands and its Python run, on forty dates."""

import re
import shlex
from pathlib import Path

import pytest

from regard.cli import main
from regard.synthetic.dates import make_dates
from regard.training import curves

PAGE = (Path(__file__).parents[2] / "docs" / "parallel.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
SMALL = [
    "model.size=tiny",
    "model.width=32",
    "model.heads=2",
    "model.layers=1",
    "model.inner=32",
    "tokenizer.vocab=300",
]
FEW = ["train.steps=2", "train.warmup=1", "train.eval_every=2", "train.save_every=2", "train.tensorboard=false"]


def write_data() -> None:
    pairs = list(make_dates(("en", "de"), 40, 1)["train"])
    for split, some in (("train", pairs), ("val", pairs[:5])):
        for side, name in enumerate(("en", "de")):
            Path(f"{split}.{name}").write_text("".join(f"{pair[side]}\n" for pair in some))
    Path("gold.links").write_text("0-0 1?1\n" * len(pairs))


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    write_data()
    assert len(COMMANDS) == 19
    for command in COMMANDS:
        arguments = shlex.split(command)[1:]
        kept = arguments.pop() if ">" in arguments else None
        arguments = [each for each in arguments if each != ">"]
        if arguments[0] == "train" and "--resume" not in arguments:
            started = any(each.startswith("start=") for each in arguments)
            arguments += [*FEW, *([] if started else SMALL), "device=cpu"]
        assert main(arguments) == 0, (command, capsys.readouterr().err)
        printed = capsys.readouterr().out
        if kept is not None:
            Path(kept).write_text(printed)
        if arguments[0] in ("align", "predict"):
            assert printed.count("\n") == (40 if "train.en" in arguments else 5), command  # other line ends may be text
    for name in ("distilled.de", "distilled.tsv"):  # dates are too short to be spliced
        assert Path(name).read_text().count("\n") == 40


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
