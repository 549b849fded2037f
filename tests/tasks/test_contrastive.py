"""Joint embeddings: the loss of a step, retrieval, zero-shot labels, data of three modalities, and mistakes."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import tiny_run
from PIL import Image
from torch.nn import functional as F

import regard
from regard.cli import main
from regard.config.run import resolve_run
from regard.data.datasets.fields import STRIDE
from regard.errors import UserError
from regard.metrics.retrieval import best_ranks, retrieval_metrics
from regard.processors.sound.read import Samples
from regard.synthetic import captions
from regard.tasks.objectives import MAX_SCALE, contrastive_loss
from regard.tasks.task import prepare
from regard.training.step import GradientStep

CPU = torch.device("cpu")
TOWER = {"width": 16, "heads": 2, "layers": 1, "inner": 24}
SMALL = {f"model.{side}.{name}": value for side in ("source", "text") for name, value in TOWER.items()}
SMALL |= {
    "model.width": 12,
    "model.source.image": 16,
    "model.source.patch": 8,
    "device": "cpu",
    "train.tensorboard": False,
}
FAST = {"train.steps": 2, "train.warmup": 1, "train.batch": 6, "train.metric": "loss", "train.eval_every": 9}
TEXTS = {key: value for key, value in SMALL.items() if "source" not in key} | {"model.source.kind": "text"}
COLORS = {"red": (255, 0, 0), "blue": (0, 0, 255), "green": (0, 255, 0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in one color each, with their names; pairs of texts; a run of images; a run of texts."""
    path = tmp_path_factory.mktemp("pairs")
    lines, files = ["path\tcaption"], {}
    for number in range(12):
        color = list(COLORS)[number % 3]
        Image.new("RGB", (16, 16), COLORS[color]).save(path / f"{number}.png")
        files[f"{number}.png"] = (path / f"{number}.png").read_bytes()
        lines.append(f"{number}.png\t{color}")
    files["images.tsv"] = "\n".join(lines) + "\n"
    files["texts.tsv"] = "".join(f"say {word}\t{word} it is\n" for word in ("one", "two", "three", "four"))
    for name in ("images.tsv", "texts.tsv"):
        (path / name).write_text(files[name])
    settings = SMALL | FAST | {"data.train": "{files}/images.tsv", "data.test": "{files}/images.tsv", "data.crop": 1}
    learned = {"train.steps": 60, "train.lr": 3e-3, "model.source.pool": "mean"}
    (path / "run").symlink_to(tiny_run("contrastive", files, **settings | learned))
    pairs = {"data.train": "{files}/texts.tsv", "data.columns": "1,2", "data.header": "no", "train.batch": 3}
    (path / "text").symlink_to(tiny_run("contrastive", files, **TEXTS | FAST | pairs))
    return path


# --- the loss --------------------------------------------------------------------------------------------------------


def test_equal_texts_share_the_probability() -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    plain = F.cross_entropy(scores, torch.arange(4)) + F.cross_entropy(scores.T, torch.arange(4))
    assert contrastive_loss(scores, torch.eye(4, dtype=torch.bool)) / 4 == pytest.approx(float(plain) / 2)
    texts = torch.tensor([1, 2, 1, 3])
    shares = torch.tensor([[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1.0]])
    soft = F.cross_entropy(scores, shares) + F.cross_entropy(scores.T, shares)
    assert contrastive_loss(scores, texts[:, None] == texts) / 4 == pytest.approx(float(soft) / 2)


def gradients(accumulate: int, dropout: float = 0.0) -> tuple[float, dict[str, torch.Tensor], Any]:
    """Of the first step of embedded scenes with one shape, where texts repeat."""
    settings = (
        SMALL | FAST | {"data.examples": 24, "data.max_shapes": 1, "train.batch": 24, "model.text.dropout": dropout}
    )
    job = prepare(resolve_run("contrastive", settings | {"train.accumulate": accumulate}).run, {}, CPU)
    (step,) = job.steps(0, 0)
    assert len(step.micro_batches) == accumulate
    found = GradientStep(job.objective.train(), CPU, 1).run(1, step.micro_batches)
    return float(found.loss), {name: each.grad for name, each in job.model.named_parameters()}, job


