"""docs/multimodal.md, the section about one space: all its commands and its Python run, on files of its names."""

import glob
import re
import shlex
import wave
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

import regard
from regard.cli import main
from regard.synthetic import captions
from regard.training import curves

PAGE = (Path(__file__).parents[2] / "docs" / "multimodal.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## One space")[2].partition("\n## ")[0]
FEW = ["train.steps=2", "train.warmup=1", "train.batch=4", "train.eval_every=2", "train.metric=loss", "device=cpu"]
FEW += ["train.tensorboard=false"]
TEXT = ["model.text.width=16", "model.text.layers=1", "model.text.inner=16"]
SOURCE = ["model.source.width=16", "model.source.heads=2", "model.source.layers=1", "model.source.inner=16"]


def write_files() -> None:
    """new/*.png with pairs.tsv and labeled.tsv, sounds.tsv, queries.txt, a.txt and b.txt."""
    Path("new").mkdir()
    pairs, labeled = ["path\ttext"], ["path\tlabel"]
    for number in range(10):
        color, shape = (("red", "circle"), ("blue", "cross"))[number % 2]
        arrangement = captions.Arrangement(((color, shape),), False)
        image = captions.draw_arrangement(arrangement, np.random.default_rng(number))
        Image.fromarray(image).save(f"new/{number}.png")
        pairs.append(f"new/{number}.png\t{captions.describe_arrangement(arrangement)}")
        labeled.append(f"new/{number}.png\ta {color} {shape}")
    sounds = ["path\ttext"]
    for number in range(6):
        with wave.open(f"{number}.wav", "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(np.random.default_rng(number).integers(-999, 999, 3200, np.int16).tobytes())
        sounds.append(f"{number}.wav\tword {number % 3}")
    texts = {
        "pairs.tsv": pairs,
        "labeled.tsv": labeled,
        "sounds.tsv": sounds,
        "queries.txt": ["a red circle", "a cross"],
    }
    texts |= {"a.txt": [f"this is {n}" for n in range(6)], "b.txt": [f"{n} it is" for n in range(6)]}
    for name, lines in texts.items():
        Path(name).write_text("\n".join(lines) + "\n")


def test_the_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(captions, "HELD_OUT", 8)
    write_files()
    printed = {}
    with mock.patch.object(curves, "draw", lambda folder: None):
        few = dict(each.split("=") for each in FEW)
        own = {"model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 16, "data.examples": 20}
        regard.train("masked", few | own | {"model.size": "tiny"}, out="bert")
        towers = dict(each.split("=") for each in [*TEXT, *SOURCE]) | {"data.examples": 8, "model.source.pool": "first"}
        regard.train("contrastive", few | towers, out="base")
        regard.convert("base", to="huggingface", out="clip")
        for command in re.findall(r"^    (regard .*)$", SECTION, re.MULTILINE):
            words = [file for word in shlex.split(command)[1:] for file in (sorted(glob.glob(word)) or [word])]
            if words[0] == "train":
                words += FEW + ["data.examples=8"]
                started = any(word.startswith("start=") for word in words)
                words += [] if started else TEXT if "model.source.kind=text" in words else TEXT + SOURCE
            assert main(words) == 0, (command, capsys.readouterr().err)
            printed[command] = capsys.readouterr().out.splitlines()
    assert len(printed) == 18
    by_label, by_template, ranked = (printed[each] for each in list(printed)[1:4])
    assert len(by_label) == len(by_template) == 10 and by_template[0].count("\t") == 4
    assert ranked[0].startswith("a red circle\t") and len(ranked) == 20
    assert any(line.startswith("accuracy ") for line in printed[[*printed][10]])
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    assert found["label"] in ("a red circle", "a blue cross") and len(found["best"]) == 2  # type: ignore[arg-type]
