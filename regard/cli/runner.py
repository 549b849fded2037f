"""Run a typer application: prepare the streams, parse, call, and turn every exception into a sentence and exit code."""

import difflib
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import typer

from ..errors import UserError
from ..files import format_output
from ..progress import show_progress
from .arguments import AFTER_DASHES, QUIET, take_quiet


class Terminated(BaseException):
    """SIGTERM or SIGHUP, as KeyboardInterrupt is Ctrl-C: what is being written is removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_app(application: typer.Typer, program: str, arguments: list[str]) -> int:
    """Run one command of a typer application.

    Exit codes: 0 success, 1 a bug in regard, 2 an error of the user, 128 + number a signal (Ctrl-C 130, SIGTERM 143).
    """
    usage = typer.BadParameter.__base__  # click's UsageError; versions of typer keep click in different places
    assert usage is not None
    prepare_streams()
    warnings.showwarning = lambda message, *_: print(f"regard: {message}", file=sys.stderr)
    try:
        with signals_as_exceptions():
            invoke(application, program, arguments)
            sys.stdout.flush()
        return 0
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        discard_output()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return report_interrupt(signal.SIGINT)
    except Terminated as end:
        return report_interrupt(end.number)
    except UserError as error:
        return print_error(str(error))
    except OSError as error:
        return print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if isinstance(error, usage):
            return print_error(usage_message(error))
        if is_out_of_memory(error):
            return print_error(
                "not enough memory; lower decode.batch, decode.strategy.size, decode.max_tokens or train.tokens, or "
                "use a smaller model"
            )
        message = f"{type(error).__name__}: {format_output(str(error))}"
        print_error(f"this is a bug in regard: {message} (REGARD_TRACEBACK=1 shows where)")
        if os.environ.get("REGARD_TRACEBACK") == "1":
            traceback.print_exception(error)
        return 1


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """In this context SIGTERM and SIGHUP raise Terminated; a signal that is ignored (`nohup`) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise Terminated(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in numbers}
    previous = {number: before for number, before in previous.items() if before != signal.SIG_IGN}
    try:
        for number in previous:
            signal.signal(number, handle)
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


def report_interrupt(number: int) -> int:
    """Flush the output, report the stop, and return the exit code of the signal."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            discard_output()
    print_error("stopped")
    return 128 + number


def discard_output() -> None:
    """Discard buffered output: Python would report the closed pipe when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def prepare_streams() -> None:
    """Use UTF-8 in any locale. A stream that was closed before the start is None; replace it by an empty one."""
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BytesIO())
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BytesIO())
    sys.stderr = sys.stderr or io.TextIOWrapper(io.BytesIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def invoke(application: typer.Typer, program: str, arguments: list[str]) -> None:
    """Parse and call a command. Click's own `main` would handle a closed pipe and Ctrl-C differently."""
    command: Any = typer.main.get_command(application)
    command._main_shell_completion({}, program)  # a shell asks for completions, and this ends the process
    arguments = take_quiet(arguments)
    commands = getattr(command, "commands", None)
    with_value = {name for option in command.params if not getattr(option, "is_flag", False) for name in option.opts}
    verb = find_verb(arguments, with_value)
    if commands is not None and verb is not None and verb not in commands:
        near = difflib.get_close_matches(verb, commands, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(commands)}"
        raise UserError(f"there is no verb {verb!r}; {hint}")
    AFTER_DASHES.set(len(arguments) - 1 - arguments.index("--") if "--" in arguments else 0)
    with show_progress(QUIET.get()), command.make_context(program, arguments or ["--help"]) as context:
        command.invoke(context)


def find_verb(arguments: list[str], with_value: set[str]) -> str | None:
    """The first argument that is neither an option nor the value of one."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return next(
        (argument for before, argument in pairs if not argument.startswith("-") and before not in with_value), None
    )


def usage_message(error: Any) -> str:
    """The message of a click UsageError in the form of regard's own."""
    sentence = format_output(error.format_message()).rstrip(".")
    verb = error.ctx.command_path if error.ctx else "regard"
    return f"{sentence[:1].lower()}{sentence[1:]}; `{verb} --help` shows what is expected"


def is_out_of_memory(error: Exception) -> bool:
    """True for MemoryError, CUDA's OutOfMemoryError, and torch's messages about CPU memory and overflowing sizes."""
    messages = ("can't allocate memory", "not enough memory", "size calculation overflowed", "multiplication overflow")
    named = type(error).__name__ == "OutOfMemoryError"
    return named or isinstance(error, MemoryError) or any(message in str(error) for message in messages)


def print_error(message: str) -> int:
    """Print each line of a message to stderr and return exit code 2."""
    for line in message.splitlines():
        print(f"regard: {line}", file=sys.stderr)
    return 2