def test_a_step_has_the_same_gradients_whole_and_in_micro_batches() -> None:
    loss, whole, job = gradients(1)
    texts = [job.splits["train"].text(index, 1) for index in range(24)]
    assert len(set(texts)) < 24  # there are positives beside the diagonal
    for accumulate in (2, 3):
        again, parts, _ = gradients(accumulate)
        assert again == pytest.approx(loss, rel=1e-5)
        for name, each in whole.items():
            if name.endswith("key.bias"):  # it changes no softmax, so that its gradient is rounding alone
                continue
            assert float((parts[name] - each).norm()) <= 1e-5 * float(each.norm()), name
    dropped = gradients(2, 0.5)[1]
    assert all(torch.equal(each, dropped[name]) for name, each in gradients(2, 0.5)[1].items())


def test_the_scale_stays_below_its_limit() -> None:
    _, _, job = gradients(1)
    with torch.no_grad():
        job.model.log_scale.fill_(9.0)
    (step,) = job.steps(0, 0)
    GradientStep(job.objective, CPU, 1).run(1, step.micro_batches)
    assert float(job.model.log_scale.detach()) == pytest.approx(math.log(MAX_SCALE))


# --- retrieval -------------------------------------------------------------------------------------------------------


def test_ranks() -> None:
    texts = F.normalize(torch.tensor([[1.0, 0], [0, 1], [1, 1]]), dim=-1)
    items = F.normalize(torch.tensor([[1.0, 0.1], [0.1, 1], [1, 0.2], [1, -1]]), dim=-1)
    pairs = [(0, 0), (1, 1), (2, 2), (3, 1), (3, 2)]
    assert best_ranks(items, texts, pairs).tolist() == [1, 1, 2, 2]
    same = torch.ones(4, 1)
    assert best_ranks(same, same, [(i, i) for i in range(4)]).tolist() == [4] * 4  # ties are no hits
    found = retrieval_metrics(items, texts, pairs)
    assert (
        found["item_to_text_r1"] == 0.5 and found["item_to_text_r5"] == 1 and found["item_to_text_median_rank"] == 1.5
    )
    assert found["text_to_item_r1"] == 1 and found["r1"] == 0.75


# --- a run of images -------------------------------------------------------------------------------------------------


def test_labels_of_images_in_python(folder: Path) -> None:
    run = regard.load(folder / "run")
    files = [folder / f"{number}.png" for number in range(3)]
    assert run.predict(files, labels=["red", "blue", "green"]) == ["red", "blue", "green"]
    assert run.predict(files[0], labels=["red", "blue"], template="{}") == "red"
    (best, chance), *others = run.predict(str(files[1]), labels="red,blue,green", top=3)
    assert best == "blue" and chance + sum(each for _, each in others) == pytest.approx(1, abs=1e-5)
    assert run.predict("red", labels=["blue", "red"]) == "red"  # a text is an item, too
    vectors = run.embed([*files, "blue"])
    assert vectors.shape == (4, 12) and torch.allclose(vectors.norm(dim=1), torch.ones(4), atol=1e-5)
    assert run.similar("blue", files)[0][0] == 1 and run.similar(files[2], [*COLORS])[0][0] == 2
    metrics = run.evaluate()
    assert metrics["examples"] == 12 and metrics["texts"] == 3 and "accuracy" not in metrics
    assert metrics["item_to_text_r1"] == metrics["text_to_item_r1"] == 1.0
    assert run.look("red").tokens[0] == "<s>"


