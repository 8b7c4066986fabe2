"""What a person at a site is asked about: a file for each job that waits, held by the process that waits for it.

The person's answer names the SHA-256 of exactly what was shown, which holds the settings and a number that no other
request has: it answers nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import descriptor_of, private_folder
from veilgraph.protocol.consent_settings import Entry
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.journal import Journal, utc_now

REQUESTS: Final = "requests"
"""Folder beside the journal."""
_JOB_ID: Final = r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$"
MAX_REASON_CHARACTERS: Final = 200


class JobRequest(BaseModel):
    """What a submitted job asks of a party."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: str = Field(pattern=_JOB_ID)
    """The engine's id of it: a name of a file here."""
    work: str
    resume: bool
    settings: SerializeAsAny[JobSettings]


@dataclass(frozen=True)
class Waiting:
    """A job that waits for a person.

    Attributes:
        request: what it asks.
        asked: the number of the question.
        fingerprint: SHA-256 (hex) of both, as they were written.
    """

    request: JobRequest
    asked: str
    fingerprint: str


@contextmanager
def waiting(folder: Path, request: JobRequest, asked: str) -> Iterator[Waiting]:
    """Shows a request for as long as the block lasts or, where the process is killed, its process.

    Args:
        folder: of the site's journal.
        request: what is asked.
        asked: the number of the question, used once.

    Raises:
        RunError: the file cannot be written.
    """
    content = json.dumps({"asked": asked, **request.model_dump(mode="json")}, indent=1).encode()
    path = folder / REQUESTS / f"{request.job}.json"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        private_folder(path.parent)
        descriptor = descriptor_of(temporary, os.O_WRONLY | os.O_TRUNC)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); keep the kit where you may write") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever finds it free knows that nobody waits any more
        os.writev(descriptor, [content])
        temporary.replace(path)
        yield Waiting(request, asked, _sha256(content))
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def all_waiting(folder: Path) -> list[Waiting]:
    """The jobs that wait at a site, whose consent is in ``folder``; one that cannot be read is left out."""
    found = (_read(path) for path in sorted((folder / REQUESTS).glob("[!.]*.json")))
    return [each for each in found if each is not None]


def answer(folder: Path, shown: Waiting, *, approved: bool, reason: str = "") -> None:
    """Writes a person's answer to what was shown.

    Raises:
        ConfigError: the reason is too long or not one line.
        RunError: the journal cannot be written.
    """
    if len(reason) > MAX_REASON_CHARACTERS or not reason.isprintable():
        raise ConfigError(f"reason={reason[:20]!r}…: at most {MAX_REASON_CHARACTERS} printable characters on one line")
    entry = Entry(
        time=utc_now(),
        what="approved" if approved else "refused",
        of=shown.asked,
        job=shown.request.job,
        request=shown.fingerprint,
        reason=reason,
    )
    with Journal(folder).held() as journal:
        journal.append(entry)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> Waiting | None:
    """None where nobody waits, or nobody any more."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = file.read()
            else:
                return None
        shown = json.loads(content)
        asked, settings = str(shown.pop("asked")), parse_job(shown.pop("settings"))
        return Waiting(JobRequest(**shown, settings=settings), asked, _sha256(content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError):
        return None
