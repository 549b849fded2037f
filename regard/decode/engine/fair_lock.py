"""A lock for a loop of short steps, so that other threads get in between two of them."""

from threading import Lock, get_ident


class FairLock:
    """A reentrant lock. A thread that waits for it comes before the one that has just released it."""

    def __init__(self) -> None:
        self._turn, self._lock = Lock(), Lock()  # the thread that is next holds `_turn`
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        if self._owner != get_ident():
            with self._turn:
                self._lock.acquire()
            self._owner = get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()
