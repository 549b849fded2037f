"""Every test begins from the same seed, without chatter from the oracles."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when transformers is first imported
os.environ.setdefault("MPLCONFIGDIR", str(Path("~/.cache/matplotlib").expanduser()))  # below, the cache moves away

from regard.threads import limit_spinning

limit_spinning()  # before torch is imported

import pytest  # noqa: E402
import torch  # noqa: E402

pytest_plugins = "helpers.user_errors"
torch.set_num_threads(1)  # the tensors are tiny: a second thread would only wait for the first


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Encoded texts, also those of programs that a test starts, do not go to the cache of whoever runs the tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def quick_ends() -> Iterator[None]:
    """Trainings draw no curves, which takes longer than they do, and files are not flushed against a power failure.

    A test of the curves puts `regard.training.curves.draw` back.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.training.curves.draw", lambda folder: None)
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def stored_runs() -> Iterator[None]:
    """No test writes into a run that others read."""
    yield
    if (runs := sys.modules.get("helpers.runs")) is not None:
        runs.check_used()
