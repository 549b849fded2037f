"""Every code block of README.md, CONTRIBUTING.md and docs/*.md runs, in order, on small files of the names that it uses.

`helpers/pages.py` runs a page, `helpers/page_files.py` writes its files, and the functions here say what it must print.
"""

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import page_files as files
from helpers.page_checks import check_benchmark, check_make, check_mentioned, check_pip, check_regard, missing_names
from helpers.pages import ROOT, SHELL, SIZES, PageRun, Rules, captured, read_blocks, restored_plugins, run_page
from PIL import Image

import regard
from benchmarks import heads
from regard.cli import files as recording_files
from regard.cli import main
from regard.config import registry
from regard.config.train import Train
from regard.data.datasets.fields import ProcessorField
from regard.data.datasets.source_target import SourceTargetDataset
from regard.processors.base import PROCESSORS
from regard.processors.labels import LabelProcessor, LabelSet
from regard.testing import laws_of

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
RESULTS = "docs/results.md"  # its commands are measurements of hours, on data that is not here: they are only checked


# Commands that no test executes as they are, with the reason, and what checks them instead.
NOT_EXECUTED = {
    "make": ("targets install packages, train for minutes or run these tests", check_make),
    "pip install": ("packages cannot be downloaded here; `pip install .` is executed, without dependencies", check_pip),
    "python -m benchmarks": ("minutes, some on a GPU; tests/benchmarks executes each at a small size", check_benchmark),
    "python -m benchmarks.matching": ("hours on a GPU; tests/data/test_matching.py runs it small", check_benchmark),
    "python -m benchmarks.tune": ("hours, and the page leaves out the names of its files", check_benchmark),
}


# --- what each page must print ---------------------------------------------------------------------------------------


def check_readme(run: PageRun) -> None:
    for name in ("attention.html", "attention.png", "runs/ende/model.safetensors", "a-marian/config.json"):
        assert Path(name).is_file(), name
    assert run.names["predictor"].model is not None and len(run.names["results"]) == 2


def check_audio(run: PageRun) -> None:
    assert [line.split("\t")[2] for line in run.of("regard align-audio").lines] == ["CQ", "DE", "W1AW"]
    assert Path("a.srt").is_file() and len([*Path("subtitles").iterdir()]) == 24
    assert Path("attention.png").stat().st_size > 1000 and Path("copy/generation_config.json").is_file()
    assert isinstance(run.names["words"], list) and isinstance(regard.load("runs/speech").predict("a.wav"), str)


def check_data(run: PageRun) -> None:
    count = len(files.REVIEWS)
    (shown,) = [block.text.strip() for block in run.blocks if block.language == "text"]
    assert shown in run.of("regard train classify data.train=reviews.csv").err
    chosen = "text is column comment, label is column stars (of who, comment, stars)"
    assert chosen in run.of("regard train classify data.train=ratings.csv").err
    assert "source is column 2, target is column 3 (no header)" in run.of("regard train translate").err
    assert f"examples {count}" in run.of("regard eval").out
    predicted = run.of("regard predict").lines
    assert {*predicted} <= {"pos", "neg"} and len(predicted) == count
    assert json.loads(Path("runs/memory/run.json").read_text())["data"].keys() == {"train", "valid"}


def check_decoding(run: PageRun) -> None:
    tokens = run.printed[0].splitlines()
    assert 1 <= len(tokens) - 1 <= 100 and tokens[-1].endswith(("end", "length"))


def check_export(run: PageRun) -> None:
    assert "bleu" in run.of("regard eval runs/a runs/b").out
    for name in ("attention.pdf", "picture.png", "all.svg", "runs/x-mean/run.json", "x-marian/README.md"):
        assert Path(name).is_file(), name
    assert Path("model-llama/config.json").is_file() and Path("x-ct2/model.bin").is_file()
    assert len(run.of("regard predict runs/bert --similar").lines) == 25  # each of five lines with all five


