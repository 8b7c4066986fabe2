"""What a job on one machine begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job import JobSettings
from veilgraph.tables.frames import Tables


@dataclass(frozen=True)
class Inputs:
    """A job and its holders' graphs.

    Attributes:
        settings: the job as it is kept in the run directory.
        graphs: one per holder; none where each holder reads tables.
        ids: holder → its rows' ids, where rows are not the same nodes.
        tables: holder → tables that it brought in memory, which the run keeps for it.
    """

    settings: JobSettings
    graphs: Sequence[PartyGraph] = ()
    ids: Mapping[PartyId, Sequence[str]] = field(default_factory=dict)
    tables: Mapping[PartyId, Tables] = field(default_factory=dict)
