"""`python -m benchmarks parallel`: all tokens at once beside a beam search."""

from pathlib import Path
from typing import Any

import pytest
from helpers import small

from benchmarks import bench, parallel
from regard.errors import UserError


def test_all_programs_write_as_many_tokens() -> None:
    found = bench("parallel", "cpu", "tiny", 1, "latency-50").values()
    (section,) = found["sections"]
    assert [each["name"] for each in section["ways"]] == ["beam 5", "argmax", "npd, 10 samples"]
    assert [each["ours"] for each in section["ways"]] == [False, True, True] and len(section["ratios"]) == 2
    assert all(each["median"] > 0 for each in section["ways"])
    assert section["facts"][0] == "2 texts of 6 tokens, 6 tokens each, 1 at once"


def test_different_lengths_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = parallel.make_predictors

    def make(*arguments: Any) -> Any:
        teacher, student = plain(*arguments)
        student.model.fertility.bias.data[0] = 50.0  # no copies
        return teacher, student

    monkeypatch.setattr(parallel, "make_predictors", make)
    with pytest.raises(UserError, match="argmax wrote 0 tokens instead of 3"):
        bench("parallel", "cpu", "tiny", 1, "latency")


def test_trained_runs(tmp_path: Path) -> None:
    teacher = small.translator()
    student = small.translator(model__family="nat", decode__kind="argmax")
    (tmp_path / "texts").write_text("a cat\nthe dog sleeps\n")
    report = parallel.compare_runs(str(teacher), str(student), str(tmp_path / "texts"), 1)
    assert [each.name for each in report.sections] == ["1 at once", "64 at once"]
    assert "ms per text" in report.table()