def check_extend(run: PageRun) -> None:
    laws = run.of("python test_cosine.py").lines
    assert len(laws) == len(laws_of("tokens", "label")) and "cosine, tokens to label: batch_invariance" in laws
    assert "cosine  sizes: tiny, small" in run.of("regard list").out
    good, bad = map(float, run.of("printf 'good").lines)
    assert good > 3.5 and bad < 2.5  # 4.67 and 1.33 in the data
    error = re.search(r"error ([\d.]+)", run.of("regard eval runs/rate").out)
    assert error and float(error[1]) < 0.5
    kept = Path("runs/rate/run.json").read_text()
    assert '"number"' in kept and Path("runs/rate/number.json").is_file()
    assert '"best_step"' in kept or '"weights"' in kept
    code, _, err = captured(lambda: main(["convert", "runs/rate", "--to", "huggingface", "--out", "runs/converted"]))
    assert code == 2 and err.count("\n") == 1 and "cosine" in err and not Path("runs/converted").exists()
    with restored_plugins():  # as without the package
        sys.path.remove(str(Path("site").resolve()))
        for each in (registry.FAMILIES, registry.TASKS, PROCESSORS):
            each.added.clear()
        for name, word in (("rate", "rate"), ("single", "cosine")):
            code, _, err = captured(lambda name=name: main(["predict", f"runs/{name}"]), b"text\n")
            assert code == 2 and f"={word}, which is not built in; install the plugin" in err, err
            assert err.count("\n") == 1


def check_modalities(run: PageRun) -> None:
    lines = [line.split("\t") for line in run.of("regard --plugin activity.py predict").lines]
    names = [f"series/test/{name}.npy" for name in ("run/1", "run/3", "run/5", "run/7", "walk/0")]
    assert [line[0] for line in lines] == names and [line[1] for line in lines] == ["run"] * 4 + ["walk"]
    assert "accuracy 1.0000" in run.of("regard --plugin activity.py eval").out
    assert len(run.of("python test_activity.py").lines) == 6
    assert Path("runs/activity/series.json").is_file()
    dataset = activity_dataset()
    batch, plain = dataset.batch(np.arange(3), 0), dataset.encode([0])
    assert dataset.measure(np.arange(3)).sizes.tolist() == [[21, 21], [23, 23], [25, 25]]
    assert not np.allclose(batch["series"].values[0, :21].numpy(), next(iter(plain))[0])
    bad = ["regard", "--plugin", "activity.py", "eval", "runs/activity", "--data", "bad.tsv"]
    Path("bad.tsv").write_text("path\tlabel\nabsent.npy\trun\n")
    code, _, err = captured(lambda: main(bad[1:]))
    assert code == 2 and "bad.tsv:2: there is no series absent.npy; correct the path or the line" in err


def activity_dataset() -> Any:
    """The data set of docs/modalities.md, of its files."""
    activity = sys.modules["activity"]
    examples = activity.LABELED_SERIES.open([["series/train"]], activity.TableData())
    label = LabelProcessor(LabelSet({"run": 4, "walk": 4}))
    fields = activity.SeriesField("series", activity.SeriesProcessor(2)), ProcessorField("label", label)
    return SourceTargetDataset(examples, *fields, activity.TableData(), Train(tokens=100))


def check_heads(run: PageRun) -> None:
    for name in ("heads.png", "heads.json", "effect.json", "deletion.png", "norms.png", "bert-folder/config.json"):
        assert Path(name).stat().st_size > 100
    assert regard.load("runs/c").run.pruned_heads == regard.load("runs/b").run.pruned_heads != ()
    _, out, _ = captured(lambda: heads.main(["test.conllu", "runs/tagger", "runs/b"], count=1) or 0)
    lines = [line.split()[:2] for line in out.decode().splitlines()]
    assert lines == [["run", "heads"], ["runs/tagger", "4"], ["runs/b", "3"]]


