"""Record which lines make a UserError. Python runs this file at the start of every process that the tests start.

A line that raises another exception counts if a UserError is made of it. Each new line goes at once to a file of the process in the folder REGARD_USER_ERRORS, so that a killed process loses none.
"""

import importlib.machinery
import os
import sys

FOLDER = "REGARD_USER_ERRORS"
OPEN = open  # a test may replace it
FRAMES = 4  # a helper may make the error that its caller raises
CAUSE = -1  # in the place of a depth: the line raised what a UserError is made of
RECORDED: set[str] = set()


def record_calls(errors) -> None:
    """Make UserError note the lines of regard that make it."""
    package = os.path.dirname(errors.__file__) + os.sep

    def initialize(self, *arguments) -> None:
        Exception.__init__(self, *arguments)
        frame = sys._getframe(1)
        for depth in range(FRAMES):
            if frame is not None:
                record(package, depth, frame.f_lineno, frame.f_code.co_filename)
                frame = frame.f_back
        for cause in causes(sys.exc_info()[1]):
            trace = cause.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None:
                record(package, CAUSE, trace.tb_lineno, trace.tb_frame.f_code.co_filename)

    errors.UserError.__init__ = initialize


def record(package: str, depth: int, number: int, name: str) -> None:
    line, folder = f"{depth} {number} {name}\n", os.environ.get(FOLDER)
    if folder and name.startswith(package) and line not in RECORDED:
        RECORDED.add(line)
        with OPEN(os.path.join(folder, str(os.getpid())), "a", encoding="utf-8") as file:
            file.write(line)


def causes(error):
    """The exception that is being handled, and those it is made of; of pydantic's, those of its validators."""
    if error is None:
        return
    yield error
    yield from causes(error.__cause__)
    if type(error).__name__ == "ValidationError":
        for each in error.errors(include_url=False):
            yield from causes(each.get("ctx", {}).get("error"))


class Hook:
    """An importer that calls `record_calls` when regard.errors has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "regard.errors":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_record(module) -> None:
            execute(module)
            record_calls(module)

        spec.loader.exec_module = execute_and_record
        return spec


if FOLDER in os.environ:
    sys.meta_path.insert(0, Hook())
