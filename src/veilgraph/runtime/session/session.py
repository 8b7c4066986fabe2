"""What a party brings to a piece of work, and what it has open while it works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from veilgraph.core.trace import AnyTrace
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.identity import Identity
from veilgraph.nn.local.build import CustomModel
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.plain_fitting import LedgerPlace
from veilgraph.protocol.spreading import Machines
from veilgraph.runtime.session.exchange import RecordExchange
from veilgraph.runtime.store.lifetime import kept, lifetime_at, lifetime_of, limits_in
from veilgraph.runtime.store.run_directory import TABLES, PartyStore, RunDirectory
from veilgraph.runtime.store.session_log import TrafficLog

Work = Literal["align", "train", "resume", "predict", "audit"]
Auditor = Callable[[RunDirectory, PartyId, Link], None]
"""What a party does in an audit across organisations; the room of audits is above this one."""


@dataclass(frozen=True)
class SessionSpec:
    """What a party brings to a piece of work.

    Attributes:
        run: directory of the run.
        party: a holder or the server.
        work: align only; train from the start; resume from the newest common checkpoint; predict; or audit.
        custom: for ``model.local.model: custom``.
        organisation: the holder's own tables, where the job is from tables.
        machines: of the holder, where several share its local part.
        restarts: the party lets what it has trained be replaced, where the job cannot go on from it.
        identity: with which it signs its records; None on one machine, where nothing is signed.
        names: party → the name in its certificate, where that is another one.
        auditor: with ``work`` audit.
        marks: folder of what the party has seen of its lifetime ledger; None: its account's.
    """

    run: RunDirectory
    party: PartyId
    work: Work
    custom: CustomModel | None = None
    organisation: Organisation | None = None
    machines: Machines | None = None
    restarts: bool = False
    identity: Identity | None = None
    names: Mapping[PartyId, str] = field(default_factory=dict)
    auditor: Auditor | None = None
    marks: Path | None = None

    @property
    def settings(self) -> JobSettings:
        """The job."""
        return self.run.settings

    @cached_property
    def store(self) -> PartyStore:
        """The party's own part of the run."""
        return self.run.party(self.party)

    @cached_property
    def may_restart(self) -> bool:
        """Whether it would begin again from nothing, as things were when it was first asked."""
        return self.restarts or self.work == "predict" or not self.store.has_trained()

    @cached_property
    def lifetime(self) -> Lifetime | None:
        """The ledger of all that the party ever released; None where the job releases nothing, or it has none.

        Raises:
            ConfigError: the limits in its folder break a rule.
            RunError: it is damaged, older than it was, gone, or cannot be read or written.
        """
        if not adds_noise(self.settings):
            return None
        if self.organisation is not None:
            return None if self._brought_in_memory else lifetime_of(self.organisation, self.marks)
        return None if self.place is None else lifetime_at(self.place, self.marks)

    @cached_property
    def place(self) -> LedgerPlace | None:
        """Where the ledger is of a holder that brings a graph; None for none, and where a party file says it."""
        return None if self.organisation is not None or self.party == SERVER else kept(self.store)

    @property
    def _brought_in_memory(self) -> bool:
        """Whether its tables are the run's own copy, and no ledger was named: there is nothing beyond the run."""
        organisation = self.organisation
        assert organisation is not None
        own = organisation.folder == (self.run.party_path(self.party) / TABLES).resolve()
        return own and "ledger" not in organisation.settings.model_fields_set

    @property
    def limit(self) -> float | None:
        """The largest total ε that the party itself accepts."""
        if self.organisation is not None:
            return self.organisation.settings.limits.max_epsilon
        limits = None if self.place is None else limits_in(self.place.folder)
        return None if limits is None else limits.max_epsilon


@dataclass
class Session:
    """A party at work, in one session.

    Attributes:
        part: what it brings.
        link: to the others; what crosses it is counted and, where the run says so, kept and timed.
        record: of what it sends.
        evidence: statements of that, exchanged with the others.
        trace: where the time goes.
        publisher: the door through which anything of its data leaves, while it is open.
    """

    part: SessionSpec
    link: Link
    record: TrafficLog
    evidence: RecordExchange
    trace: AnyTrace
    publisher: Publisher = OPEN

    def tell(self) -> None:
        """Once nothing of its data will be sent any more: what it sent goes on record, and the others hear of it."""
        self.record.end_block(self.publisher.spent())
        self.evidence.tell(self.link)