def check_images(run: PageRun) -> None:
    assert Path("confusion.png").is_file() and Path("fine-vit", "preprocessor_config.json").is_file()
    lines = run.of("regard predict runs/photos new/*.jpg").lines
    assert len(lines) == 12 and all(re.fullmatch(r"new/\d+\.jpg\t(cat|dog)\t0\.\d{4}", line) for line in lines)
    record = json.loads(run.of("regard predict runs/photos new --top 3 --json").lines[0])
    assert record["path"] == "new/0.jpg" and {each["label"] for each in record["top"]} == {"cat", "dog"}
    assert len(json.loads(run.of("regard predict runs/photos new --embed").lines[0])) == SIZES["width"]
    found = json.loads(run.of("regard predict runs/boxes scenes/*.png").lines[0])
    assert found["path"] == "scenes/1.png" and (found["width"], found["height"]) == (64, 64)
    assert isinstance(json.loads(Path("found.json").read_text()), list)
    assert {each.name for each in Path("drawn").iterdir()} == {f"{number}.png" for number in range(1, 11)}
    assert run.names["result"].label in ("cat", "dog")
    links = re.findall(r"!\[.*\]\((.*)\)", run.text)
    assert len(links) == 5
    for link in links:
        with Image.open(ROOT / "docs" / link) as image:
            assert min(image.size) > 30 and (ROOT / "docs" / link).stat().st_size < 100_000


def check_look(run: PageRun) -> None:
    for ran in run.commands:
        out = Path(ran.command.rpartition(" ")[2])
        name = {".html": "page", ".json": "numbers"}.get(out.suffix, "picture")
        assert ran.out == f"{name} {out}\n" and out.stat().st_size > 1000
    numbers = json.loads(Path("head.json").read_text())
    assert {each["layer"] for each in numbers["maps"]} == {2} and [*numbers["maps"][0]["heads"]] == ["1"]
    rows = np.array(numbers["maps"][0]["heads"]["1"])
    assert rows.shape == (len(numbers["maps"][0]["queries"]), len(numbers["maps"][0]["keys"]))
    assert np.allclose(rows.sum(1), 1, atol=1e-3)
    page = Path("sound.html").read_text()
    assert "http://" not in page and "https://" not in page and "<link" not in page and "data:image/png" in page
    view = run.names["view"]
    assert isinstance(view, regard.look.AttentionView) and "sandbox" in view._repr_html_()
    assert view.weights(2, 1).shape == (len(view.target), len(view.source)) and len(view.logprobs) == len(view.target)
    for arguments, words in LOOK_MISTAKES.items():
        given = arguments if "--out" in arguments else (*arguments, "--out", "x.html")
        code, _, err = captured(lambda given=given: main(["look", *given]))
        assert code == 2 and words in err and not Path("x.html").exists()


LOOK_MISTAKES = {
    ("runs/dates", "a", "--layer", "3"): "layer is 3; expected a number from 1 to 2, or all",
    ("runs/dates", "a", "--head", "3"): "head is 3; expected a number from 1 to 2, or all",
    ("runs/dates", "a", "--kind", "order"): "kind is 'order', but this model has the attention encoder, decoder, cross",
    ("runs/dates", " "): "the text is empty and has no attention to show",
    ("runs/dates", "a", "--out", "a.jpg"): "has the suffix '.jpg'; expected one of .html, .png, .pdf, .svg, .json",
    ("runs/digits", "image.png", "a"): "takes no target; give the image alone",
    ("runs/digits", "no.png"): "no.png",
}


def check_multimodal(run: PageRun) -> None:
    check_captions(run)
    check_manifest(run)
    check_space(run)


def check_captions(run: PageRun) -> None:
    assert Path("fine-vit-gpt2", "generation_config.json").is_file() and Path("attention.png").stat().st_size > 1000
    assert len(run.of("regard predict runs/captions new/*.png").lines) == 10
    record = json.loads(run.of("regard predict runs/captions new --json").lines[0])
    assert record["path"] == "new/0.png" and len(record["alignment"]["patches"]) == len(record["tokens"])
    best = run.of("regard predict runs/captions new/1.png decode.strategy=beam decode.strategy.n=3").lines
    assert len(best) == 1 and len(best[0].split("\t")) == 3
    assert (
        "circle" in run.of("regard predict runs/captions new/1.png decode.strategy=beam decode.include=circle").lines[0]
    )
    assert any(line.startswith("cider") for line in run.of("regard eval runs/captions").lines)
    assert isinstance(run.names["caption"], str) and run.names["score"] < 0


