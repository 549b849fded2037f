"""The lock of a run folder: two processes cannot train one run."""

import errno
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..errors import UserError
from ..files import explain_os_error

FILE = ".lock"
_held: set[Path] = set()  # by this process: the system's locks do not exclude its other threads


class RunLock:
    """In this context no other process trains the run in `folder`.

    The operating system releases the lock when the process ends, even if it is killed. The file has the process id,
    for messages of other processes. A file that a killed process left behind is not locked and is reused.
    """

    def __init__(self, folder: Path, verb: str = "trained") -> None:
        """`verb` is the activity of the holder, for messages of other processes."""
        self.folder, self.path, self.verb = folder, folder.resolve() / FILE, verb
        self.handle = -1

    def __enter__(self) -> "RunLock":
        if self.path in _held:
            raise UserError(f"{self.folder} is being {self.verb} by this process already; choose another --out")
        try:
            while not self._lock():  # the file was removed by its holder between opening and locking
                pass
        except OSError as error:
            raise explain_os_error(error, self.path) from error
        _held.add(self.path)
        return self

    def _lock(self) -> bool:
        """Lock the file; True if the path still points to it."""
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _try_lock(self.handle):
                holder = os.read(self.handle, 200).decode(errors="replace") or "another process"
                problem = f"{self.folder} is being {self.verb} by {holder}"
                raise UserError(f"{problem}; wait until it ends, stop it, or choose another --out")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self.handle), os.stat(self.path)):
                    os.truncate(self.handle, 0)
                    os.write(self.handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
                    return True
        except BaseException:
            os.close(self.handle)
            raise
        os.close(self.handle)
        return False

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _held.discard(self.path)
        if sys.platform == "win32":  # an open file cannot be removed there
            os.close(self.handle)
        with suppress(OSError):  # a training that failed at its first step has removed the folder
            os.unlink(self.path)
        if sys.platform != "win32":  # removed while it is locked, so that it is not taken from another process
            os.close(self.handle)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        """Lock a byte far behind the text, so that others can read the text."""
        os.lseek(handle, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EDEADLK)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        """False if another process has the lock. On a file system without locks, training continues without one.

        Worker processes do not inherit the lock, so it ends with this process.
        """
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True
