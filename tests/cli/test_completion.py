"""Shell completion, by the protocol that the scripts of the shells use."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli import main
from tests.helpers import reads


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, a recipe and data."""
    monkeypatch.chdir(tmp_path)
    Path("runs/old").mkdir(parents=True)
    Path("runs/a").symlink_to(reads.stored_run("classify", train__steps=4, train__eval_every=2))
    Path("train.tsv").write_text("a\tb\n")
    Path("data").mkdir()
    Path("data/valid.tsv").write_text("a\tb\n")
    Path("mine.toml").write_text('base = "dates"\n[model]\nfamily = "t5"\n')
    return tmp_path


class Bash:
    """Asks as the script for Bash does: words are split at blanks and `=`, and the cursor is in the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, line: str) -> list[str]:
        words = line.replace("=", " = ").split() + ([""] if line.endswith(" ") else [])
        self.monkeypatch.setenv("_REGARD_COMPLETE", "complete_bash")
        self.monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        self.monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            main([])
        return self.capsys.readouterr().out.split()


@pytest.fixture
def bash(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bash:
    return Bash(monkeypatch, capsys)


def test_verbs_recipes_and_files(bash: Bash) -> None:
    assert bash("regard in") == ["info"]
    assert bash("regard train class") == ["classify", "classify-image"]
    assert bash("regard train multi30k-nat-") == ["multi30k-nat-ctc", "multi30k-nat-stages"]
    assert bash("regard train mi") == ["mine.toml"]


def test_keys(bash: Bash) -> None:
    sections = bash("regard train translate ")
    assert sections[:4] == ["task=", "start=", "tune.", "model."] and "decode." in sections
    model = bash("regard train translate model.")
    assert {"model.width=", "model.attention.kind=", "model.norm.eps="} < {*model}
    assert all(key.startswith("model.") for key in model) and bash("regard train translate mo") == model
    assert bash("regard train translate train.l") == ["train.lr=", "train.log_every="]
    assert bash("regard train translate train.lr") == ["train.lr=", "train.lr=0.0007"]  # no space after the only key
    assert bash("regard train classify train.metr")[:3] == [
        "train.metric=",
        "train.metric=loss",
        "train.metric=accuracy",
    ]


def test_keys_depend_on_the_recipe_and_on_what_is_typed(bash: Bash) -> None:
    assert "model.head_width=" in bash("regard train mine.toml model.")
    assert bash("regard train translate model.fert") == []
    assert bash("regard train translate model.family=nat model.fert")[0] == "model.fertilities="
    assert bash("regard train dates train.schedule.") == ["train.schedule.kind=", "train.schedule.floor="]
    assert "train.schedule.decay=" in bash("regard train dates train.schedule=wsd train.schedule.")
    assert bash("regard train dates train.steps=many train.schedule.fl")[0] == "train.schedule.floor="  # a mistake


def test_values(bash: Bash) -> None:
    assert bash("regard train translate tokenizer.normalize=") == ["none", "nfc", "nfkc", "lower", "nfkc+lower"]
    assert bash("regard train translate tokenizer.normalize=nf") == ["nfc", "nfkc", "nfkc+lower"]
    assert bash("regard train translate train.schedule=c") == ["cosine", "constant"]
    assert bash("regard train translate train.schedule.kind=w") == ["wsd"]
    assert bash("regard train translate train.compile=") == ["true", "false"]
    assert bash("regard train translate model.size=") == ["tiny", "small", "base", "big"]
    assert "whisper" in bash("regard train translate model.family=wh")
    assert bash("regard train translate train.steps=") == ["10000"]
    assert bash("regard train translate train.betas=") == []


def test_values_where_the_shell_does_not_split_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complete(shell: str, line: str) -> str:
        monkeypatch.setenv("_REGARD_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out

    assert '"train.schedule=cosine":"The rate falls along a cosine' in complete(
        "zsh", "regard train dates train.schedule=c"
    )
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    lines = complete("fish", "regard train dates train.lo").splitlines()
    assert lines[0] == "train.log_every=\tsteps between records in metrics.jsonl"
    assert complete("fish", "regard train dates data.train=train.tsv,da").split() == [
        "data.train=train.tsv,data/",
        "data.train=train.tsv,data/valid.tsv",
    ]


def test_files_of_data(bash: Bash) -> None:
    assert bash("regard train classify data.train=t") == ["train.tsv"]
    assert bash("regard train classify data.train=train.tsv,da") == ["train.tsv,data/", "train.tsv,data/valid.tsv"]
    assert bash("regard train classify start=runs/") == ["runs/a/", "runs/old/"]


def test_runs(bash: Bash) -> None:
    assert bash("regard predict ru") == ["runs/", "runs/a", "runs/old/"]
    for line in ("info runs/", "convert runs/", "look runs/", "predict runs/a --tune runs/", "align --run runs/"):
        assert bash(f"regard {line}") == ["runs/a", "runs/old/"]


def test_settings_of_runs(bash: Bash) -> None:
    assert bash("regard predict runs/a ")[:3] == ["data/", "mine.toml", "runs/"]
    assert {"decode.", "data.", "device="} < {*bash("regard predict runs/a ")}
    assert "model." not in bash("regard predict runs/a ")
    assert bash("regard predict runs/a decode.p") == ["decode.pooling="] + [
        f"decode.pooling={value}" for value in ("mean", "first", "max")
    ]
    assert bash("regard eval runs/a decode.pooling=") == ["mean", "first", "max"]
    assert "decode.top=" in bash("regard distill runs/a decode.")
    assert bash("regard predict nowhere decode.") == []


def test_keys_to_explain(bash: Bash) -> None:
    assert bash("regard train dates --explain train.sch") == [
        "train.schedule",
        "train.schedule.kind",
        "train.schedule.floor",
    ]
    assert bash("regard train dates --explain al") == ["all"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no Bash")
def test_the_script_for_bash(folder: Path) -> None:
    """Bash itself calls the program through the script that `--install-completion` installs."""
    Path("regard").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m regard "$@"\n')
    Path("regard").chmod(0o755)
    script = """
    PATH="$PWD:$PATH"
    eval "$(_REGARD_COMPLETE=source_bash regard)"
    COMP_WORDS=(regard train dates decode.strategy.kind = sa) COMP_CWORD=5
    _regard_completion regard
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sample"]