def check_manifest(run: PageRun) -> None:
    answers = run.of("regard predict runs/omni picture.png").lines
    assert len(answers) == 5 and answers[3] == ""  # an empty line has an empty answer
    records = [json.loads(line) for line in run.of("regard predict runs/omni new.jsonl").lines]
    assert [(each["alignment"]["kind"], each["task"]) for each in records] == [
        ("patches", "image"), ("tokens", "shorten")
    ]  # fmt: skip
    measured = {line.split()[0] for line in run.of("regard eval runs/omni").lines}
    assert measured >= {"exact", "loss", "german", "shorten", "image", "audio"}
    assert {line.split()[0] for line in run.of("regard eval runs/three").lines} >= {"dates", "scenes", "morse"}


def check_space(run: PageRun) -> None:
    by_label = run.of('regard predict runs/pairs new/*.png --labels "a red').lines
    by_template = run.of('regard predict runs/pairs new/*.png --labels "red').lines
    ranked = run.of("regard predict runs/pairs queries.txt").lines
    assert len(by_label) == len(by_template) == 10 and by_template[0].count("\t") == 4
    assert ranked[0].startswith("a red circle\t") and len(ranked) == 20
    assert any(line.startswith("accuracy ") for line in run.of("regard eval runs/pairs --data labeled.tsv").lines)
    assert run.names["label"] in ("a red circle", "a blue cross") and len(run.names["best"]) == 2


def check_parallel(run: PageRun) -> None:
    for ran in run.commands:
        if ran.command.startswith(("regard align", "regard predict")):
            expected = 40 if "train.en" in ran.command else 5
            assert ran.out.count("\n") == expected, ran.command  # other line ends may be text
    for name in ("distilled.de", "distilled.tsv"):  # dates are too short to be spliced
        assert Path(name).read_text().count("\n") == 40


def check_processors(run: PageRun) -> None:
    assert any('"kind": "audio"' in text for text in run.printed)
    assert sorted(path.name for path in Path().iterdir()) == ["audio.json", "gray.png", "run", "series.json"]
    for kind in PROCESSORS.builtin:
        assert f"| `{kind}` |" in run.text


def check_python(run: PageRun) -> None:
    titles = [block.heading for block in run.blocks]
    assert len({*titles}) == len(titles) == 10
    for block, printed in zip(run.blocks, run.printed, strict=True):
        assert block.text.count("\n") <= 25, block.heading
        assert block.heading in ("Stop from a callback", "Own loss") or printed, block.heading
    assert len([*Path("runs").iterdir()]) == 9


def check_training(run: PageRun) -> None:
    dry = run.of("regard train classify data.train=reviews.tsv --dry")
    show = run.of("regard train classify train.epochs=3")
    assert "labels 2" in dry.out and "train: 60 examples" in dry.out
    (shown,) = [block.text.splitlines() for block in run.blocks if block.language == "text"]
    assert len(shown) == 2
    for line in shown:
        setting, _, origin = line.partition(" #")
        assert re.search(rf"^{re.escape(setting.strip())} +#{origin}$", show.out, re.MULTILINE)


def check_tuning(run: PageRun) -> None:
    assert run.of("regard predict runs/ewt-lora").out == run.of("regard predict runs/cased --tune").out != ""
    assert Path("runs/ewt-whole/model.safetensors").is_file() and Path("ewt-peft/adapter_config.json").is_file()
    assert len(run.of("regard predict bert-folder").lines) == 2


def check_understanding(run: PageRun) -> None:
    assert Path("confusion.png").is_file()
    assert len(Path("tagged.conllu").read_text()) > 100
    assert len(run.of("regard predict runs/x --top 3").lines) == len(run.of("regard predict runs/bert --embed").lines)
    assert all(math.isfinite(float(line)) for line in run.of("regard predict runs/stars").lines)
    assert all("labels" in json.loads(line) for line in run.of("regard predict runs/topics").lines)


def check_whisper(run: PageRun) -> None:
    words = [line.split("\t")[2] for line in run.of("regard align-audio").lines]
    assert words == ["the", "words", "that", "are", "spoken"]
    assert Path("talk.srt").is_file() and Path("german.vtt").is_file() and len([*Path("subtitles").iterdir()]) == 8
    assert (
        regard.load("runs/times").run.decode.windows.timestamps
        and not regard.load("runs/german").run.decode.windows.timestamps
    )
    for name in ("german-whisper", "lora-whisper", "whisper-morse"):
        assert (Path(name) / "preprocessor_config.json").is_file()
    result = run.names["result"]
    assert result["language"] == "de" and {"temperature", "no_speech"} <= {*result["segments"][0]}
    check_whisper_table(run.text)
    for sequential in ("true", "false"):
        check_shown_position(sequential)


