"""Signals, exit codes and locks, in processes of their own. Also a script: see `stop_children`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import reads

from regard.cli import main
from regard.errors import UserError
from regard.training.lock import RunLock

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")


def train_arguments(root: Path, name: str) -> list[str]:
    settings = {**reads.TINY, "data.train": f"{root}/train.tsv", "train.steps": 100_000, "train.log_every": 1}
    settings |= {"train.save_every": 100_000, "train.eval_every": 100_000, "train.warmup": 1}
    settings |= {"train.save_every": 20} if name == "SIGKILL" else {}
    return ["train", "classify", *(f"{key}={value}" for key, value in settings.items()), "--out", str(root / name)]


def in_child(arguments: list[str], log: Path, nohup: bool = False, writer: int | None = None) -> int:
    """The number of a new process that runs these arguments and writes its messages to a file."""
    if child := os.fork():
        return child
    code = 99
    try:
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        sys.stderr, sys.stdin = os.fdopen(2, "w", buffering=1), os.fdopen(0, closefd=False)
        if writer is not None:
            os.close(writer)  # else its own input would never end
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        code = main(arguments)
        sys.stderr.flush()
    finally:
        os._exit(code)


def run_main(arguments: list[str], log: Path) -> dict[str, Any]:
    """The exit code and the messages of a process."""
    return {"code": exit_code(in_child(arguments, log)), "err": log.read_text()}


def wait_for(path: Path, text: str) -> None:
    end = time.monotonic() + 60
    while not path.exists() or text not in path.read_text(errors="replace"):
        assert time.monotonic() < end, (path, text)
        time.sleep(0.01)


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stop_children(root: Path) -> dict[str, Any]:
    """Train in four processes, stop each by a signal, and resume; then stop a prediction that waits for its input."""
    import torch

    from regard.training import curves

    torch.set_num_threads(1)
    curves.draw = lambda folder: None  # type: ignore[assignment]
    main([*train_arguments(root, "first"), "train.steps=1", "--quiet"])  # imports everything, before the processes part
    found: dict[str, Any] = {}
    for name in SIGNALS:
        folder, log = root / name, root / "other.log"
        child = in_child(train_arguments(root, name), root / f"{name}.log")
        wait_for(folder / "metrics.jsonl", '"step": 25, "event": "train"')
        found[name] = {"pid": child, "second": run_main(["train", "--resume", "--out", str(folder)], log)}
        os.kill(child, getattr(signal, name))
        found[name] |= {"code": exit_code(child), "lock": (folder / ".lock").exists()}
        found[name]["steps"] = sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))
        last = f"train.steps={found[name]['steps'][-1] + 1}"
        found[name]["resumed"] = run_main(["train", "--resume", "--out", str(folder), last], log)
        found[name] |= {"log": (root / f"{name}.log").read_text(), "after": (folder / ".lock").exists()}
    for name in SIGNALS[:3]:
        reader, writer = os.pipe()
        os.dup2(reader, 0)
        os.close(reader)
        child = in_child(["predict", str(root / "SIGINT")], root / "predict.log", name == "SIGHUP", writer)
        time.sleep(0.5)
        os.kill(child, getattr(signal, name))
        os.close(writer)  # under nohup it goes on to the end of its input
        found[f"predict {name}"] = {"code": exit_code(child), "log": (root / "predict.log").read_text()}
    return found


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("signals")
    reads.write_texts(root / "train.tsv", reads.labeled_examples(60, 1))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_signals = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and Unix signals")


@needs_signals
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_saves_and_gives_its_exit_code(stopped: dict[str, Any], name: str, code: int) -> None:
    case = stopped[name]
    assert case["code"] == code and "Traceback" not in case["log"]
    assert f"{'Ctrl-C' if name == 'SIGINT' else name}: stopping after this step, then saving" in case["log"]
    assert "--resume --out" in case["log"].splitlines()[-1] and len(case["steps"]) == 1 and case["steps"][0] >= 25


@needs_signals
@pytest.mark.parametrize("name", SIGNALS)
def test_two_processes_cannot_train_one_run(stopped: dict[str, Any], name: str) -> None:
    refused = stopped[name]["second"]
    assert refused["code"] == 2 and refused["err"].count("\n") == 1
    assert f"is being trained by process {stopped[name]['pid']} on " in refused["err"]
    assert "wait until it ends, stop it, or choose another --out" in refused["err"]
    assert not stopped[name]["after"]


@needs_signals
@pytest.mark.parametrize("name", SIGNALS)
def test_resume_needs_only_the_folder(stopped: dict[str, Any], name: str) -> None:
    """Also after SIGKILL, which leaves the lock file behind."""
    case = stopped[name]
    assert case["lock"] == (name == "SIGKILL") and (name != "SIGKILL" or case["code"] == -9)
    assert case["resumed"]["code"] == 0, case["resumed"]["err"]
    assert f"resuming after step {case['steps'][-1]}\n" in case["resumed"]["err"]
    assert f"finished after {case['steps'][-1] + 1} steps" in case["resumed"]["err"]


@needs_signals
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 0)])
def test_an_interrupted_prediction(stopped: dict[str, Any], name: str, code: int) -> None:
    case = stopped[f"predict {name}"]
    assert case["code"] == code and case["log"] == ("regard: stopped\n" if code else "")


def test_a_lock_excludes_other_threads_too(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
        with pytest.raises(UserError, match="is being trained by this process already; choose another --out"):
            RunLock(tmp_path / "." / "x" / "..").__enter__()
    with RunLock(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("process 7 on mars" if sys.argv[2] else "", end="", file=file, flush=True)
print("locked", flush=True)
sys.stdin.read()
"""


@needs_signals
@pytest.mark.parametrize("known", [True, False])
def test_a_lock_of_another_process_is_refused_until_it_ends(tmp_path: Path, known: bool) -> None:
    command = [sys.executable, "-S", "-c", HOLDER, str(tmp_path / ".lock"), "x" * known]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"locked\n"
        holder_name = "process 7 on mars" if known else "another process"
        with pytest.raises(UserError, match=f"is being trained by {holder_name}; wait until it ends, stop it, or"):
            RunLock(tmp_path).__enter__()
        holder.kill()
    with RunLock(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_file_that_its_holder_removed_is_locked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the holder may end and remove the file."""
    original, opened = os.open, []

    def open_removed(path: Any, *flags: Any) -> int:
        handle = original(path, *flags)
        opened.append(path)
        if len(opened) == 1:
            os.unlink(path)
        return handle

    monkeypatch.setattr(os, "open", open_removed)
    with RunLock(tmp_path):
        assert len(opened) == 2 and (tmp_path / ".lock").exists()


def test_a_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        RunLock(tmp_path / "nowhere").__enter__()


if __name__ == "__main__":
    print(json.dumps(stop_children(Path(sys.argv[1]))))
