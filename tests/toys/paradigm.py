"""A paradigm, and what the audit makes of it, as another package has them: docs/architecture.md says how."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from veilgraph.audit.sources.vertical import VerticalSource
from veilgraph.core.types import Kind
from veilgraph.paradigms.vertical.paradigm import Vertical
from veilgraph.paradigms.vertical.rows import ROWS
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.revelations import Told
from veilgraph.protocol.rows import TO_SERVER, Exposed, Row

HUMMED: Told[VerticalJob] = Told(
    "toy-hum",
    "The server hears that a toy hums.",
    lambda job: f"model.dim={job.model.dim}",
    lambda job: [job.data.label_party],
)
HUM = Exposed("embedding", "what {sender} hums in round {round}")


class ToyJob(VerticalJob):
    paradigm: Literal["toy"] = "toy"  # type: ignore[assignment]


class Toy(Vertical):
    title = "toy: a paradigm of another package"
    rows = (*ROWS, Row(Kind.MASKED, TO_SERVER, "a hum", "mask", "It hums.", (HUMMED,), exposed=HUM))

    @override
    def describe(self, job: VerticalJob) -> list[str]:
        return ["Somebody else says how this works.", *super().describe(job)]


TOY = Toy()
SOURCE = VerticalSource()
