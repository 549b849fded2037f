"""Examples that become several rows: the budget counts every row, and a step may have some rows of an example."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import reads

import regard
from regard.config.data.texts import MaskData, TagData, TokenizerConfig
from regard.config.train import Train
from regard.data.datasets.collate import IGNORED
from regard.data.datasets.masking import MaskedDataset, Masker
from regard.data.datasets.rows import LabelSet, TaggedDataset
from regard.data.loading import sampler
from regard.data.loading.loader import LoadedStep, Loader
from regard.data.source import InMemorySource
from regard.processors.text.tokenizers import MASK, train_tokenizer
from regard.training import checkpoint, progress

BYTES = train_tokenizer(TokenizerConfig(kind="byte"), [])
RNG = np.random.default_rng(3)
LENGTHS = [400, *RNG.integers(1, 6, 200).tolist(), 35, 90]


def loader(lengths: list[int], workers: int = 0, **train: Any) -> Loader:
    """Sentences of these numbers of words, two bytes each, read in windows of 12 tokens."""
    sentences = [(("a",) * length, ("x", "y") * (length // 2) + ("x",) * (length % 2)) for length in lengths]
    data, settings = TagData(max_tokens=12, overlap=4, workers=workers), Train(**{"tokens": 60} | train)
    labels = LabelSet({"x": 1, "y": 1})
    return Loader.of(TaggedDataset(InMemorySource("made", sentences), BYTES, labels, data, settings, None))


def padded(step: LoadedStep) -> list[int]:
    return [batch["text"].values.numel() for batch in step.micro_batches]


def content(step: LoadedStep) -> Any:
    return [
        (batch.number, batch["text"].values.tolist(), batch["tags"].values.tolist()) for batch in step.micro_batches
    ]


@pytest.mark.parametrize("lengths", [LENGTHS, [400], [3] * 50])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_has_no_more_than_its_budget(lengths: list[int], accumulate: int) -> None:
    made = loader(lengths, accumulate=accumulate)
    steps = list(made.steps(0))
    assert all(sum(padded(step)) <= 60 * 1.2 and max(padded(step)) <= 60 * 1.2 / accumulate + 12 for step in steps)
    assert np.mean([sum(padded(step)) for step in steps]) > 40
    tags = [batch["tags"].values for step in steps for batch in step.micro_batches]
    assert sum(int((each != IGNORED).sum()) for each in tags) == sum(step.count for step in steps) == sum(lengths)
    assert made.planned_steps(3) == 3 * len(steps)


def test_a_batch_counts_windows() -> None:
    steps = list(loader([400], batch=4).steps(0))
    rows = [sum(len(batch["text"].values) for batch in step.micro_batches) for step in steps]
    assert len(rows) > 20 and max(rows) == 4 and rows.count(4) >= len(rows) - 1


@pytest.mark.parametrize("lengths", [[60, *LENGTHS[1:30], 35], [80], [80, 2], [2, 80, 1, 60]])
@pytest.mark.parametrize("pool", [1, 2, 7, 1000])
def test_every_step_can_be_resumed(lengths: list[int], pool: int) -> None:
    made = loader(lengths, tokens=30)
    made.sampler.pool_size = pool  # type: ignore[attr-defined]
    whole = list(made.steps(2))
    index = offset = 0
    for number, step in enumerate(whole):
        offset = offset + 1 if step.index == index else 0  # as the training loop counts
        index = step.index
        rest = list(made.steps(2, index))[offset:]
        assert [content(each) for each in rest] == [content(each) for each in whole[number + 1 :]]
    assert index == len(lengths)


def test_processes_and_workers_share_the_rows() -> None:
    whole = list(loader(LENGTHS, accumulate=3).steps(1))
    shares = [list(loader(LENGTHS, accumulate=3).steps(1, 0, rank, 2)) for rank in (0, 1)]
    for step, *parts in zip(whole, *shares, strict=True):
        together = {batch.number: batch for part in parts for batch in part.micro_batches if batch.counted}
        assert [together[number]["text"].values.tolist() for number in sorted(together)] == [
            batch["text"].values.tolist() for batch in step.micro_batches
        ]
    worked = loader(LENGTHS, workers=1, accumulate=3)
    try:
        assert [content(step) for step in worked.steps(1)] == [content(step) for step in whole]
    finally:
        worked.close()


# --- pairs of lines ---


def pairs_of_lines(lines: int, **train: Any) -> Loader:
    """A few lines are much longer than the rest; a pair has the next line or a random one."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [], control=[MASK])
    lengths = np.clip(np.random.default_rng(0).lognormal(2.5, 0.9, lines).astype(int), 1, 150)
    examples = InMemorySource("made", [("a" * length,) for length in lengths.tolist()])
    data, settings = MaskData(next_sentence=True, max_tokens=120), Train(**{"tokens": 900} | train)
    return Loader.of(MaskedDataset(examples, Masker(tokenizer, data), data, settings, None))