def check_whisper_table(page: str) -> None:
    """The table of the page, which is made of the schema, has the settings of windows."""
    rows = re.findall(r"^\| `decode\.([\w.]+)` \| [^|]* \|", page, re.MULTILINE)
    windows = {"sequential", "condition_on_previous", "temperatures", "no_speech_threshold"}
    assert {"strategy.kind", "batch", *(f"windows.{name}" for name in windows)} <= {*rows}


def check_shown_position(sequential: str) -> None:
    """A terminal shows the position in a recording of several windows."""
    given = [
        f"decode.windows.sequential={sequential}",
        "decode.windows.temperatures=[0]",
        "decode.max_tokens=5",
        "decode.batch=1",
    ]

    def predict(name: str) -> int:
        with mock.patch.object(sys.stderr, "isatty", lambda: True), mock.patch.object(recording_files, "PAUSE", 0.0):
            return main(["predict", "whisper-small", name, *given])

    code, _, err = captured(lambda: predict("talk.mp3"))
    shown = [each for each in err.split(recording_files.CLEAR) if each]
    assert code == 0 and shown and all(re.fullmatch(r"talk\.mp3  0:00:0\d of 0:00:0\d", each) for each in shown)
    assert shown == sorted(shown)
    code, _, err = captured(lambda: predict("talk-1.wav"))  # of one window
    assert (code, err) == (0, "")


# --- how each page is run --------------------------------------------------------------------------------------------


def short_texts(words: list[str]) -> list[str]:
    """The arguments of a command, so that what it writes is short: random weights never end a text."""
    return [*words, "decode.max_tokens=5"] if words[0] in ("predict", "eval") else words


def few_examples(words: list[str]) -> list[str]:
    return ["4" if word == "20" else word for word in words]


TWO_LAYERS = {**SIZES, "layers": 2}
AVERAGED = {"train.steps": 5, "train.save_every": 1, "train.keep": 5}
EPOCHS = {"train.steps": 0, "train.epochs": 3, "train.lr": 1e-2}
RULES = {
    "README.md": Rules(files.write_readme, check_readme),
    "docs/audio.md": Rules(files.write_audio, check_audio),
    "docs/data.md": Rules(files.write_data, check_data),
    "docs/decoding.md": Rules(files.write_decoding, check_decoding),
    "docs/export.md": Rules(files.write_export, check_export, settings=AVERAGED),
    "docs/extend.md": Rules(check=check_extend, shrink=False, settings={"data.examples": 100}),
    "docs/heads.md": Rules(files.write_heads, check_heads, TWO_LAYERS, arguments=few_examples),
    "docs/images.md": Rules(files.write_images, check_images),
    "docs/language.md": Rules(files.write_language),
    "docs/long.md": Rules(files.write_long),
    "docs/look.md": Rules(files.write_look, check_look, TWO_LAYERS),
    "docs/modalities.md": Rules(check=check_modalities, shrink=False),
    "docs/multimodal.md": Rules(files.write_multimodal, check_multimodal),
    "docs/parallel.md": Rules(files.write_parallel, check_parallel),
    "docs/processors.md": Rules(check=check_processors),
    "docs/python.md": Rules(check=check_python, shrink=False, own_names=True),
    "docs/training.md": Rules(files.write_training, check_training, settings=EPOCHS),
    "docs/tuning.md": Rules(files.write_tuning, check_tuning),
    "docs/understanding.md": Rules(files.write_understanding, check_understanding),
    "docs/whisper.md": Rules(files.write_whisper, check_whisper, arguments=short_texts),
}


