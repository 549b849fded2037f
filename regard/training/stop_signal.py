"""Signals that end a training in order: Ctrl-C, SIGTERM, and SIGHUP of a closed terminal."""

import os
import signal
import sys
import threading
from types import FrameType

STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class StopSignal:
    """In this context the first of these signals requests a stop after the current step; a second ends at once.

    `nohup` stays in force: an ignored SIGHUP stays ignored.
    """

    def __init__(self, announce: bool = False) -> None:
        self.number, self.announce = 0, announce  # the first signal received
        self._previous: dict[int, signal._HANDLER] = {}

    @property
    def requested(self) -> bool:
        return self.number > 0

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if self.announce:  # not by print, which may be interrupted while it writes
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            words = f"\n{name}: stopping after this step, then saving; once more ends at once, without saving\n"
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, words.encode())

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
