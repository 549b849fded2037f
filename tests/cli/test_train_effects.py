"""Every key of model.*, train.objective.* and tokenizer.* that a run has changes its training or is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import small

import regard
from regard.config.run import resolve_run
from regard.config.schema import SchemaField, schema_of_run
from regard.config.show import FROM_DATA
from regard.errors import UserError
from regard.tasks.task import prepare
from regard.training import curves

TINY = {
    "model.width": 32, "model.heads": 4, "model.layers": 1, "model.inner": 48, "device": "cpu", "train.steps": 4,
    "tokenizer.vocab": 300, "train.batch": 8,
}  # fmt: skip
PAIRS = {**TINY, "data.train": "{files}/train.low,{files}/train.up"}
RUNS: dict[str, dict[str, Any]] = {
    "translate": PAIRS,
    "nat": PAIRS,
    "nat, even": {**PAIRS, "model.fertilities": False},
    "cmlm": PAIRS,
    "classify": {**TINY, "data.train": "{files}/train.tsv", "data.columns": "label,text", "data.ngrams.order": 0},
    "transcribe": {**TINY, "data.examples": 8},
}
CHOOSING = {"model.family", "model.size", *FROM_DATA}  # set other keys, or are set by the data
ELSEWHERE = {  # keys with an effect on runs that differ in another setting
    "nat": {"model.max_length"},
    "nat, even": {"model.max_fertility"},
    "classify": {"model.tied", "model.pooled"},  # of the heads for words and for published models
}
VALUES: dict[str, list[Any]] = {  # where neither another option nor another number is the value to try
    "model.norm.eps": [0.5],
    "model.decoder_layers": [2],
    "tokenizer.symbols": [["cat"]],
    "tokenizer.vocab": [270, 8],
}


class FirstStep(NamedTuple):
    """What a training begins with."""

    tensors: list[tuple[str, tuple[int, ...]]]  # of the model, with their shapes
    losses: list[float]
    vocabularies: list[list[str]]


class Subject:
    """A run whose settings are changed one by one."""

    def __init__(self, recipe: str, files: Path) -> None:
        self.recipe = recipe.partition(",")[0]
        self.settings = {
            key: value.format(files=files) if isinstance(value, str) else value for key, value in RUNS[recipe].items()
        }
        self.run = resolve_run(self.recipe, self.settings).run
        self.processors = prepare(self.run, {}, torch.device("cpu")).processors
        self.before = {kept: self.first_step({}, kept) for kept in (True, False)}

    def first_step(self, changes: dict[str, Any], kept: bool) -> FirstStep:
        run = resolve_run(self.recipe, {**self.settings, **changes}).run
        job = prepare(run, self.processors if kept else {}, torch.device("cpu"))
        tensors = [(name, tuple(tensor.shape)) for name, tensor in job.model.train().state_dict().items()]
        torch.manual_seed(1)
        results = [job.objective(batch) for batch in next(job.steps(0, 0)).micro_batches]
        losses = [term.item() for result in results for term in (result.sum, *result.terms.values())]
        tokenizers = [each.tokenizer for each in job.processors.values() if hasattr(each, "tokenizer")]
        return FirstStep(tensors, losses, [each.tokens(range(each.size)) for each in tokenizers])

    def is_dead(self, key: str, values: list[Any]) -> bool:
        """True if some values are accepted and none changes anything."""
        kept, accepted = not key.startswith(("tokenizer.", "train.objective.teacher")), False
        for value in values:
            try:
                if self.first_step({key: value}, kept) != self.before[kept]:
                    return False
                accepted = True
            except UserError as error:
                assert any(name in str(error) for name in key.split(".")[1:]), f"{key}={value}: {error}"
        return accepted

    def settings_to_try(self) -> Iterator[tuple[str, list[Any]]]:
        """The keys of these sections, each with other values."""
        for key, field in schema_of_run(self.run).items():
            if key.startswith(("model.", "train.objective.", "tokenizer.")) and key not in CHOOSING:
                yield key, VALUES.get(key) or self.other_values(key, field)

    def other_values(self, key: str, field: SchemaField) -> list[Any]:
        value: Any = self.run
        for part in key.split("."):
            value = getattr(value, part)
        if options := field.options:
            return [option for option in options if option != str(value).lower()]
        if isinstance(value, str):
            return ["gone"]
        return [value * 2, value // 2] if value else [0.3, 1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small.write_files(tmp_path_factory.mktemp("files"), train=60)
    texts = (folder / "train.low").read_text().title().splitlines()
    (folder / "train.tsv").write_text("".join(f"{'ab'[number % 2]}\t{text}\n" for number, text in enumerate(texts)))
    return folder


@pytest.mark.parametrize("recipe", RUNS)
def test_every_key_changes_the_first_step_or_is_refused(recipe: str, files: Path) -> None:
    torch.set_num_threads(1)
    subject = Subject(recipe, files)
    dead = [key for key, values in subject.settings_to_try() if subject.is_dead(key, values)]
    assert {*dead} == ELSEWHERE.get(recipe, set())


# --- the loop --------------------------------------------------------------------------------------------------------

LOOP = {
    **PAIRS, "data.valid": "{files}/valid.low,{files}/valid.up", "train.lr": 0.5, "train.warmup": 1, "train.steps": 5,
    "train.schedule": "linear", "train.save_every": 1, "train.eval_every": 1, "train.log_every": 2,
    "train.tensorboard": False,
}  # fmt: skip
BESIDE = {"train.tokens": {"train.batch": 0}, "train.epochs": {"train.steps": 0}, "train.patience": {"train.lr": 1e-20}}
TIMES = {"seconds", "tokens_per_second", "data_wait"}
CHANGES: dict[str, Any] = {
    "train.steps": 3, "train.epochs": 1, "train.minutes": 1e-6, "train.seed": 2, "train.lr": 0.01, "train.warmup": 3,
    "train.schedule.kind": "constant", "train.schedule.floor": 0.5, "train.optimizer.kind": "adamw",
    "train.optimizer.betas": [0.5, 0.9], "train.optimizer.eps": 0.1, "train.optimizer.decay": 0.3,
    "train.optimizer.layer_decay": 0.5, "train.tokens": 64, "train.batch": 4, "train.accumulate": 2,
    "train.precision": "bf16", "train.clip": 0.01, "train.average": 2, "train.ema": 0.5, "train.save_every": 4,
    "train.keep": 1, "train.eval_every": 5, "train.metric": "chrf", "train.patience": 1, "train.log_every": 1,
    "train.tensorboard": True, "train.freeze": "*bias*", "train.rates": "*bias*:0.1",
    "train.objective.smoothing": 0.3,
}  # fmt: skip
ELSEWHERE_TESTED = {  # speed or bits of a GPU, and what Python gives
    "train.compile", "train.deterministic", "train.own_loss", "train.own_metrics", "train.objective.teacher",
    "train.objective.teacher_init",
}  # fmt: skip


def outcome_of(files: Path, out: Path, changes: dict[str, Any]) -> tuple[bytes, list[str], list[dict[str, Any]]]:
    """The weights, the names of the files and the records of a training."""
    settings = {key: value.format(files=files) if isinstance(value, str) else value for key, value in LOOP.items()}
    regard.train("translate", {**settings, **changes}, out=out)
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if not path.name.startswith("events."))
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in record.items() if key not in TIMES} for record in records]
    weights = json.loads((out / "run.json").read_text())["weights"]
    return (out / "model.safetensors").read_bytes(), names, [*timeless, weights]


def test_every_key_of_the_loop_changes_the_training(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    keys = {key for key in schema_of_run(resolve_run("translate", TINY).run) if key.startswith("train.")}
    assert keys | {"train.schedule.floor"} == CHANGES.keys() | ELSEWHERE_TESTED
    before = {name: outcome_of(files, tmp_path / name, {}) for name in ("before", "again")}
    assert before["before"] == before["again"]
    before["train.patience"] = outcome_of(files, tmp_path / "slow", BESIDE["train.patience"])
    for key, value in CHANGES.items():
        outcome = outcome_of(files, tmp_path / key, {key: value, **BESIDE.get(key, {})})
        assert outcome != before.get(key, before["before"]), f"{key} has no effect"
