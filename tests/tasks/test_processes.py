"""Two processes equal one: gradients and weights of every objective, with dropout. Also a script: see `start_workers`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torch.distributed as dist
from helpers import marian, reads, small
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import regard
from regard.config.run import resolve_run
from regard.data.batch import Batch
from regard.parts.inputs import Inputs
from regard.synthetic.digits import make_digits
from regard.synthetic.morse import MorseSettings, encode_morse
from regard.tasks.objectives import ContrastiveObjective
from regard.tasks.task import prepare
from regard.training import progress
from regard.training.objective import AnyObjective
from regard.training.optim import clip_gradients
from regard.training.ranks import Ranks
from regard.training.step import GradientStep

CPU = torch.device("cpu")
WORLD, STEPS, SEED = 2, 3, 7
Steps = Iterator[list[Batch]]  # the micro-batches of this process, step after step

TINY = {
    "model.size": "tiny", "model.width": 16, "model.heads": 2, "model.layers": 1, "model.dropout": 0.3, "tokenizer.kind": "byte",
    "train.tokens": 300, "train.accumulate": 3, "train.tensorboard": False, "device": "cpu", "data.workers": 0,
}  # fmt: skip
LANGUAGE = {"data.train": "text.txt", "data.max_tokens": 12, "train.batch": 6}
LABELED = {"data.train": "labeled.tsv"}
MASKED = {"data.train": "lines.txt", "data.next_sentence": True}
AUGMENTED = {
    "data.mixup": 0.5,
    "data.cutmix": 1.0,
    "data.randaugment": 2,
    "data.erase": 0.5,
    "model.depth_dropout": 0.2,
}
SOUNDS = {
    "data.train": "sounds",
    "data.frame_masks": 2,
    "data.bin_masks": 1,
    "model.channels": 4,
    "model.decoder_layers": 1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "translate": ("translate", {"data.train": "train.low,train.up"}),
    "packed": ("translate", {"data.train": "train.low,train.up", "data.packed": True, "data.max_tokens": 40}),
    "text2text": ("text2text", {"data.train": "pairs.tsv", "data.prefixes": ["up: "], "model.head_width": 8}),
    "spans": ("spans", {"data.train": "lines.txt", "model.head_width": 8}),
    "windows": ("language", LANGUAGE),
    "memory": ("language", {**LANGUAGE, "model.family": "xl", "model.memory": 10}),
    "state": ("language", {**LANGUAGE, "model.family": "rnn", "model.carry_state": True}),
    "classify": ("classify", LABELED),
    "rdrop": ("classify", {**LABELED, "train.objective.rdrop": 0.5}),
    "tag": ("tag", {"data.train": "tagged.txt"}),
    "masked": ("masked", MASKED),
    "images": (
        "classify-image",
        {"data.train": "images", "model.image": 16, "train.batch": 9, "tokenizer.kind": None, **AUGMENTED},
    ),
    "sounds": ("transcribe", {**SOUNDS, "data.speed": (0.9, 1.0), "data.noise": 0.5}),
    "sounds without CTC": ("transcribe", {**SOUNDS, "model.ctc.weight": 0.0}),
    "masked in 4": ("masked", {**MASKED, "train.accumulate": 4}),
}


class DualEncoder(nn.Module):
    """Two encoders, told apart by the modality of what they read, and the scale of their cosines."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tokens = nn.Sequential(nn.Embedding(20, 8), nn.Dropout(0.3), nn.Flatten(), nn.Linear(32, 6))
        self.frames = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 6))
        self.log_scale = nn.Parameter(torch.ones(1))

    def vectors(self, inputs: Inputs) -> Tensor:
        return nn.functional.normalize((self.tokens if inputs.modality == "tokens" else self.frames)(inputs.values))


