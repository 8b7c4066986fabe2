"""What an embedding job found, as plain values and as a page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from veilgraph.core import __version__
from veilgraph.report.tables import environment
from veilgraph_embeddings.assess import Assessment
from veilgraph_embeddings.directory import FROM_EDGES
from veilgraph_embeddings.making import Made
from veilgraph_embeddings.settings import EmbedJob
from veilgraph_embeddings.world import World

_VERSION = 1
_TEMPLATE = "embedding.html.j2"
PROOF = (
    "Adversarial training proves nothing: an attacker with another model or more known values may find more than the "
    "attacks here. Only the method noise has a guarantee, and it is the ε that is stated with it."
)
"""What every report says of its figures."""
PASSING = (
    "The release is in the ledger of this run alone: another run on the same data costs as much again, and nothing "
    "counts both. A party file, a saved graph and ledger= have one for life."
)
"""What a report says of a release that no other run knows of."""


def report_of(job: EmbedJob, world: World, made: Made, *, lasting: bool = False) -> dict[str, Any]:
    """The report as plain values, for ``report.json``; ``lasting``: whether a ledger for life was paid."""
    return {
        "version": _VERSION,
        "veilgraph": __version__,
        "job": job.name,
        "method": job.method.name,
        "words": job.method.kind.words,
        "proof": PROOF,
        "keep": {"name": world.keep.name, "classes": list(world.keep.classes)},
        "hide": {"name": world.hide.name, "classes": list(world.hide.classes)},
        "counts": made.held,
        "edges_public": job.data.edges_public,
        "proxies": [asdict(each) for each in made.proxies],
        "facts": dict(made.embedded.facts),
        "ledger": [asdict(each) for each in made.embedded.paid],
        "ledger_note": PASSING if made.embedded.paid and not lasting else "",
        "before": figures(made.before),
        "after": figures(made.after),
    }


def figures(found: Assessment) -> dict[str, Any]:
    """An assessment as plain values, with the strongest attack and the best use by name."""
    return {
        "hide": [asdict(each) for each in found.hide],
        "keep": [asdict(each) for each in found.keep],
        "links": None if found.links is None else asdict(found.links),
        "attack": asdict(found.attack),
        "useful": asdict(found.useful),
    }


def card_of(job: EmbedJob, made: Made) -> dict[str, Any]:
    """What is published beside the embeddings: nothing that was computed from what is hidden."""
    card: dict[str, Any] = {
        "veilgraph": __version__,
        "method": job.method.name,
        "dim": int(made.embedded.rows.shape[1]),
        "nodes": int(made.embedded.rows.shape[0]),
        "words": job.method.kind.words,
    }
    if not job.method.kind.is_private:
        card["columns_from_edges"] = [FROM_EDGES]
    if made.embedded.paid:
        told = ("epsilon", "delta", "standard_deviation")
        card["guarantee"] = {name: made.embedded.facts[name] for name in told} | {
            "about": [f"one {each.unit}, {each.neighbours}: ε = {each.total:.4g}" for each in made.embedded.paid]
        }
    return card


def page_of(report: dict[str, Any]) -> str:
    """The report as one HTML page that loads nothing; what comes from data is escaped."""
    rows = {
        "attacks": _beside(report["before"]["hide"], report["after"]["hide"], "advantage"),
        "uses": _beside(report["before"]["keep"], report["after"]["keep"], "accuracy"),
    }
    return environment().get_template(_TEMPLATE).render(report=report, version=__version__, figure=_figure, **rows)


def _beside(before: list[dict[str, Any]], after: list[dict[str, Any]], name: str) -> list[tuple[str, str, str]]:
    return [(one["family"], _figure(one[name]), _figure(other[name])) for one, other in zip(before, after, strict=True)]


def _figure(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "too few edges"
    return f"{interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"
