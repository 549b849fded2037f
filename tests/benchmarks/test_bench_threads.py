"""The benchmark of waiting threads at its smallest: two settings, two steps, one busy loop."""

import subprocess

import pytest

from benchmarks import threads


def test_settings_are_timed_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STEPS", 2)
    monkeypatch.setattr(threads, "BUSY_LOOPS", 1)
    loops = []

    class Loop(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], **options: object) -> None:
            super().__init__(command, **options)  # type: ignore[call-overload]
            if "-c" in command:
                loops.append(self)

    monkeypatch.setattr(subprocess, "Popen", Loop)
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")  # of whoever runs the benchmark: it does not count
    settings = {name: threads.SETTINGS[name] for name in ("passive", "regard")}
    report = threads.main("cpu", "tiny", 1, ("busy",), settings)
    (section,) = report.sections
    assert list(section.rates) == ["passive", "regard"] and all(rate > 0 for (rate,) in section.rates.values())
    assert section.facts == ["1 different weights by 2 ways to wait"]
    (ratio,) = section.values()["ratios"]
    assert ratio["ours"] == "regard" and ratio["peer"] == "passive" and ratio["median"] > 0
    assert len(loops) == 1 and loops[0].returncode is not None  # it was ended
    assert report.table().splitlines()[0].startswith("threads: cores ")


def test_torch_must_not_be_imported_before() -> None:
    with pytest.raises(RuntimeError, match="torch was imported too early"):
        threads.train("regard", "tiny", 1)
