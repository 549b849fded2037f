"""The settings of a task: the types of data.*, decode.* and eval.*, and its metrics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .data.base import Data
from .data.texts import TokenizerConfig
from .family import family_of
from .registry import FAMILIES, TASKS, load_module
from .train import Train
from .types import Base


@dataclass(frozen=True)
class Metric:
    """The name and direction of an evaluation result; the direction selects the best weights."""

    name: str
    higher_is_better: bool

    def is_better(self, new: float, best: float | None) -> bool:
        """True if `new` is better than `best`, the best value so far; False if `new` is not finite."""
        if not math.isfinite(new):
            return False
        return best is None or (new > best if self.higher_is_better else new < best)


LOSS, PERPLEXITY = Metric("loss", False), Metric("perplexity", False)
BITS_PER_BYTE, WORD_PERPLEXITY = Metric("bits_per_byte", False), Metric("word_perplexity", False)
BLEU, CHRF, EXACT = Metric("bleu", True), Metric("chrf", True), Metric("exact", True)
ACCURACY, F1, SPANS = Metric("accuracy", True), Metric("f1", True), Metric("spans", True)
AP, AP50 = Metric("ap", True), Metric("ap50", True)
MICRO_F1, RMSE = Metric("micro_f1", True), Metric("rmse", False)
PEARSON, SPEARMAN = Metric("pearson", True), Metric("spearman", True)
OTHER_TARGETS = (MICRO_F1, RMSE, PEARSON, SPEARMAN)  # of several labels, and of numbers
RETRIEVAL = tuple(Metric(name, True) for name in ("r1", "text_to_item_r1", "item_to_text_r1"))
CIDER = Metric("cider", True)
WER, CER = Metric("wer", False), Metric("cer", False)


@dataclass(frozen=True)
class TaskSettings:
    """The types of the sections that depend on the task, and the metrics that train.metric may name."""

    data: type[Data]
    decode: type[Base]
    metrics: tuple[Metric, ...]
    eval: type[Base] = Base  # no settings
    head: str = ""  # of models that have several
    objective: type[Base] = Base  # of train.objective.*; no settings
    tokenizer: type[Base] = TokenizerConfig  # Base: the task reads no text

    def metric(self, name: str) -> Metric:
        """The metric of this name."""
        return {metric.name: metric for metric in self.metrics}[name]


def task_settings(name: str) -> TaskSettings:
    """The settings of a task by name."""
    settings: TaskSettings = load_module(TASKS[name], "settings").SETTINGS
    return settings


def section_types(task: str, family: str | None) -> Mapping[str, type[Base]]:
    """The types of the sections that depend on the task. A family may have its own, in `ModelSpec.settings`."""
    common = task_settings(task)
    types = {"data": common.data, "tokenizer": common.tokenizer, "decode": common.decode, "eval": common.eval}
    types["train.objective"] = common.objective
    return {**types, **family_of(family).SPEC.settings.get(task, {})} if family in FAMILIES else types


def metrics_of(task: str, train: Train) -> dict[str, Metric]:
    """The metrics that train.metric may name: those of the task, and custom ones."""
    custom = [Metric(name.removeprefix("-"), not name.startswith("-")) for name in train.own_metrics]
    built_in = task_settings(task).metrics if task in TASKS else (LOSS,)  # regard.fit trains modules without a task
    return {metric.name: metric for metric in (*built_in, *custom)}


class TextEval(Base):
    """Metrics of tasks that write text. `auto` chooses by the script of the references."""

    tokenize: Literal[
        "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "spm", "flores101", "flores200"
    ] = "auto"
    # of BLEU, by sacrebleu; auto: by the script of the references
    asian_support: Literal["auto", "on", "off"] = "auto"  # on: TER splits Chinese and Japanese into characters; auto:
    # by the script of the references


class SpeechEval(Base):
    """Metrics of transcription."""

    normalize: Literal["none", "basic", "english", "whisper-english"] = "none"  # of transcripts before their comparison
