"""What the rows of a job's paradigm come to: which are of two parties, what they reveal, why, of whom, how bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import permutations
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.registered import PARADIGMS
from veilgraph.protocol.revelations import Told
from veilgraph.protocol.rows import Row


def rows_of(job: JobSettings, sender: PartyId, receiver: PartyId) -> list[Row[Any]]:
    """What a job's messages from one party to another carry."""
    return [row for row in _rows_of(job) if row.ends.fit(job, sender, receiver) and row.of(job)]


def causes(job: JobSettings, party: PartyId | None = None) -> dict[str, str]:
    """Name of what a job's settings make it reveal → these settings, in the order of its paradigm's rows.

    Args:
        job: the job.
        party: of whose data it has to tell others something; None: of anybody's.
    """
    true = {told for row in _rows(job) for told in row.reveals}
    found = dict[str, str]()
    for told in _told(_rows_of(job)):
        if told in true and (party is None or party in told.whose(job)) and (cause := told.cause(job)):
            found.setdefault(told.name, cause)
    return found


def bounded(job: JobSettings) -> frozenset[str]:
    """Names of what comes of a job's noised values alone, so that a finite ε bounds what it tells."""
    rows = list(_rows(job))
    bare = {told.name for row in rows if not row.is_bounded for told in row.reveals}
    return frozenset(told.name for row in rows for told in row.reveals) - bare


def wider(job: JobSettings) -> dict[str, str]:
    """Name → that of what tells the same and more, of all that jobs of its paradigm may reveal."""
    return {told.name: told.part_of for told in _told(_rows_of(job)) if told.part_of}


def statements(job: JobSettings) -> dict[str, str]:
    """Name → who learns what, of all that jobs of its paradigm may reveal."""
    return {told.name: told.statement for told in _told(_rows_of(job))}


@cache
def all_revelations() -> Mapping[str, str]:
    """Name → who learns what, of all paradigms that are installed.

    Raises:
        ConfigError: two call different things by one name, or a package cannot be loaded.
    """
    found = dict[str, str]()
    for paradigm in PARADIGMS:
        for told in _told(PARADIGMS[paradigm].rows):
            if found.setdefault(told.name, told.statement) != told.statement:
                raise ConfigError(
                    f"paradigm={paradigm!r} calls something else {told.name!r} than another does, and parties "
                    "accept revelations by name; rename it in that package, or remove the package"
                )
    return MappingProxyType(found)


def _rows_of(job: JobSettings) -> tuple[Row[Any], ...]:
    rows: tuple[Row[Any], ...] = PARADIGMS[job.paradigm].rows
    return rows


def _told(rows: Iterable[Row[Any]]) -> list[Told[Any]]:
    return list(dict.fromkeys(told for row in rows for told in row.reveals))


def _rows(job: JobSettings) -> Iterator[Row[Any]]:
    """Rows of any two parties of a job."""
    pairs = list(permutations((*job.data.names, SERVER), 2))
    for row in _rows_of(job):
        if row.of(job) and any(row.ends.fit(job, *pair) for pair in pairs):
            yield row


def _known(name: str) -> str:
    if name not in (known := all_revelations()):
        raise ValueError(f"no paradigm that is installed reveals anything by this name; choose of {', '.join(known)}")
    return name


RevelationName = Annotated[str, AfterValidator(_known)]
"""A name that an installed paradigm reveals something by."""
