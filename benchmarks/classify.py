"""`python -m benchmarks.classify`: pairs, several labels and numbers, trained by regard and by transformers' Trainer.

Both start from the same weights of a small BERT, read the same data in steps of the same size, and have the same
optimizer, schedule and dropout. The table has the scores on other examples, for three seeds.
"""

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import regard
from regard.metrics.labels import multi_label_metrics
from regard.metrics.regression import regression_metrics
from regard.synthetic.dates import make_dates

from .report import align_columns

TOPICS = {"color": ["red", "green", "blue"], "animal": ["cat", "dog", "cow"], "place": ["house", "street", "river"]}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
FILLERS = ["the", "a", "some", "and", "with", "of"]


class Settings(NamedTuple):
    """The size of the training."""

    examples: int = 3000
    steps: int = 400
    batch: int = 32
    lr: float = 1e-3
    seeds: tuple[int, ...] = (1, 2, 3)


Rows = list[dict[str, Any]]


def make_rows(kind: str, count: int) -> Rows:
    """Examples of one kind: two spellings of one date or of two, the topics of a text, or the sum of its numbers."""
    draw = random.Random(5)
    if kind == "pairs":
        dates = make_dates(("en", "de"), max(count, 10), 1)["train"]
        rows = []
        for source, target in (dates[i % len(dates)] for i in range(count)):
            same = draw.random() < 0.5
            other = target if same else dates[draw.randrange(len(dates))][1]
            rows.append({"text": source, "text_pair": other, "label": "same" if other == target else "other"})
        return rows
    rows = []
    for _ in range(count):
        words = draw.choices(FILLERS, k=5)
        if kind == "labels":
            topics = [name for name in TOPICS if draw.random() < 0.4]
            words += [draw.choice(TOPICS[name]) for name in topics]
            target: Any = topics
        else:
            numbers = draw.choices(range(10), k=2)
            words, target = words + [NUMBERS[each] for each in numbers], sum(numbers) / 9 - 1
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": target})
    return rows


def score(kind: str, found: Sequence[Any], rows: Rows) -> float:
    """The accuracy of pairs, the micro F1 of labels, Pearson's correlation of numbers."""
    gold = [row["label"] for row in rows]
    if kind == "pairs":
        return sum(a == b for a, b in zip(found, gold, strict=True)) / len(gold)
    if kind == "labels":
        return float(multi_label_metrics(found, gold)["micro_f1"])
    return float(regression_metrics(found, gold).get("pearson", 0.0))


def make_start(kind: str, rows: Rows, folder: Path) -> Path:
    """A Hugging Face folder with the first weights: those of a training whose one step changes nothing."""
    model = {"model.size": "tiny", "model.inner": 256, "data.ngrams.order": 0, "tokenizer.vocab": 500}
    still = {"train.steps": 1, "train.lr": 1e-12, "train.tensorboard": False, "device": "cpu", "eval.baseline": False}
    types = {"labels": "multi_label", "number": "regression"}
    still["data.problem_type"] = types.get(kind, "single_label")
    regard.train("classify", {**model, **still}, out=folder / "still", data={"train": rows}, progress=False)
    regard.convert(folder / "still", to="huggingface", out=folder / "start")
    return folder / "start"


def train_ours(kind: str, start: Path, train: Rows, test: Rows, seed: int, s: Settings, out: Path) -> float:
    settings: dict[str, Any] = {
        "start": str(start), "train.steps": s.steps, "train.batch": s.batch, "train.lr": s.lr, "train.seed": seed,
        "train.warmup": s.steps // 10, "train.tensorboard": False, "eval.baseline": False, "device": "cpu",
        "data.problem_type": {"labels": "multi_label", "number": "regression"}.get(kind, "single_label"),
    }  # fmt: skip
    predictor = regard.train("classify", settings, out=out, data={"train": train}, progress=False)
    items = [(row["text"], row["text_pair"]) if kind == "pairs" else row["text"] for row in test]
    return score(kind, predictor.predict(items), test)


def train_theirs(kind: str, start: Path, train: Rows, test: Rows, seed: int, s: Settings, out: Path) -> float:
    import transformers as hf

    hf.set_seed(seed)
    model = hf.AutoModelForSequenceClassification.from_pretrained(start)
    tokenizer = hf.AutoTokenizer.from_pretrained(start)
    ids = model.config.label2id

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        texts = (row["text"], row["text_pair"]) if kind == "pairs" else (row["text"],)
        target = row["label"]
        if kind == "labels":
            target = [float(name in target) for name in ids]
        return {**tokenizer(*texts), "labels": ids[target] if kind == "pairs" else target}

    arguments = hf.TrainingArguments(
        output_dir=str(out), per_device_train_batch_size=s.batch, max_steps=s.steps, learning_rate=s.lr, seed=seed,
        warmup_steps=s.steps // 10, lr_scheduler_type="linear", weight_decay=0.01, max_grad_norm=1.0, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    collator = hf.DataCollatorWithPadding(tokenizer)
    trainer = hf.Trainer(model, arguments, collator, train_dataset=[encode(row) for row in train])
    trainer.remove_callback(hf.PrinterCallback)  # it writes to stdout
    trainer.train()
    model.eval()
    with torch.no_grad():
        batches = [collator([{**encode(row)} for row in test[i : i + 64]]) for i in range(0, len(test), 64)]
        logits = torch.cat([model(**{**batch, "labels": None}).logits for batch in batches]).numpy()
    return score(kind, _answers(kind, logits, list(ids)), test)


def _answers(kind: str, logits: np.ndarray, names: list[str]) -> list[Any]:
    if kind == "pairs":
        return [names[number] for number in logits.argmax(1)]
    if kind == "labels":
        return [[name for name, value in zip(names, row, strict=True) if value >= 0] for row in logits]
    return [float(value) for value in logits[:, 0]]


def main(s: Settings = Settings(), kinds: Sequence[str] = ("pairs", "labels", "number")) -> None:  # noqa: B008 — frozen
    measures = {"pairs": "accuracy", "labels": "micro F1", "number": "Pearson"}
    table = [["task", "metric", "program", *(f"seed {seed}" for seed in s.seeds), "mean"]]
    for kind in kinds:
        rows = make_rows(kind, s.examples + s.examples // 4)
        train, test = rows[: s.examples], rows[s.examples :]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            start = make_start(kind, train, folder)
            for program, run in (("regard", train_ours), ("transformers", train_theirs)):
                found = [run(kind, start, train, test, seed, s, folder / f"{program}-{seed}") for seed in s.seeds]
                cells = [*found, sum(found) / len(found)]
                table.append([kind, measures[kind], program, *(f"{value:.4f}" for value in cells)])
    print("\n".join(align_columns(table)))


if __name__ == "__main__":
    main()
    sys.exit(0)
