"""The one door through which files are made: private to this account, whole or not there; and folders held alone.

Every file is 0600 and every folder 0700, whatever the umask. A folder that is there already and that others may use is
refused, with the command that mends it: who made it wide may have had a reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from io import FileIO
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from veilgraph.core.arguments import argument
from veilgraph.core.errors import ConfigError, RunError, VeilgraphError
from veilgraph.core.validation import problem_of

Form = TypeVar("Form")

_FILE: Final = 0o600
_FOLDER: Final = 0o700
_OTHERS: Final = 0o077
_TEMPORARY_BYTES: Final = 8
_TEMPORARY: Final = re.compile(rf"\..+\.[0-9a-f]{{{2 * _TEMPORARY_BYTES}}}")
_LOCK_POLL_S: Final = 0.1
adapter_of: Final[Callable[[Any], TypeAdapter[Any]]] = cache(TypeAdapter)  # a millisecond each
SLOW_LOCK_S: Final = 15.0
"""After so long whoever waits for a folder is told."""

log = logging.getLogger("veilgraph")


def fresh_path(name: str) -> Path:
    """Choose an unused path for a run without a directory: ``runs/<name>-<date>-<time>``, numbered if it is taken."""
    stem = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    others = (stem.with_name(f"{stem.name}-{number}") for number in count(2))
    return next(path for path in chain([stem], others) if not path.exists())


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file's content as a whole, mode 0600: ``whole_file`` for bytes in memory."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that takes ``path``'s place when the block ends, mode 0600; a kill leaves old or new."""
    with _whole(path) as (file, _):
        yield file


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Make a file as ``whole_file`` does, and give its path, for a library that opens and writes it by itself."""
    with _whole(path) as (_, temporary):
        yield temporary


@contextmanager
def _whole(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is there already and is no file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(_TEMPORARY_BYTES)}")
    try:
        with os.fdopen(descriptor_of(temporary, os.O_WRONLY | os.O_EXCL), "wb") as file:
            yield file, temporary
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # where nothing can be written nothing can be removed, and that is not what failed
            temporary.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a full disk does not say which file, and a temporary one is nobody's
        raise


def remove_temporary_files(folder: Path) -> None:
    """Removes what killed processes left of files that ``whole_file`` was writing; nobody writes in the folder now."""
    for path in folder.rglob(".*"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def new_file(path: Path, *, buffering: int = -1) -> BinaryIO:
    """A file that was not there, to write; 0600. Raises ``FileExistsError``, also for a link that leads nowhere."""
    return os.fdopen(descriptor_of(path, os.O_WRONLY | os.O_EXCL), "wb", buffering=buffering)


def append(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Append to a file, made at need, mode 0600; with ``sync`` the content is on the disk when this returns."""
    with os.fdopen(descriptor_of(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def appended_file(path: Path) -> FileIO:
    """A file to write at the end of, unbuffered, made at need; 0600, whatever it was before, and no link."""
    return FileIO(str(path), "ab", opener=lambda name, _: descriptor_of(Path(name), os.O_WRONLY | os.O_APPEND))


def resolve_unlinked(path: Path) -> Path:
    """Resolve the links in a path; ``ConfigError`` for a file of several hard links, each with a ledger beside it."""
    real = path.resolve()
    names = real.stat().st_nlink if real.is_file() else 1
    if names > 1:
        raise ConfigError(
            f"{path} has {names} names (hard links), and the ledger lies beside the file. Remove the others, or make "
            "them symbolic links, which lead to the same ledger",
            code="hard-links",
            value=names,
        )
    return real


def private_folder(path: Path) -> Path:
    """The folder, made at need with those above it, each 0700; one that is there is left as it is."""
    if not path.is_dir():
        private_folder(path.parent)
        with suppress(FileExistsError):
            path.mkdir(mode=_FOLDER)
            path.chmod(_FOLDER)  # a umask may have taken from the owner too
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is there already and is no folder")
    return path


def fresh_folder(path: Path) -> Path:
    """Make ``path`` a private folder, or take an empty one; ``RunError`` if it has content or is open to others."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists and is not an empty directory; choose another {argument('out')} or remove it")
    check_private(private_folder(path))
    return path


def make_private(path: Path) -> None:
    """Remove all permissions of others, the group too, from a folder and all in it; symbolic links are skipped."""
    for found in (path, *path.rglob("*")):
        if not found.is_symlink():
            found.chmod(found.stat().st_mode & ~_OTHERS & 0o777)


def check_private(path: Path) -> None:
    """Refuse a folder, with all in it, that others may use or that is another account's; what is above it may be wide.

    A link of this account may lead to it; what is in it may not be one. The ``RunError`` names the first such file, and
    the command that mends it.
    """
    try:
        if path.is_symlink():
            _check_owner(path, path.lstat(), path)
        _check_private_entry(path, path.stat(), path)
        for folder, folders, files in os.walk(path, onerror=_raise_unless_missing):
            for name in (*folders, *files):
                found = Path(folder, name)
                with suppress(FileNotFoundError):  # another process has just renamed or removed it
                    _check_private_entry(found, found.lstat(), path)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); give a folder of this account") from error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _check_private_entry(found: Path, status: os.stat_result, of: Path) -> None:
    """Raise ``RunError`` for a link, an entry of another account, or one that others may use, in the folder ``of``."""
    _check_owner(found, status, of)
    if stat.S_ISLNK(status.st_mode):
        raise RunError(f"{found} is a link, which leads out of {of}; put in its place what it points to")
    if status.st_mode & _OTHERS:
        raise RunError(
            f"{found}: others than its owner may use it (mode {stat.S_IMODE(status.st_mode):03o}), and it is private; "
            f"mend it with: chmod -R go= {shlex.quote(str(of))}"
        )


def _check_owner(found: Path, status: os.stat_result, of: Path) -> None:
    if status.st_uid != os.geteuid():
        raise RunError(
            f"{found} belongs to another account (user {status.st_uid}, this is {os.geteuid()}), which may read and"
            f" change it; give one of this account, or mend it with: chown -R {os.geteuid()} {shlex.quote(str(of))}"
        )


@contextmanager
def locked(folder: Path, refusal: str, *, wait_s: float = 0.0) -> Iterator[int]:
    """Hold an exclusive lock on a folder in the block; the system releases it when the process ends, however it ends.

    Yields its descriptor: processes that inherit it hold the lock too. Waits at most ``wait_s`` seconds. Raises
    ``RunError``: with the message ``refusal`` where another holds it; or the file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder, refusal, wait_s)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, refusal: str, wait_s: float) -> None:
    """Lock, trying for ``wait_s`` seconds; where that is infinite, wait and log a warning after ``SLOW_LOCK_S``."""
    deadline = time.monotonic() + wait_s
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if math.isinf(wait_s):
                break
            if time.monotonic() >= deadline:
                raise RunError(refusal)
            time.sleep(_LOCK_POLL_S)
        waits = "%s: another process holds it, for more than %g s; it is waited for, so look whether that is stopped"
        said = threading.Timer(SLOW_LOCK_S, log.warning, (waits, folder, SLOW_LOCK_S))
        said.daemon = True
        said.start()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        finally:
            said.cancel()
    except OSError as error:
        raise RunError(f"{folder}: cannot be locked ({error}); have it on a disk whose files can be") from error


