"""What a job on one machine begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import LimitSettings
from veilgraph.tables.frames import Tables


@dataclass(frozen=True)
class LedgerPlace:
    """Where the ledger is of all that a holder without a party file ever released, and by what it knows nodes.

    Attributes:
        folder: of the ledger.
        party: whose it is.
        ids: of the rows of the holder's graph; None where nobody told its nodes apart, and everybody pays.
        limits: what it may come to, where its folder is to say so from now on.
    """

    folder: Path
    party: str
    ids: Sequence[str] | None = None
    limits: LimitSettings | None = None


@dataclass(frozen=True)
class Inputs:
    """A job and its holders' graphs.

    Attributes:
        settings: the job as it is kept in the run directory.
        graphs: one per holder; none where each holder reads tables.
        ids: holder → its rows' ids, where rows are not the same nodes.
        tables: holder → tables that it brought in memory, which the run keeps for it.
        ledgers: holder → its ledger for life, where it brings a graph and has one.
        passing: holders that pay from the ledger of this run alone.
    """

    settings: JobSettings
    graphs: Sequence[PartyGraph] = ()
    ids: Mapping[PartyId, Sequence[str]] = field(default_factory=dict)
    tables: Mapping[PartyId, Tables] = field(default_factory=dict)
    ledgers: Mapping[PartyId, LedgerPlace] = field(default_factory=dict)
    passing: Sequence[PartyId] = ()
