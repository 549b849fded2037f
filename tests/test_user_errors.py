"""The check that every line which raises a UserError is executed by the suite."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from helpers import user_errors

SOURCE = """
from regard.errors import UserError

class Wrong(UserError):
    pass

def helper(value):
    return Wrong(f"{value} is wrong")

def second(value):
    return helper(value) if value else None

def check(value):
    if value == 1:
        raise UserError(
            f"{value} is one; "
            "use two"
        )
    if value == 2:
        raise second(value)
    if value == 3:
        raise ValueError("not an error of the user")
    raise value if isinstance(value, UserError) else Wrong("other")
"""


def test_lines_are_found_by_their_meaning(tmp_path):
    package = tmp_path / "regard"
    package.mkdir()
    (package / "one.py").write_text(SOURCE)
    (package / "data").mkdir()
    (package / "data" / "two.py").write_text(SOURCE)
    lines = user_errors.error_lines(package)
    one, two = (
        [(line.first, line.last, line.kind) for line in lines if line.path == name]
        for name in ("regard/one.py", "regard/data/two.py")
    )
    made, raised, cause = user_errors.MADE, user_errors.RAISED, user_errors.CAUSE
    assert one == [(8, 8, made), (15, 18, made), (20, 20, raised), (23, 23, made)]
    assert two == sorted([*one, (22, 22, cause)])


def test_other_processes_record_their_lines(tmp_path):
    """The statement that makes an error, and the one that raises what a helper made; both may span several lines."""
    code = "import regard.files as f, pathlib, errno\ntry: f.check_picture_path(pathlib.Path('a.txt'))\nexcept Exception: pass\n"
    code += "with f.atomic_write(pathlib.Path('x')): raise OSError(errno.ENOSPC, 'full')"
    path = os.pathsep.join([str(user_errors.HOOK), str(user_errors.ROOT)])
    env = {**os.environ, "PYTHONPATH": path, user_errors.FOLDER: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert "UserError: no space left" in done.stderr
    frames = user_errors.recorded_frames(tmp_path)
    lines = [line for line in user_errors.error_lines() if line.path == "regard/files.py" and line.executed(frames)]
    assert {line.kind for line in lines} == {user_errors.MADE, user_errors.RAISED} and len(lines) == 3


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"keyword": "x"},
        {"markexpr": ""},
        {"deselect": ["x"]},
        {"ignore": ["x"]},
        {"lf": True},
        {"collectonly": True},
    ],
)
@pytest.mark.parametrize("source", ["TESTPATHS", "ARGS"])
def test_only_a_complete_run_fails(change, source):
    options = (
        dict(
            keyword="", markexpr=user_errors.ALL_TESTS, deselect=None, ignore=None, ignore_glob=None, collectonly=False
        )
        | change
    )
    config = types.SimpleNamespace(
        option=types.SimpleNamespace(**options), args_source=pytest.Config.ArgsSource[source]
    )
    assert user_errors.is_complete(config) == (source == "TESTPATHS" and not change)


def test_this_process_records(tmp_path, monkeypatch):
    from regard.files import check_picture_path

    monkeypatch.setenv(user_errors.FOLDER, str(tmp_path))
    monkeypatch.setattr(sys.modules["sitecustomize"], "RECORDED", set())
    with pytest.raises(Exception, match="suffix"):
        check_picture_path(Path("a.txt"))
    (lines,) = user_errors.recorded_frames(tmp_path).values()
    assert [depth for depth, _ in lines] == [user_errors.MADE]


def test_a_validator_counts_if_its_error_reaches_the_user(tmp_path, monkeypatch):
    import regard

    monkeypatch.setenv(user_errors.FOLDER, str(tmp_path))
    monkeypatch.setattr(sys.modules["sitecustomize"], "RECORDED", set())
    for settings in (
        {"decode.min_tokens": 9, "decode.max_tokens": 5},
        {"model.family": "nothing"},
        {"data.train": "a,,b"},
    ):
        with pytest.raises(regard.UserError):
            regard.build("translate", settings)
    frames = user_errors.recorded_frames(tmp_path)
    found = [line for line in user_errors.error_lines() if line.kind == user_errors.CAUSE and line.executed(frames)]
    words = ("decode.min_tokens is", "model.family is", "has nothing on one side of a comma")
    assert len(found) == 3 and all(any(each in line.text for line in found) for each in words)