def descriptor_of(path: Path, flags: int) -> int:
    """Open a file with ``flags``, made at need, mode 0600 from its first moment on, no symbolic link; a descriptor."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != _FILE:
            os.fchmod(descriptor, _FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def os_errors_as(
    kind: type[VeilgraphError],
    what: str,
    way_out: str,
    *also: type[Exception],
    **about: Any,  # noqa: ANN401
) -> Iterator[None]:
    """Turn ``OSError`` and ``also`` in the block into ``kind``, with a message of ``what``, the error and a way out."""
    caught: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except caught as error:
        raise kind(f"{what} ({error}); {way_out}", **about) from error


@contextmanager
def run_errors(path: Path | str, way_out: str, fault: str = "damaged") -> Iterator[None]:
    """Turn errors of reading and parsing ``path`` in the block into a ``RunError`` of ``fault``, why and way out."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        why = problem_of(error)[-1] if isinstance(error, ValidationError) else error
        raise RunError(f"{path}: {fault} ({why}); {way_out}") from error


def read_json(path: Path, form: type[Form], way_out: str, fault: str = "damaged") -> Form:
    """Read a JSON file as a ``form``, any type that pydantic validates; ``RunError`` as ``run_errors``."""
    with run_errors(path, way_out, fault):
        return cast("Form", adapter_of(form).validate_json(path.read_bytes()))


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Write ``content`` as a JSON file, by ``write_whole``."""
    write_whole(path, json.dumps(content, indent=indent).encode())


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's content, which need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that files made or replaced there are still there after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
