"""Files that are whole or not there, and folders that one process holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilgraph.core.errors import RunError


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a kill leaves the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def locked(folder: Path, refusal: str, *, wait: bool = False) -> Iterator[None]:
    """Holds a folder for this process; the system lets go of it when the process ends, however it ends.

    Args:
        folder: to hold.
        refusal: what to say if another process holds it.
        wait: until the other lets go, which is to be soon.

    Raises:
        RunError: with ``refusal``.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise RunError(refusal) from error
        yield
    finally:
        os.close(descriptor)
