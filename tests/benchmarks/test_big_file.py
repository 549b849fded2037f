"""The benchmark of a large text file, with a small one."""

from benchmarks import big_file
from benchmarks.__main__ import main


def test_phases_of_a_small_file() -> None:
    report = big_file.measure(3000, ("index", "first update", "tsv", "jsonl", "parquet"))
    examples = {report.phases[name]["examples"] for name in ("tsv", "jsonl", "parquet")}
    assert len(examples) == 1 and 2900 < examples.pop() < 3000  # some lines are blank
    assert report.phases["index"]["lines"] == 3000 and 0 < report.phases["first update"]["seconds"] < 100
    assert all(each["peak MB"] > 10 for each in report.phases.values())
    assert report.table().splitlines()[0] == "big-file: 3,000 lines" and "first update" in report.table()
    assert report.values()["phases"] == report.phases


def test_lines_are_for_this_benchmark_only(capsys) -> None:  # type: ignore[no-untyped-def]
    assert (
        main(["translate", "--lines", "5"]) == 2
        and "--lines 5 is for the benchmark big-file" in capsys.readouterr().err
    )