def contrastive(ranks: Ranks) -> tuple[AnyObjective, Steps]:
    def steps() -> Steps:
        generator = torch.Generator().manual_seed(2)
        while True:
            batches = []
            for number, rows in enumerate((4, 2, 5)):
                text = Inputs("tokens", torch.randint(20, (rows, 4), generator=generator))
                sound = Inputs("frames", torch.randn(rows, 5, generator=generator))
                batches.append(Batch({"text": text, "sound": sound}, rows, number))
            if ranks.world == 2:  # the second process has one micro-batch and repeats it
                batches = [batches[0::2], [batches[1], replace(batches[1], number=3, counted=False)]][ranks.rank]
            yield batches

    return ContrastiveObjective(DualEncoder(), ("text", "sound")), steps()


def of_task(task: str, settings: dict[str, Any], folder: Path, ranks: Ranks) -> tuple[AnyObjective, Steps]:
    files = {
        key: ",".join(str(folder / name) for name in value.split(",")) if key == "data.train" else value
        for key, value in settings.items()
    }
    if task == "language":
        files["data.cache"] = str(folder / f"cache-{ranks.rank}-{ranks.world}")
    settings = {key: value for key, value in {**TINY, **files}.items() if value is not None}
    job = prepare(resolve_run(task, settings).run, {}, CPU)
    return job.objective, (step.micro_batches for step in job.steps(0, 0, ranks.rank, ranks.world))


def train(objective: AnyObjective, steps: Steps, ranks: Ranks) -> dict[str, Tensor]:
    """The gradients and losses of the first steps, and the weights after them."""
    gradients = GradientStep(objective.train(), CPU, SEED, ranks=ranks)
    parameters, found = dict(objective.model.named_parameters()), {}
    optimizer = torch.optim.SGD(parameters.values(), 0.2, momentum=0.9)
    for number, batches in zip(range(STEPS), steps, strict=False):
        optimizer.zero_grad()
        loss = gradients.run(number, batches)
        found[f"loss {number}"] = torch.stack([loss.loss, torch.tensor(float(loss.count))])
        if not number:
            found |= {
                f"gradient {name}": each.grad.clone() for name, each in parameters.items() if each.grad is not None
            }
        clip_gradients(list(parameters.values()), 1.0)
        optimizer.step()
    state = objective.state() if hasattr(objective, "state") else {}
    found |= {f"state {name}": each.float() for name, each in state.items()}
    return found | {f"weight {name}": each.detach().clone() for name, each in parameters.items()}


def results(folder: Path, ranks: Ranks) -> dict[str, dict[str, Tensor]]:
    builders: dict[str, Callable[[], tuple[AnyObjective, Steps]]] = {
        name: lambda task=task, settings=settings: of_task(task, settings, folder, ranks)
        for name, (task, settings) in CASES.items()
    }
    builders["contrastive"] = lambda: contrastive(ranks)
    return {name: train(*build(), ranks) for name, build in builders.items()}


