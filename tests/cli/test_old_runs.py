"""Run folders of formats 1 and 2 load, answer as recorded, and resume from their checkpoints.

The evaluations of masked-bert, masked-bigbird and spans-t5 were recorded again when their fixed masks and spans became
a function of (seed, epoch, example).
"""

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

import regard
from regard.config.merge import flatten
from regard.config.renamed import STRATEGY, moved_key, renamed_key
from regard.config.run_folder import read_run
from regard.training import step

OLD = Path(__file__).parents[1] / "old"
RUNS: dict[str, Any] = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))["runs"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """One thread, as when the answers were recorded; encoded texts go to a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plain(value: Any) -> Any:
    """The value as JSON holds it."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def answer(predictor: Any, call: dict[str, Any]) -> Any:
    """The answer to one recorded call, reduced as expected.json says."""
    verb, arguments = call["call"], call["arguments"]
    if verb == "evaluate":
        metrics = predictor.evaluate(tuple(tuple(side) for side in arguments[0]))
        return {name: value for name, value in metrics.items() if name in call["answer"]}
    decode = {
        renamed_key(f"decode.{name}").removeprefix("decode."): value for name, value in call.get("decode", {}).items()
    }
    if decode.get("kind") == "greedy":  # format 1 ignored settings of sampling, or took those without effect
        decode = {name: value for name, value in decode.items() if name not in ("temperature", "top_k")}
    result = plain(getattr(predictor, verb)(*arguments, **decode))
    if fields := call.get("keep"):
        former = [{**record, "ended": {"length": "max"}.get(record["finish"], record["finish"])} for record in result]
        return [{name: record[name] for name in fields} for record in former]
    return [vector[:4] for vector in result] if verb == "embed" else result


def near(one: Any, other: Any) -> bool:
    """True if both are equal except for the last digits of floats, and for a last character that a limit has cut."""
    if isinstance(one, float) or isinstance(other, float):
        return abs(one - other) <= 1e-4 * max(1, abs(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one in (other, other.removesuffix("\ufffd"))
    return bool(one == other)


def digest(path: Path) -> str:
    """A hash of the shapes and bytes of a file's tensors, whatever their names are."""
    tensors = load_file(path).values()
    parts = sorted(hashlib.sha256(str(each.shape).encode() + each.tobytes()).digest() for each in tensors)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def current_keys(former: Mapping[str, object], current: Collection[str]) -> set[str]:
    """The current keys of settings of format 1. Only settings of other strategies have none: they had no effect."""
    names = {moved_key(renamed_key(key), current) for key in former}
    assert names - {*current} <= {f"decode.{name}" for name in (*STRATEGY, "beam", "nbest")} | {"tokenizer.joint"}
    return names & {*current}


@pytest.mark.filterwarnings("ignore::UserWarning")  # some texts are longer than these models read
@pytest.mark.parametrize("name", RUNS)
def test_a_former_run_answers_as_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OLD)  # a tuned run names its base by a relative path
    predictor = regard.load(name)
    for call in RUNS[name]["calls"]:
        result = answer(predictor, call)
        assert near(result, call["answer"]), (call["call"], call.get("decode"), result, call["answer"])


def test_every_recorded_run_has_calls() -> None:
    folders = {path.parent.name for path in OLD.glob("*/run.json")} - {"format-1"}
    assert folders == set(RUNS) and sum(len(run["calls"]) for run in RUNS.values()) == 82


@pytest.mark.parametrize("name", [*(name for name in RUNS if name != "classify-ngrams"), "format-1"])
def test_run_json_of_format_1_is_read_with_current_names(name: str) -> None:
    raw = json.loads((OLD / name / "run.json").read_text(encoding="utf-8"))
    about = read_run(OLD / name)
    assert (raw["format"], about["format"]) == (1, 3)
    former, current = dict(flatten(raw["config"])), dict(flatten(about["config"]))
    assert current_keys(former, current) == current_keys(raw["origin"], current) == {*current} == {*about["origin"]}
    assert regard.resolve(about["recipe"]).run.task == about["config"]["task"]
    files = {path.name for path in (OLD / name).glob("*tokenizer.json")} | {
        path.name for path in (OLD / name).glob("labels.json")
    }
    assert {entry["file"] for entry in about["processors"].values()} == files  # found by name: format 1 has no list


def test_run_json_of_format_2_is_read_with_current_names() -> None:
    raw = json.loads((OLD / "classify-ngrams" / "run.json").read_text(encoding="utf-8"))
    about = read_run(OLD / "classify-ngrams")
    assert (raw["format"], about["format"]) == (2, 3)
    assert about["config"]["data"]["ngrams"] == raw["config"]["model"]["ngrams"]
    assert "ngrams" not in about["config"]["model"]
    assert about["origin"]["data.ngrams.buckets"] == raw["origin"]["model.ngrams.buckets"] == "command line"


@pytest.mark.parametrize("settings", ["settings of the run", "settings of the model only"])
def test_a_checkpoint_of_format_1_is_resumed(settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with dropout from the random state of the checkpoint; today each micro-batch has its own seed."""
    monkeypatch.setattr(step, "seed_dropout", lambda *numbers: None)
    for name in ("language-xl", "texts"):
        shutil.copytree(OLD / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    recorded = RUNS["language-xl"]
    resume = recorded["resume"]
    given = recorded["settings"] if settings == "settings of the run" else resume["settings"]
    overrides = {renamed_key(key): value for key, _, value in (each.partition("=") for each in given)}
    predictor = regard.train(recorded["recipe"], overrides, out="language-xl", resume=True)
    about = json.loads(Path("language-xl/run.json").read_text(encoding="utf-8"))
    assert near(about["weights"], resume["weights"])
    for file, expected in resume["tensors"].items():
        assert digest(Path("language-xl", file)) == expected
    assert near(plain(predictor.score(resume["texts"])), resume["score"])
    assert about["format"] == 3 and about == read_run(Path("language-xl"))
    former = json.loads((OLD / "language-xl" / "run.json").read_text(encoding="utf-8"))
    current = dict(flatten(about["config"]))
    assert current.keys() >= current_keys(dict(flatten(former["config"])), current)
    assert {*about["origin"]} == current_keys(former["origin"], current)
