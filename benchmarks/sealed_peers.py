"""Cora's whole sealed job beside general secure computation, in one run: ``python -m benchmarks.sealed_peers``.

An epoch of SecureGNN under SPU, which ``make spu`` installs; everything on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.sealed import Ran, ran
from benchmarks.wires import installed
from research.q3 import secure_settings
from research.secure_gnn import secure_epochs
from research.secure_gnn_spu import spu_python
from veilgraph.core.types import PartyId
from veilgraph.graph.dataset import load_parties
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.samples.shipped import shipped_job, with_overrides

_EPOCHS, _TIMEOUT_S = 4, 3600
_BY_NOBODY = {"trust": "nobody", "model.network": "linear"}


@dataclass(frozen=True)
class PeerRuns:
    """Seconds, and bytes of the holder that sends most.

    Attributes:
        dealt, undealt: whole jobs, the usual one and ``nobody``'s with one network; a dealer's bytes are not counted.
        epoch_s, epoch_bytes: of SecureGNN's under SPU.
    """

    dealt: tuple[float, int]
    undealt: tuple[float, int]
    epoch_s: float
    epoch_bytes: int


def measure() -> PeerRuns:
    """Ours, SecureGNN, and ours again."""
    jobs = [sealed(with_overrides(shipped_job("cora-sealed"), more)) for more in ({}, _BY_NOBODY)]
    vertical = with_overrides(shipped_job("cora"), {"seed": jobs[0].seed})
    names = jobs[0].data.names
    with installed(names):
        first = [ran(job) for job in jobs]
        secure = secure_epochs(
            secure_settings(vertical),
            load_parties(vertical.data, vertical.seed),
            vertical.data.label_party,
            vertical.seed,
            spu_python(),
            _TIMEOUT_S,
            epochs=_EPOCHS,
            public_adjacency=False,
        )
        second = [ran(job) for job in jobs]

    def both(one: Ran, other: Ran) -> tuple[float, int]:
        sent: Mapping[PartyId, int] = one.summary["sent_bytes"]
        return mean([one.whole_s, other.whole_s]), max(sent[holder] for holder in names)

    dealt, undealt = (both(*runs) for runs in zip(first, second, strict=True))
    return PeerRuns(dealt, undealt, median(secure.seconds), secure.sent_bytes)


def section(found: PeerRuns) -> list[str]:
    """The table, in Markdown."""
    rows = {
        "sealed, dealt, whole": found.dealt,
        "`trust: nobody`, `linear`, whole": found.undealt,
        "SecureGNN under SPU (SEMI2K), an epoch": (found.epoch_s, found.epoch_bytes),
    }
    lines = ["| Cora, two holders | seconds | MB, of the holder that sends most |", "|---|---|---|"]
    return lines + [f"| {name} | {seconds:.1f} | {sent / 1e6:,.0f} |" for name, (seconds, sent) in rows.items()]


if __name__ == "__main__":
    print("\n".join(section(measure())))