@pytest.mark.parametrize("page", [page for page in PAGES if page != RESULTS])
def test_every_block_runs(page: str, tmp_path: Path) -> None:
    """A block that is neither run nor marked, and a command that fails, are errors."""
    checks = {start: check for start, (_, check) in NOT_EXECUTED.items()}
    run = run_page(page, tmp_path, RULES.get(page, Rules()), checks)
    commands = [command for block in run.blocks if block.language in SHELL for command in block.commands]
    assert len(run.commands) + len(run.skipped) == len(commands)


RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "regard" / "recipes").rglob("*.toml"))
RECIPE_RULES = {
    **dict.fromkeys(("dates", "matching", "zero-shot", "whisper-morse"), Rules()),
    **dict.fromkeys(("nat", "nat-ctc", "cmlm"), Rules(files.write_distilled)),
    **dict.fromkeys(("multi30k-nat", "multi30k-nat-ctc", "multi30k-cmlm"), Rules(files.write_translations)),
    **dict.fromkeys(("translate", "multi30k-nat-stages"), Rules(files.write_translations)),
    **dict.fromkeys(("language", "shakespeare"), Rules(files.write_running_text)),
    **dict.fromkeys(("wikitext2", "wikitext2-lm", "wikitext2-xl"), Rules(files.write_running_text)),
    **dict.fromkeys(("classify", "tag", "masked", "text2text", "spans"), Rules(files.write_text_tasks)),
    **dict.fromkeys(("caption", "detect", "classify-image", "contrastive"), Rules(files.write_pictures)),
    "multitask": Rules(files.write_multimodal),
    "transcribe": Rules(files.write_audio),
    "whisper": Rules(files.write_whisper_folders, arguments=short_texts),
}
RECIPES_NOT_EXECUTED = {
    "bccd": "a loop over seeds on a data set that is not here",
    "ewt": "a data set that is not here, and `…` for its names",
    "fashion-mnist": "a loop over seeds on a data set that is not here",
    "fsdd": "a data set that is not here",
    "multi30k": "`…` for names",
    "pretrain": "data sets that are not here",
    "sst2": "a loop over seeds on a data set that is not here",
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_commands_of_a_recipe(recipe: str, tmp_path: Path) -> None:
    """Those in its comments run; where the data are missing, they are checked."""
    name = Path(recipe).stem
    if name in RECIPES_NOT_EXECUTED:
        for command in read_blocks(recipe)[0].commands:
            words = shlex.split(command.replace("$seed", "1"))
            (check_regard if words[0] == "regard" else check_benchmark)(words)
        return
    run = run_page(recipe, tmp_path, RECIPE_RULES[name], {})
    assert run.commands


def test_every_rule_is_needed() -> None:
    assert RULES.keys() <= {*PAGES}
    assert sorted(Path(recipe).stem for recipe in RECIPES) == sorted([*RECIPE_RULES, *RECIPES_NOT_EXECUTED])
    lines = [line for page in PAGES for block in read_blocks(page) for line in block.commands]
    for start in NOT_EXECUTED:
        assert any(line.startswith(f"{start} ") or line == start for line in lines), start


@pytest.mark.parametrize("page", PAGES)
def test_mentioned_commands_exist(page: str) -> None:
    """Commands inside sentences name verbs, options, settings, recipes, benchmarks, targets and extras that exist."""
    text = (ROOT / page).read_text(encoding="utf-8")
    check_mentioned(text)
    assert missing_names(text) == []


def test_the_measurements_are_commands() -> None:
    blocks = read_blocks(RESULTS)
    for block in blocks:
        for command in block.commands:
            assert command.startswith("regard ")
            check_regard(command.split())
    assert len(blocks) >= 1 and check_mentioned((ROOT / RESULTS).read_text(encoding="utf-8")) > 50


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Links to other files of the project, pictures included, and to headings of pages."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        if not link.startswith(("http://", "https://")):
            name, _, anchor = link.partition("#")
            path = (ROOT / page).parent / name if name else ROOT / page
            assert path.exists(), link
            assert not anchor or anchor in anchors(path), link


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_scripts_are_clean_for_pyright(tmp_path: Path) -> None:
    """Those of docs/python.md. basedpyright is pyright with its own node in the wheel: nothing is downloaded."""
    for number, block in enumerate(read_blocks("docs/python.md")):
        (tmp_path / f"script_{number}.py").write_text(block.text, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))  # pyright does not follow editable installs
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