@pytest.mark.parametrize("pool", [300, 70])
def test_pairs_count_with_the_line_that_the_epoch_draws(pool: int) -> None:
    made = pairs_of_lines(300)
    made.sampler.pool_size = pool  # type: ignore[attr-defined]
    for epoch in (0, 1):
        steps = list(made.steps(epoch))
        rows = [batch["text"] for step in steps for batch in step.micro_batches]
        assert [step.tokens for step in steps] == [int(each.valid.sum()) for each in rows]  # exact
        assert max(step.tokens for step in steps) <= 900
        assert np.mean([row.values.numel() for row in rows]) < (1000 if pool == 300 else 1300)
        assert sorted(i for step in steps for i in step.examples) == list(range(300))
        for number in (0, len(steps) // 2, len(steps) - 1):
            rest = list(made.steps(epoch, steps[number].index))
            assert [step.examples for step in rest] == [step.examples for step in steps[number + 1 :]]


# --- runs ---


def train(path: Path, steps: int, resume: bool = False, **settings: Any) -> Path:
    data = path.parent / "long.txt"
    if not data.exists():
        reads.write_columns(data, [[("cat", "T"), ("sees", "D")] * 300, [("day", "T")]])
    own = {"data.train": str(data), "data.max_tokens": 20, "data.overlap": 4, "train.tokens": 80}
    own |= {
        "train.steps": steps,
        "train.warmup": 2,
        "train.schedule": "constant",
        "train.save_every": 3,
        "train.eval_every": 99,
    } | settings
    regard.train("tag", {**reads.TINY, **own}, out=path, resume=resume)
    return path


def test_a_run_resumes_inside_a_sentence(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "parts", 5)
    state = json.loads((tmp_path / "parts/checkpoints/step-5/state.json").read_text())
    assert state["index"] < 2 and state["offset"] > 0 and state["plan"] == sampler.PLAN
    parts = train(tmp_path / "parts", 8, resume=True)
    for name in ("model", "optimizer"):
        file = f"checkpoints/step-8/{name}.safetensors"
        assert (whole / file).read_bytes() == (parts / file).read_bytes()


def test_a_checkpoint_of_another_plan_is_resumed(tmp_path: Path) -> None:
    """Older versions read all windows of a sentence in one step; so did those of other pairs of lines."""
    run = tmp_path / "run"
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(text for text, _ in reads.labeled_examples(200, 1)) + "\n")
    settings = {**reads.TINY, "data.train": str(lines), "data.next_sentence": True, "train.tokens": 200}
    settings |= {"train.warmup": 1, "train.steps": 3}
    regard.train("masked", settings, out=run)
    path = run / "checkpoints/step-3/state.json"
    state = json.loads(path.read_text())
    assert state["plan"] == sampler.PLAN
    for index, moved in ((state["index"] + 1, True), (state["index"], False)):
        del state["plan"]
        path.write_text(json.dumps(state | {"index": index}))
        regard.train(out=run, resume=True, train={"steps": 4})
        notes = [each["text"] for each in progress.read_records(run / "metrics.jsonl") if each["event"] == "note"]
        text = f"epoch 0 goes on after {state['index']} instead of {index} examples, and reads some of them twice"
        assert any(note.endswith(text) for note in notes) == moved
        again = json.loads((run / "checkpoints/step-4/state.json").read_text())
        assert again["plan"] == sampler.PLAN and again["index"] > state["index"]
        checkpoint.files.remove(run / "checkpoints/step-4")
        state["plan"] = 1
