"""docs/multimodal.md: all its commands and its Python run, on files of the names that it uses."""

import glob
import json
import re
from pathlib import Path
from unittest import mock

import pytest
from PIL import Image

import regard
from regard.cli import main
from regard.synthetic import captions
from regard.training import curves

PAGE = (Path(__file__).parents[2] / "docs" / "multimodal.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("\n## One model, many inputs\n")[0]  # test_multitask_page.py runs that section
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
FEW = [
    "train.steps=2",
    "train.warmup=1",
    "train.batch=4",
    "train.eval_every=2",
    "train.save_every=2",
    "train.metric=loss",
]
FEW += ["train.tensorboard=false", "device=cpu", "decode.max_tokens=8"]
CAPTIONER = ["model.width=16", "model.layers=1", "model.inner=16", "model.encoder.width=16", "model.encoder.layers=1"]
EXPORTED = ["model.encoder.pool=first", "model.encoder.positions=learned", "model.encoder.stem=[]"]


def write_captions() -> None:
    """images/*.png with captions.tsv, and new/*.png."""
    for number, (image, caption) in enumerate(captions.make_captions(6)["train"]):
        for folder in ("images", "new"):
            Path(folder).mkdir(exist_ok=True)
            Image.fromarray(image).save(f"{folder}/{number}.png")
        with open("captions.tsv", "a", encoding="utf-8") as file:
            file.write(f"{number}.png\t{caption}\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


def test_the_commands_run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(captions, "HELD_OUT", 4)
    write_captions()
    printed = {}
    with mock.patch.object(curves, "draw", lambda folder: None):
        settings = dict(each.split("=") for each in [*FEW, *CAPTIONER, *EXPORTED]) | {"data.examples": 8}
        regard.train("caption", settings, out="base")
        regard.convert("base", to="huggingface", out="vit-gpt2")
        for command in COMMANDS:
            words = [file for word in command.split()[1:] for file in (sorted(glob.glob(word)) or [word])]
            if words[0] == "train":
                words += FEW + ([] if any(word.startswith("start=") for word in words) else CAPTIONER)
            words += ["data.examples=8"] if command == "regard train caption --out runs/shapes" else []
            assert main(words) == 0, command
            printed[command] = capsys.readouterr().out.splitlines()
    assert Path("fine-vit-gpt2", "generation_config.json").is_file() and Path("attention.png").is_file()
    assert len(printed["regard predict runs/captions new/*.png"]) == 6
    record = json.loads(printed["regard predict runs/captions new --json"][0])
    assert record["path"] == "new/0.png" and len(record["patches"]) == len(record["pieces"])
    best = printed["regard predict runs/captions new/1.png decode.kind=beam decode.nbest=3"]
    assert len(best) == 1 and len(best[0].split("\t")) == 3
    assert "circle" in printed["regard predict runs/captions new/1.png decode.kind=beam decode.include=circle"][0]
    assert any(line.startswith("cider") for line in printed["regard eval runs/captions --data images/,captions.tsv"])


def test_the_python_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block
    names: dict[str, object] = {}
    exec(block[1], names)
    assert isinstance(names["caption"], str) and len(names["best"]) == 3  # type: ignore[arg-type]
    assert names["score"] < 0  # type: ignore[operator]
