"""Every key of data.*, tokenizer.* and decode.* that a task has with a family has an effect there, or its value is refused.

With another value of decode.* the engine is asked for something else, or results differ. Keys of data.* and tokenizer.* are
read while a run is prepared, trained for a step and validated, or opens its embedded or its test data.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest import mock

import pytest
import torch
from helpers.predictors import CASES, NOISES, TINY, Case, predictor_of

import regard
from regard.config.merge import flatten, groups_in, kind_of, settings_of
from regard.config.registry import FAMILIES
from regard.config.run import AnyRun, change_settings
from regard.config.task_settings import section_types
from regard.data.sources.data_files import as_data_files
from regard.decode.engine.jobs import Generate
from regard.errors import UserError
from regard.families import family
from regard.messages.base import to_json
from regard.synthetic import captions, dates, digits, morse, python_tags, scenes
from regard.tasks.base import open_lines
from regard.tasks.nat.writers import DecodeAtOnce
from regard.tasks.task import prepare

NAMES = [name for name in CASES if name != "cnn"]  # as translate
EMBEDDED = ((captions, 20), (dates, 40), (digits, 20), (morse, 8), (python_tags, 20), (scenes, 20))  # valid and test

# --- decode ----------------------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "strategy.size": 2, "strategy.n": 2, "strategy.length_penalty": 0.3, "strategy.early_stopping": "never",
    "strategy.temperature": 0.5, "strategy.top_k": 2, "strategy.top_p": 0.4, "strategy.min_p": 0.3, "strategy.seed": 7,
    "strategy.merge_repeats": True, "strategy.iterations": 1, "strategy.length_beam": 1, "max_tokens": 3,
    "min_tokens": 2, "max_length": 4, "min_length": 3, "repetition_penalty": 1.5, "rules.no_repeat_ngram_size": 2,
    "rules.encoder_no_repeat_ngram_size": 2, "rules.bad_words_ids": [[5]], "rules.forced_bos_token_id": 5,
    "rules.forced_eos_token_id": 5, "rules.suppress_tokens": [5], "rules.begin_suppress_tokens": [5],
    "rules.eos_token_id": [5], "rules.renormalize_logits": True, "prefix": "a", "include": ["a"], "exclude": ["a"],
    "stop": ["o"], "add_start": False, "split_sentences": True, "ctc": 0.9, "max_segment_seconds": 0.5,
    "language": "de", "prompt": "the cat", "windows.timestamps": False, "windows.sequential": False,
    "windows.condition_on_previous": False, "windows.temperatures": [0.4], "windows.compression_ratio_threshold": 0.01,
    "windows.logprob_threshold": -0.01, "windows.no_speech_threshold": 0.0, "windows.seed": 7, "batch": 3, "top": 2,
    "pooling": "first", "normalize": False, "labels": ["a", "red"], "template": "the {}",
}  # fmt: skip
OF_TASK = {
    ("whisper", "task"): "translate",
    ("multitask", "task"): "copy",
    ("detect", "top"): 1,
    ("classify", "top"): 1,
}
OF_TASK |= {("detect", "threshold"): 0.999, ("labels", "threshold"): 0.001, ("labels", "top"): 1}
BESIDE: dict[str, dict[str, Any]] = {  # settings with which an effect shows
    "windows.seed": {"windows.temperatures": [0.4]},
    "windows.compression_ratio_threshold": {"windows.temperatures": [0.0, 0.4]},
    "windows.logprob_threshold": {"windows.temperatures": [0.0, 0.4]},
    "windows.no_speech_threshold": {"windows.logprob_threshold": -0.01},
}
ELSEWHERE = {("classify", "threshold")}  # of several labels: the case labels


def strategies(run: AnyRun) -> list[dict[str, Any]]:
    """Settings for each strategy that a run may have; npd, which needs a teacher, is tested in test_parallel.py."""
    slot = settings_of(type(run.decode)).get("strategy")
    kinds = [kind_of(kind) for kind in groups_in(slot.annotation)] if slot else []
    return [{"strategy": {"kind": kind}} for kind in kinds if kind != "npd"] or [{}]


@contextmanager
def asked() -> Iterator[list[str]]:
    """What the engine is asked for: the settings of searches, without inputs."""
    jobs: list[str] = []

    def note(self: Any) -> Any:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["filters"] = len(values.get("filters", ()))
        jobs.append(
            str({name: value for name, value in values.items() if name not in ("source", "writer", "listener")})
        )
        return (yield self)

    with mock.patch.object(Generate, "__await__", note), mock.patch.object(DecodeAtOnce, "__await__", note):
        yield jobs


def observed(predictor: Any, items: list[Any], decode: dict[str, Any]) -> str:
    """What the engine is asked for, the size of its batches, the results and the embeddings with some settings."""
    run = predictor.run
    predictor.run = change_settings(run, {"decode": decode})
    vars(predictor).pop("transcriber", None)  # it keeps its run
    try:
        with asked() as jobs:
            found = [to_json(result) for result in predictor.predict_requests(predictor.requests(items))]
        texts = [" ".join(item) if isinstance(item, tuple) else item for item in items]
        vectors = predictor.embed(texts).tolist() if hasattr(predictor, "embed") else None
        return str((jobs, predictor.context_of_model().batch, found, vectors))
    finally:
        predictor.run = run
        vars(predictor).pop("transcriber", None)


def several_labels() -> Any:
    """A classifier of several labels."""
    rows = [{"text": text, "label": ["a", "b"][: number % 3]} for number, text in enumerate(["so", "good", "bad"] * 4)]
    return prepared(CASES["classify"], rows=rows).predictor


@pytest.mark.parametrize("name", [*NAMES, "labels"])
def test_every_key_of_decoding_has_an_effect(name: str) -> None:
    predictor = several_labels() if name == "labels" else predictor_of(name)
    items = [NOISES[2]] if name == "whisper" else list(CASES[name if name in CASES else "classify"].items[:2])
    if name == "translate":
        items[0] = f"{items[0]}. {items[1]}."
    silent, plain = set[str](), list[str]()
    for strategy in strategies(predictor.run):
        decode = change_settings(predictor.run, {"decode": strategy}).decode
        plain.append(observed(predictor, items, strategy))
        known = set(silent)
        for key in (key for key, _ in flatten(decode.model_dump(mode="json")) if key != "strategy.kind"):
            if (name, key) in ELSEWHERE or (len(plain) > 1 and key not in known and not key.startswith("strategy.")):
                continue  # an effect with one strategy suffices
            value, beside = OF_TASK.get((name, key), OTHER.get(key)), strategy | BESIDE.get(key, {})
            assert value is not None, f"decode.{key} needs another value in OTHER or OF_TASK"
            try:
                before = observed(predictor, items, beside) if key in BESIDE else plain[-1]
                changed = before != observed(predictor, items, {**beside, key: value})
            except UserError:
                changed = True
            (silent.discard if changed else silent.add)(key)
    assert not silent and len({*plain}) == len(plain)


# --- data and tokenizer ----------------------------------------------------------------------------------------------


def without(settings: Mapping[str, Any], *prefixes: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not key.startswith(prefixes)}


SPEECH, CLIP = CASES["transcribe"], CASES["contrastive"]
AUDIO = {"model.source.kind": "audio", **{f"model.source.{name}": 16 for name in ("width", "inner")}}
AUDIO |= {
    "model.source.heads": 2,
    "model.source.layers": 1,
    "model.source.channels": 4,
    "data.rate": 8000,
    "data.bins": 12,
}
PREPARED: dict[str, list[Case]] = {name: [CASES[name]] for name in NAMES}  # what reads all keys of a section
PREPARED["whisper"] = [
    replace(SPEECH, settings={**without(SPEECH.settings, "model.channels"), "model.family": "whisper"})
]
PREPARED["contrastive"] += [
    replace(CLIP, rows=SPEECH.rows, settings={**without(CLIP.settings, "model.source."), **AUDIO}),
    replace(CLIP, rows=CASES["translate"].rows, settings={**without(CLIP.settings, "model.source."), "model.source.kind": "text"}),
]  # fmt: skip


def prepared(case: Case, rows: Any = None) -> Any:
    """A training that is ready to start, with its examples in memory."""
    data = {f"data.{name}": as_data_files([*(rows or case.rows)], name) for name in ("train", "valid", "test")}
    return prepare(regard.resolve(case.task, {**TINY, **case.settings, **data}).run, {}, torch.device("cpu"))


@contextmanager
def reads(*sections: type) -> Iterator[set[tuple[type, str]]]:
    """The keys of sections of these types that are read."""
    found: set[tuple[type, str]] = set()

    def read(self: Any, name: str) -> Any:
        found.add((type(self), name))
        return object.__getattribute__(self, name)

    with ExitStack() as stack:
        for section in sections:
            stack.enter_context(mock.patch.object(section, "__getattribute__", read))
        yield found


def use_data(case: Case) -> None:
    """Train a step, validate, and open the test data and the embedded data."""
    job = prepared(case)
    next(iter(job.steps(0, 0)))
    job.validate()
    opener = vars(import_module(f"regard.tasks.{case.task.replace('-', '_')}.task")).get("data_split", open_lines)
    if case.task == "language":
        opener(job.run, "test", job.predictor.tokenizer, None)
        return
    opener(job.run, "test")
    embedded = {key: value for key, value in case.settings.items() if key.startswith(("model.", "data."))}
    with ExitStack() as stack:
        for module, count in EMBEDDED:
            stack.enter_context(mock.patch.object(module, "HELD_OUT", count))
        opener(regard.resolve(case.task, {**embedded, "data.examples": 8}).run, "train")


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_data_is_read(name: str) -> None:
    cases = PREPARED[name]
    run = regard.resolve(cases[0].task, {**TINY, **cases[0].settings}).run
    sections = [type(run.data), type(run.tokenizer)]
    with reads(*sections) as found:
        for case in cases:
            use_data(case)
    unread = [key for section in sections for key in section.model_fields if (section, key) not in found]
    assert not unread


def test_every_section_of_a_family_is_tested() -> None:
    """A family that brings a section of its own needs a case above."""
    types = {section_types(task, name)["data"] for name in FAMILIES for task in family(name).SPEC.settings}
    tested = {type(regard.resolve(case.task, {**TINY, **case.settings}).run.data) for [case, *_] in PREPARED.values()}
    decodes = {section_types(task, name)["decode"] for name in FAMILIES for task in family(name).SPEC.settings}
    asked_for = {type(predictor_of(name).run.decode) for name in NAMES}
    assert types <= tested and decodes <= asked_for