def lines(capsys: Any, *arguments: object) -> list[list[str]]:
    assert main([str(each) for each in arguments]) == 0
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_the_command_line(folder: Path, capsys: Any, tmp_path: Path) -> None:
    run, files = folder / "run", [folder / f"{number}.png" for number in range(3)]
    found = lines(capsys, "predict", run, *files, "--labels", "red,blue,green")
    assert [each[:2] for each in found] == [[str(file), color] for file, color in zip(files, COLORS, strict=True)]
    found = lines(capsys, "predict", run, files[0], "--labels", "red,blue", "--template", "{}", "--top", 2)
    assert found[0][1] == "red" and len(found[0]) == 5
    (tmp_path / "queries.txt").write_text("blue\n\ngreen\n")
    ranked = lines(capsys, "predict", run, tmp_path / "queries.txt", "--similar", folder / "images.tsv", "--top", 1)
    assert [Path(each[2]).name in {"1.png", "4.png", "7.png", "10.png"} for each in ranked] == [True, False]
    ranked = lines(capsys, "predict", run, files[2], "--similar", tmp_path / "queries.txt")
    assert ranked[0][0] == str(files[2]) and ranked[0][2] == "green"
    assert len(json.loads(lines(capsys, "predict", run, files[0], "--embed")[0][0])) == 12
    shown = dict(
        each[0].split(" ", 1)
        for each in lines(capsys, "eval", run, "decode.labels=red,blue,green")
        if each[0][0] != " "
    )
    assert shown["accuracy"] == "1.0000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels", "red,blue,red"], "the label 'red' is given twice; give each once"),
        (["--labels", "red"], "'red' is the only label; give at least two"),
        (["--labels", "red, ,blue"], "it has an empty label"),
        (["--labels", "red,blue", "--template", "a photo"], "expected a text with {} where the label stands"),
        ([], "this run compares items with texts, and no text is given; add --labels"),
        (["--labels", "red,blue", "--embed"], "--embed and --labels cannot be combined"),
    ],
)
def test_mistakes_of_predict(arguments: list[str], message: str, folder: Path, capsys: Any) -> None:
    assert main(["predict", str(folder / "run"), str(folder / "0.png"), *arguments]) == 2
    assert message in capsys.readouterr().err


def check_view(view: Any, kinds: list[str], layers: int) -> None:
    """Every layer of the tower over one axis of these segments."""
    axis = view.axes["source"]
    assert [segment.kind for segment in axis.segments] == kinds and view.kinds == ["encoder"]
    assert [each.layer for each in view.maps] == [*range(1, layers + 1)] and view.counts == {"encoder": layers}
    for each in view.maps:
        assert each.weights.shape == (TOWER["heads"], len(axis), len(axis))
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:-1]))


def test_attention_over_an_image(folder: Path) -> None:
    run = regard.load(folder / "run")
    view = run.look(str(folder / "0.png"))
    check_view(view, ["patches"], TOWER["layers"])
    side = SMALL["model.source.image"] // SMALL["model.source.patch"]
    assert len(view.source) == side**2 and view.source[side] == "row 2, column 1"
    assert np.array_equal(view.axes["source"].segments[0].image[0, 0], COLORS["red"])
    torch.testing.assert_close(run.look(folder / "0.png", layer=1).layer_map(1).weights, view.layer_map(1).weights)


def test_only_the_tower_that_reads_is_looked_at(tmp_path: Path) -> None:
    """Both towers are encoders here, of two layers and of one."""
    towers = {"model.source.layers": 2, "model.source.pool": "first", "model.text.causal": False}
    run = regard.train("contrastive", SMALL | FAST | towers | {"data.examples": 9}, out=tmp_path / "run")
    image, text = run.look(np.zeros((16, 16, 3), np.uint8)), run.look("a red circle")
    check_view(image, ["tokens", "patches"], 2)
    check_view(text, ["tokens"], 1)
    assert image.source[0] == "[CLS]" and text.rollout().shape == (len(text.tokens),) * 2
    with pytest.raises(UserError, match="layer is 2; expected a number from 1 to 1, or all"):
        run.look("a red circle", layer=2)


