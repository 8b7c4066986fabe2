"""A paradigm, and what the audit makes of it, as another package has them: docs/guides/extending.md says how."""

from dataclasses import replace
from typing import Literal

from typing_extensions import override

from veilgraph.core.types import Kind
from veilgraph.paradigms.vertical.audit import VerticalSource
from veilgraph.paradigms.vertical.paradigm import VERTICAL, VerticalWords
from veilgraph.paradigms.vertical.rows import ROWS
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.messages import TO_SERVER, Exposed, MessageSpec, Revelation

HUMMED: Revelation[VerticalJob] = Revelation(
    "toy-hum",
    "The server hears that a toy hums.",
    lambda job: f"model.dim={job.model.dim}",
    lambda job: [job.data.label_party],
)
HUM = Exposed("embedding", "what {sender} hums in round {round}")


class ToyJob(VerticalJob):
    paradigm: Literal["toy"] = "toy"  # type: ignore[assignment]


class ToyWords(VerticalWords):
    @override
    def describe(self, job: VerticalJob) -> list[str]:
        return ["Somebody else says how this works.", *super().describe(job)]


TOY = replace(
    VERTICAL,
    title="toy: a paradigm of another package",
    rows=(*ROWS, MessageSpec(Kind.MASKED, TO_SERVER, "a hum", "mask", "It hums.", (HUMMED,), exposed=HUM)),
    words=ToyWords(),
)
SOURCE = VerticalSource()
