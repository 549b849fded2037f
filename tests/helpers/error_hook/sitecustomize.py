"""Record which lines make a UserError. Python runs this file at the start of every process that the tests start.

Each new line goes at once to a file of the process in the folder REGARD_USER_ERRORS, so that a killed process loses none.
"""

import importlib.machinery
import os
import sys

FOLDER = "REGARD_USER_ERRORS"
FRAMES = 4  # a helper may make the error that its caller raises
RECORDED: set[str] = set()


def record_calls(errors) -> None:
    """Make UserError note the lines of regard that make it."""
    package = os.path.dirname(errors.__file__) + os.sep

    def initialize(self, *arguments) -> None:
        Exception.__init__(self, *arguments)
        frame = sys._getframe(1)
        for depth in range(FRAMES):
            if frame is None or not (folder := os.environ.get(FOLDER)):
                return
            name = frame.f_code.co_filename
            line = f"{depth} {frame.f_lineno} {name}\n"
            if name.startswith(package) and line not in RECORDED:
                RECORDED.add(line)
                with open(os.path.join(folder, str(os.getpid())), "a", encoding="utf-8") as file:
                    file.write(line)
            frame = frame.f_back

    errors.UserError.__init__ = initialize


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