def test_a_run_that_lacks_its_processor(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    settings["processors"].pop("image")
    (tmp_path / "run" / "run.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="run lacks its processor of images; restore it, or train the run again"):
        regard.load(tmp_path / "run")


def test_mistakes_of_python(folder: Path) -> None:
    run, text = regard.load(folder / "run"), regard.load(folder / "text")
    with pytest.raises(UserError, match="a text is empty and has no embedding; give at least one word"):
        run.embed(["red", " "])
    with pytest.raises(UserError, match="the text 'red', which is none of decode.labels"):
        regard.load(folder / "run", {"decode.labels": "blue,green"}).evaluate()
    for item in ("red", folder / "0.png"):
        with pytest.raises(UserError, match="takes no target"):
            run.look(item, "blue")
    for image in (folder / "0.png", np.zeros((8, 8, 3), np.uint8)):
        with pytest.raises(
            UserError, match=r"this run compares texts and was given (the file .*0.png|a value of type)"
        ):
            text.embed([image])
    (folder / "run" / "image.json").rename(folder / "away")
    try:
        with pytest.raises(UserError):
            regard.load(folder / "run")
    finally:
        (folder / "away").rename(folder / "run" / "image.json")


# --- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train.batch": 1}, "every step has a single pair and no negatives"),
        ({"train.batch": 0, "train.tokens": 1}, "every step has a single pair and no negatives"),
        ({"model.source.kind": "video"}, 'model.source.kind is "video"'),
        ({"data.train": "a.tsv,b.tsv,c.tsv"}, "images and texts are 3 places here"),
        ({"data.unseen": "pink circle"}, "data.unseen has 'pink circle'; expected a color"),
        (
            {"data.colors": 2, "data.unseen_valid": "blue circle"},
            "data.unseen_valid has 'blue circle'; expected a color",
        ),
        ({"data.unseen": "red circle", "data.unseen_valid": "red circle"}, "both have 'red circle'"),
        (
            {"data.colors": 2, "data.shape_types": 2, "data.unseen": "red circle,red square,green circle,green square"},
            "have every combination; leave some for training",
        ),
        ({"model.source.patch": 7}, "do not divide into patches of 7"),
        ({"model.source.stem": "[4,4,4,4]"}, "4 convolutions of the stem halve a patch of 8 pixels"),
        ({"model.family": "vit"}, "model.family=vit cannot be used for the task contrastive"),
    ],
)
def test_mistakes_of_training(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    towers = {} if "model.family" in settings or "model.source.kind" in settings else SMALL
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        regard.train("contrastive", {**towers, **FAST, "data.examples": 9, **settings}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_side(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "images.tsv"
    table.write_text(f"path\ttext\n{folder}/0.png\tred\n{folder}/1.png\t\n{tmp_path}/none.png\tblue\n")
    with pytest.raises(UserError, match=r"images.tsv:4: there is no image .*none.png"):
        regard.train("contrastive", SMALL | FAST | {"data.train": str(table)}, out=tmp_path / "run")
    table.write_text(f"path\ttext\n{folder}/0.png\tred\n{folder}/1.png\t\n{folder}/2.png\tgreen\n")
    job = prepare(resolve_run("contrastive", SMALL | FAST | {"data.train": str(table)}).run, {}, CPU)
    assert "train: 1 examples left out because a side is empty" in job.describe_data()
    (tmp_path / "one.tsv").write_text("path\n0.png\n")
    with pytest.raises(UserError, match="1 columns, expected at least 2"):
        regard.train("contrastive", SMALL | FAST | {"data.train": f"{tmp_path}/one.tsv"}, out=tmp_path / "run")


def test_classes_and_idx_files_are_texts(tmp_path: Path) -> None:
    for number, color in enumerate(("red", "blue", "red", "blue")):
        (tmp_path / "tree" / color).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), COLORS[color]).save(tmp_path / "tree" / color / f"{number}.png")
    job = prepare(resolve_run("contrastive", SMALL | FAST | {"data.train": f"{tmp_path}/tree"}).run, {}, CPU)
    assert {job.splits["train"].text(index, 1) for index in range(4)} == {"red", "blue"}
    (tmp_path / "beside").mkdir()
    for color in ("red", "blue"):
        Image.new("RGB", (16, 16), COLORS[color]).save(tmp_path / "beside" / f"{color}.png")
        (tmp_path / "beside" / f"{color}.txt").write_text(f"{color}\nall {color}\n")
    (tmp_path / "captions.tsv").write_text("path\tcaption\nred.png\tred\nblue.png\tblue\n")
    for train, count in ((f"{tmp_path}/beside", 4), (f"{tmp_path}/beside,{tmp_path}/captions.tsv", 2)):
        job = prepare(resolve_run("contrastive", SMALL | FAST | {"data.train": train}).run, {}, CPU)
        (step,) = job.steps(0, 0)
        images = step.micro_batches[0]["same_image"].values.tolist()
        assert len(images) == count and len(set(images)) == 2  # captions of one image are positives of each other
    (tmp_path / "i").write_bytes(b"\0\0\x08\x03" + np.array([4, 8, 8], ">u4").tobytes() + bytes(256))
    (tmp_path / "l").write_bytes(b"\0\0\x08\x01" + np.array([4], ">u4").tobytes() + bytes([0, 1, 0, 1]))
    settings = {"data.train": f"{tmp_path}/i,{tmp_path}/l", "data.names": "shoe,bag"}
    job = prepare(resolve_run("contrastive", SMALL | FAST | settings).run, {}, CPU)
    (step,) = job.steps(0, 0)
    same = step.micro_batches[0]["same_text"].values
    assert len(same) == 4 and len(set(same.tolist())) == 2
    assert len(set(step.micro_batches[0]["same_image"].values.tolist())) == 4


def test_sound_in_memory(tmp_path: Path) -> None:
    tower = {f"model.source.{name}": value for name, value in TOWER.items()} | {"model.source.kind": "audio"}
    rng = np.random.default_rng(1)
    sounds = [(Samples(rng.normal(0, 0.1, 3200).astype(np.float32), 16000), f"word {i % 3}") for i in range(6)]
    settings = {key: value for key, value in SMALL.items() if "source" not in key} | tower | FAST
    settings |= {"data.frame_masks": 1, "data.frame_width": 3, "data.train": sounds}
    run = regard.train("contrastive", settings, out=tmp_path / "run")
    assert run.embed([sounds[0][0], "word 1"]).shape == (2, 12)
    view = run.look(sounds[0][0])
    check_view(view, ["frames"], TOWER["layers"])
    frames = len(view.axes["source"].segments[0].spectrogram)
    assert len(view.source) == -(-frames // STRIDE) and float(view.source[-1]) < 0.2
    metrics = run.evaluate(sounds)
    assert metrics["texts"] == 3 and 0 <= metrics["r1"] <= 1


def test_sentence_embeddings_start_from_bert(folder: Path, tmp_path: Path) -> None:
    bert = {"model.size": "tiny", "model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 24}
    regard.train("masked", bert | FAST | {"data.examples": 20, "train.eval_every": 99}, out=tmp_path / "bert")
    pairs = {"data.train": f"{folder}/texts.tsv", "data.columns": "1,2", "data.header": "no", "train.batch": 4}
    settings = FAST | pairs | {"start": str(tmp_path / "bert"), "model.family": "bert"}
    run = regard.train("contrastive", settings, out=tmp_path / "run")
    texts = ["say one", "two it is, and more of it"]
    alone = torch.stack([run.embed(text) for text in texts])
    assert torch.allclose(run.embed(texts), alone, atol=1e-5) and alone.shape == (2, 16)
    with pytest.warns(UserWarning, match="cut"):
        run.embed(["one " * 600])
    regard.convert(tmp_path / "run", to="huggingface", out=tmp_path / "hf")
    assert torch.allclose(regard.load(tmp_path / "hf").embed(texts), alone, atol=1e-5)


def test_scenes_of_unseen_combinations() -> None:
    settings = {"data.unseen": "red circle,blue cross", "data.max_shapes": 1, "data.examples": 50}
    job = prepare(resolve_run("contrastive", SMALL | FAST | settings).run, {}, CPU)
    unseen = {"a red circle", "a blue cross"}
    assert not unseen & {text for name in ("train", "valid") for _, text in [*job.splits[name][:50]]}
    run = job.predictor
    from regard.tasks.contrastive.task import data_split

    assert {data_split(run.run, "test").text(index, 1) for index in range(40)} == unseen
    assert len(captions.COMBINATIONS) == 24
