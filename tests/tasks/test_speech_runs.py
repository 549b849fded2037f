"""Speech runs: start from others, tuned runs, data in memory, workers, augmentation, curriculum and its resuming."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.losses import batch_loss

import regard
from regard.config.run import resolve_run
from regard.data.rng import ExampleRng
from regard.errors import UserError
from regard.synthetic import morse
from regard.tasks.transcribe.task import TranscribeJob, prepare
from regard.training import curves

RATE = morse.RATE
TINY = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 32, "model.channels": 4, "data.bins": 12, "data.hop": 10,
    "data.examples": 40, "train.steps": 2, "train.warmup": 1, "train.tokens": 600, "train.eval_every": 2, "train.save_every": 1,
    "train.metric": "loss", "train.tensorboard": False, "device": "cpu", "decode.max_tokens": 6, "decode.beam": 2,
    "train.schedule.kind": "constant",
}  # fmt: skip
FINE = {
    key: value for key, value in TINY.items() if not key.startswith("model.") and key not in ("data.bins", "data.hop")
}
EPOCH = {**TINY, "train.steps": 0, "train.epochs": 1}
MASKS = {"data.frame_masks": 2, "data.frame_width": 9, "data.bin_masks": 1, "data.bin_width": 4}
CPU = torch.device("cpu")


def key(text: str, seed: int, **settings: Any) -> tuple[np.ndarray, int]:
    found = morse.encode_morse(text, np.random.default_rng(seed), morse.MorseSettings(24, **settings))
    return found.samples, found.rate


ROWS = [(key("ETAI"[number % 4], number), "ETAI"[number % 4]) for number in range(16)]


@pytest.fixture(scope="module", autouse=True)
def few() -> Any:
    with mock.patch.object(morse, "HELD_OUT", 6), mock.patch.object(curves, "draw", lambda folder: None):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("base") / "run"
    regard.train("transcribe", TINY, out=out)
    return out


def job(**changes: object) -> TranscribeJob:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return prepare(resolve_run("transcribe", {**TINY, **named}).run, {}, CPU)


def scores(predictor: Any) -> list[float]:
    return predictor.score([sound for sound, _ in ROWS[:4]], [text for _, text in ROWS[:4]])


# --- runs over others ------------------------------------------------------------------------------------------------


def test_a_start_keeps_the_frames_and_not_their_changes(base: Path, tmp_path: Path) -> None:
    first = regard.load(base)
    one = regard.train("transcribe", {**FINE, **MASKS, "start": str(base), "train.lr": 1e-12}, out=tmp_path / "one")
    assert (one.sound.mean, one.sound.std, one.sound.bins) == (first.sound.mean, first.sound.std, 12)
    assert one.sound.frame_masks == 2 and one.target.size == first.target.size
    assert scores(one) == pytest.approx(scores(first), abs=1e-3)
    two = regard.train("transcribe", {**FINE, "start": str(tmp_path / "one"), "data.noise": 1}, out=tmp_path / "two")
    assert two.sound.frame_masks == 0 and two.sound.noise == 1 and two.sound.mean == first.sound.mean


@pytest.mark.parametrize("kind", ["lora", "adapter"])
def test_tuned_runs(kind: str, base: Path, tmp_path: Path) -> None:
    settings = {**FINE, "start": str(base), "tune.kind": kind, "train.lr": 0.1}
    tuned = regard.train("transcribe", settings, out=tmp_path / kind)
    wanted = scores(tuned)
    assert wanted != pytest.approx(scores(regard.load(base)), abs=1e-3)
    assert scores(regard.load(tmp_path / kind)) == pytest.approx(wanted, abs=1e-5)
    assert scores(regard.load(base, tune=tmp_path / kind)) == pytest.approx(wanted, abs=1e-5)
    if kind == "lora":
        regard.convert(tmp_path / kind, merge=True, out=tmp_path / "merged")
        assert scores(regard.load(tmp_path / "merged")) == pytest.approx(wanted, abs=1e-3)
        for other in ("prompt", "prefix"):
            with pytest.raises(UserError, match="its attention has positions for its own inputs only"):
                regard.train("transcribe", {**settings, "tune.kind": other}, out=tmp_path / other)


def test_a_run_that_lacks_its_processor(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    settings["processors"].pop("sound")
    (tmp_path / "run" / "run.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="run lacks its processor of sound; restore it, or train the run again"):
        regard.load(tmp_path / "run")


def test_saved_and_loaded(base: Path) -> None:
    one = regard.load(base)
    for precision in ("bf16", "int8"):
        two = regard.load(base, precision=precision)
        assert scores(one) == pytest.approx(scores(two), rel=0.05) and one.sound == two.sound
    assert one.run.model.bins == 12 and one.run.model.vocab == one.target.size


# --- data in memory, processes ---------------------------------------------------------------------------------------


def test_data_in_memory_and_their_guard(tmp_path: Path) -> None:
    data = {"train": ROWS, "valid": ROWS[:4]}
    changed = {**TINY, **MASKS, "data.speed": (0.9, 1.1), "data.noise": 0.5, "train.metric": "cer"}
    for name, steps in (("whole", (4,)), ("halves", (2, 4))):
        for count in steps:
            resume = count == 4 and name == "halves"
            predictor = regard.train(
                "transcribe", {**changed, "train.steps": count}, out=tmp_path / name, data=data, resume=resume
            )
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "halves"))
    assert one == two
    other = {"train": [(ROWS[1][0], "E"), *ROWS[1:]], "valid": ROWS[:4]}
    with pytest.raises(UserError, match=r"data\.train is not what .*halves was started with"):
        regard.train("transcribe", {**changed, "train.steps": 6}, out=tmp_path / "halves", data=other, resume=True)
    metrics = predictor.evaluate([{"audio": {"array": x, "sampling_rate": r}, "text": text} for (x, r), text in ROWS])
    assert metrics == predictor.evaluate(ROWS) and metrics["examples"] == 16


@pytest.mark.parametrize("changes", [MASKS, {**MASKS, "data.noise": 0.5}, {}], ids=["masked", "noisy", "plain"])
def test_workers_change_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    weights = []
    for workers in (0, 1):
        out = tmp_path / str(workers)
        regard.train("transcribe", {**TINY, **changes, "data.workers": workers}, out=out)
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"train.ema": 0.9}, {"model.positions.kind": "buckets"}])
def test_training_with(settings: dict[str, Any], tmp_path: Path) -> None:
    predictor = regard.train("transcribe", {**TINY, **settings}, out=tmp_path / "run")
    assert max(scores(predictor)) < 0 and isinstance(predictor.predict(ROWS[0][0]), str)


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [2, 4])
def test_accumulation_keeps_the_gradients(pieces: int) -> None:
    found = []
    for accumulate in (1, pieces):
        own = job(train__accumulate=accumulate, model__dropout=0.0, train__tokens=2500)
        own.model.double().train()
        step = next(own.steps(0, 0))
        assert len(step.micro_batches) == accumulate
        total = torch.stack([batch_loss(own, each) / step.count for each in step.micro_batches]).sum()
        total.backward()
        found.append((total.item(), {name: each.grad for name, each in own.model.named_parameters()}))
    (whole, gradients), (other, others) = found
    assert other == pytest.approx(whole, rel=1e-9)
    largest = max(each.norm() for each in gradients.values())
    for name, each in gradients.items():
        assert (others[name] - each).norm() <= 1e-6 * max(each.norm(), 1e-3 * largest), name


def test_the_loss_is_a_weighted_mean() -> None:
    """With weight 0 there is no CTC head; the parts of the loss add up to the whole."""
    plain, joint = job(model__ctc__weight=0.0), job(model__ctc__weight=0.25)
    assert plain.predictor.model.ctc is None and not any("ctc" in name for name in plain.model.state_dict())
    joint.model.load_state_dict(plain.model.state_dict(), strict=False)
    batch = next(joint.steps(0, 0)).micro_batches[0]
    for each in (plain, joint):
        each.model.eval()
    decoder = batch_loss(plain, batch).item()
    joint.predictor.model.ctc_weight = 1.0
    ctc = batch_loss(joint, batch).item()
    joint.predictor.model.ctc_weight = 0.25
    assert batch_loss(joint, batch).item() == pytest.approx(0.75 * decoder + 0.25 * ctc, rel=1e-5)


WARPS = {"data__vtlp": (0.8, 1.25), "data__equalizer": 6.0}


@pytest.mark.parametrize(
    "changes",
    [{}, {"data__noise": 0.7}, WARPS, {**WARPS, "data__cmvn": "utterance"}],
    ids=["masked", "noisy", "warped", "utterance"],
)
def test_augmentation_is_a_function_of_seed_epoch_and_example(changes: dict[str, Any]) -> None:
    """Masks change a copy of the frames in memory: the second epoch begins from the same ones."""
    own = job(**{key.replace(".", "__"): value for key, value in MASKS.items()}, **changes)
    sound, dataset = own.predictor.sound, own.loader.sampler.dataset
    dataset.cache_encoded()
    for epoch, indices in ((0, [3, 5]), (1, [5, 8, 3]), (0, [5]), (1, [3])):
        chosen = np.array(indices)
        batch = dataset.batch(chosen, epoch)
        draws = ExampleRng.of(own.run.train.seed, epoch, chosen).generators()
        for row, index, rng in zip(batch["source"].values, indices, draws, strict=True):
            wanted = sound.encode(own.splits["train"][index][0], rng)
            assert np.allclose(row[: len(wanted)].numpy(), wanted, atol=1e-6)
            plain = sound.encode(own.splits["train"][index][0])
            assert wanted.shape == plain.shape and not np.allclose(wanted, plain)
    one, two = (dataset.batch(np.array([3]), epoch)["source"].values for epoch in (0, 1))
    assert not torch.equal(one, two)


# --- data that are left out, curriculum ------------------------------------------------------------------------------


def test_recordings_too_short_for_ctc_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*ROWS, ((ROWS[0][0][0][:1500], RATE), "ETAI ETAI"), ((ROWS[0][0][0][:1000], RATE), "EEE")]
    regard.train("transcribe", EPOCH, out=tmp_path / "run", data={"train": rows}, progress=True)
    words = "2 of 18 recordings are too short for CTC of their transcripts, so that only the decoder learns from them"
    assert words in capsys.readouterr().err
    regard.train(
        "transcribe", {**EPOCH, "model.ctc.weight": 0}, out=tmp_path / "plain", data={"train": rows}, progress=True
    )
    assert "too short for CTC" not in capsys.readouterr().err


def test_recordings_too_long_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = np.tile(ROWS[0][0][0], 30)
    rows = [*ROWS, ((long, RATE), "E"), (ROWS[0][0], "ETAI" * 10)]
    limits = {"data.max_tokens": 20, "data.max_seconds": 5}
    regard.train("transcribe", {**EPOCH, **limits}, out=tmp_path / "run", data={"train": rows}, progress=True)
    report = capsys.readouterr().err
    assert "1 recordings left out because they are longer than data.max_seconds=5" in report
    assert (
        "1 of 17 examples left out because they have more than 5 seconds or a transcript of more than 20 tok" in report
    )
    assert "hours of sound" in report
    with pytest.raises(UserError, match=r"all 16 examples of data\.train have more than 5 seconds or .*; raise data"):
        regard.train("transcribe", {**TINY, **limits, "data.max_tokens": 1}, out=tmp_path / "no", data={"train": ROWS})


def test_a_curriculum_goes_from_short_to_long() -> None:
    """In the first epoch; the second one is in random order. A resumed run goes on with the next step."""
    settings = {"data__curriculum": True, "data__examples": 120, "train__tokens": 700}
    own, positions, longest = job(**settings), [], []
    for epoch in (0, 1):
        steps = [*own.steps(epoch, 0)]
        longest.append([max(each["source"].values.size(1) for each in step.micro_batches) for step in steps])
        positions.append([step.index for step in steps])
    first, second = longest
    assert (np.diff(quarters(first)) >= 0).all()
    assert (np.diff(quarters(second)) < 0).any()
    rest = [step.index for step in job(**settings).steps(0, positions[0][3])]
    assert rest == positions[0][4:] and len(rest) > 4


def quarters(lengths: list[int]) -> np.ndarray:
    """Of every step the quarter of the epoch in which it would be, if the steps were sorted by length."""
    found: np.ndarray = np.argsort(np.argsort(lengths, kind="stable"), kind="stable") * 4 // len(lengths)
    return found