def work(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    for name, tensors in results(folder, Ranks(rank, WORLD)).items():
        save_file({key: each.contiguous() for key, each in tensors.items()}, folder / f"{name}.{rank}.safetensors")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes")
    small.write_files(path, train=60, valid=1, test=1)
    reads.write_texts(path / "pairs.tsv", [(each, each.upper()) for each in marian.sentences(40, 3)])
    reads.write_texts(path / "labeled.tsv", reads.labeled_examples(60, 1))
    reads.write_columns(path / "tagged.txt", reads.tagged_examples(40, 1))
    for number, (image, label) in enumerate(make_digits(30)["train"]):
        (place := path / "images" / label / f"{number}.png").parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    (path / "sounds").mkdir()
    rng = np.random.default_rng(1)
    for number in range(24):
        recording = encode_morse("ETAI"[number % 4], rng, MorseSettings(24, silence=(0.1, 0.02 * number)))
        soundfile.write(path / "sounds" / f"{number}.wav", recording.samples, recording.rate)
        (path / "sounds" / f"{number}.txt").write_text(recording.text)
    (path / "text.txt").write_text("\n".join(marian.sentences(60, 1)) + "\n")
    (path / "lines.txt").write_text("\n".join(marian.sentences(40, 2)) + "\n")
    return path


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, list[Any]]]]:
    """The results of one process and of two, by case."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the helpers of the tests
    commands = ([sys.executable, __file__, str(folder), str(rank)] for rank in range(WORLD))
    workers = [subprocess.Popen(command, env=env) for command in commands]
    try:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        one = results(folder, Ranks())
        torch.set_num_threads(threads)
        assert [worker.wait(120) for worker in workers] == [0] * WORLD
    finally:
        for worker in workers:
            worker.kill()
    ranks = range(WORLD)
    yield one, {name: [load_file(folder / f"{name}.{rank}.safetensors") for rank in ranks] for name in one}


@pytest.mark.parametrize("case", [*CASES, "contrastive"])
def test_two_processes_equal_one(case: str, both: Any) -> None:
    one, (first, second) = both[0][case], both[1][case]
    states = {name: each for part in (first, second) for name, each in part.items() if name.startswith("state ")}
    assert {*first, *states} == {*one}
    gradients = [each for name, each in one.items() if name.startswith("gradient")]
    assert len(gradients) > 4
    largest = max(each.norm() for each in gradients)
    for name, each in one.items():
        other = states.get(name, first.get(name))
        assert name in states or torch.equal(other, second[name]), name  # both processes hold the same weights
        # The true gradient of a key bias is zero, so its rounding error is compared to the largest gradient.
        scale = largest if name.endswith("key.bias") else max(each.norm(), 1e-12)
        assert (each - other).norm() <= 1e-5 * scale, (name, each, other)


@pytest.mark.parametrize("case", CASES)
def test_accumulation_equals_one_large_batch(case: str, folder: Path) -> None:
    """In double precision: a term that is weighted per micro-batch would differ by percents."""
    task, settings = CASES[case]
    found = []
    for accumulate in (1, 2, 4):
        own = {**settings, "train.accumulate": accumulate, "train.tokens": 400}
        objective, steps = of_task(task, own, folder, Ranks())
        objective.double().eval()  # no dropout: its draws depend on the micro-batch
        loss = GradientStep(objective, CPU, SEED).run(1, next(steps))
        found.append((loss, {name: each.grad for name, each in objective.named_parameters() if each.grad is not None}))
    (whole, gradients), *parts = found
    largest = max(each.norm() for each in gradients.values())
    for loss, others in parts:
        assert loss.count == whole.count and float(loss.loss) == pytest.approx(float(whole.loss), rel=1e-6)
        assert others.keys() == gradients.keys()
        for name, each in gradients.items():
            assert (others[name] - each).norm() <= 1e-6 * max(each.norm(), 1e-3 * largest), name


# --- through the front door ------------------------------------------------------------------------------------------


def test_regard_train_under_torchrun(folder: Path) -> None:
    """Equal weights, metrics and memories; only one process writes; a run goes on with another number of processes."""
    settings = {
        **TINY, "data.train": f"{folder}/text.txt", "data.valid": f"{folder}/lines.txt", "data.cache": f"{folder}/cache", "data.max_tokens": 12,
        "model.family": "xl", "model.memory": 10, "train.batch": 6, "train.save_every": 2, "train.eval_every": 2, "train.log_every": 1, "train.keep": 9,
    }  # fmt: skip
    arguments = [f"{key}={value}" for key, value in {**settings, "train.steps": 2}.items()]
    command = [
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={WORLD}",
        "-m",
        "regard",
        "train",
        "language",
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command, *arguments, "--out", folder / "two"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stderr.count("valid:") == 1, done.stderr
    settings["train.steps"] = 4
    regard.train("language", settings, out=folder / "two", resume=True)
    regard.train("language", settings, out=folder / "one")
    for step in (2, 4):
        for file in ("model", "optimizer", "task"):
            path = f"checkpoints/step-{step}/{file}.safetensors"
            one, two = (load_file(folder / run / path) for run in ("one", "two"))
            assert one.keys() == two.keys()
            for name, each in one.items():
                torch.testing.assert_close(two[name], each, rtol=1e-4, atol=1e-6, msg=f"{path} {name}")
    records = [progress.read_records(folder / run / "metrics.jsonl") for run in ("one", "two")]
    losses = [
        {(r["step"], r["event"]): r["loss"] for r in each if r["event"] in ("train", "valid")} for each in records
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 6


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
