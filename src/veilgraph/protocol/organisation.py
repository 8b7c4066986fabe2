"""What an organisation brings to a job, what it accepts of it, and what it has once its tables are read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.files import file_digest, os_errors_as
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import Link, PartyId
from veilgraph.graph.build import BuiltGraph
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.consent import Consent
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.party_settings import PartySettings, party_folder, read_party_settings
from veilgraph.tables.drift import Profile
from veilgraph.tables.encode import FeatureEncoding


@dataclass(frozen=True)
class Organisation:
    """What one organisation brings: its party file, from whose folder the tables' paths start.

    ``consent`` is to this job, where jobs are counted: across organisations.
    """

    settings: PartySettings
    folder: Path
    consent: Consent | None = None

    @classmethod
    def read(cls, path: Path, party: PartyId) -> Organisation:
        """Read the party file of ``party``; raises ``ConfigError`` if it is another party's or breaks a rule."""
        settings = read_party_settings(path)
        if settings.party != party:
            raise ConfigError(
                f"{path}: party={settings.party!r}, and this party of the job is {party!r}; give its file"
            )
        return cls(settings, party_folder(path))

    def digest(self) -> str:
        """SHA-256 of how its tables are read and of the tables; raises ``DataError`` if one cannot be read."""
        found = hashlib.sha256(self.settings.hashed().encode())
        for name in self.settings.files:
            path = self.folder / name
            with os_errors_as(DataError, f"{path}: cannot be read", "give the path of a table"):
                found.update(bytes.fromhex(file_digest(path)))
        return found.hexdigest()


@dataclass(frozen=True)
class Preparation:
    """What a party makes its graph of, from ``streams`` that are the same in every session of a run.

    ``organisation`` is None at the server; ``encoding`` and ``then`` (profiles of tables) are of an earlier training.
    ``known`` are ids that were common in an earlier alignment, which this one goes on from; empty where it is in full,
    and at the server. ``grows``: whether any holder has ids that it had not then.
    """

    link: Link
    job: JobSettings
    streams: LearningStreams
    organisation: Organisation | None = None
    encoding: FeatureEncoding | None = None
    then: Sequence[Profile] = ()
    known: Sequence[str] = ()
    grows: bool = True


@dataclass(frozen=True)
class Prepared:
    """What reading the tables anew gives a party; ``built`` is None at the server.

    ``identity`` is the same at all parties and in no other session; ``facts`` are to be kept beside it.
    """

    identity: str
    facts: Mapping[str, object]
    built: BuiltGraph | None = None


@dataclass(frozen=True)
class Aligned:
    """What a party brings to a job once its tables are aligned or, in paradigm horizontal, collected.

    Attributes:
        identity: of the alignment or collection, the same at all parties; empty where there was none.
        graph: None at the server.
        ids: of the graph's rows; vertical: where they came from tables.
        class_names: at a holder with labels, where they came from tables.
        refuses: why this party does not go on with what the alignment gave.
        released_now: whether a release was made in this session, of which no checkpoint is.
        written: the ids as the holder's own table has them, where that is known and not as compared.
    """

    identity: str = ""
    graph: PartyGraph | None = None
    ids: Sequence[str] | None = None
    class_names: tuple[str, ...] | None = None
    refuses: str = ""
    released_now: bool = False
    written: Sequence[str] = ()
