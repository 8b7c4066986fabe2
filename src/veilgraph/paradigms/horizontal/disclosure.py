"""What a horizontal job sends and reveals."""

from __future__ import annotations

from veilgraph.core.revelations import Revelation
from veilgraph.core.types import PartyId
from veilgraph.paradigms.horizontal.network import first_is_fixed, learning_layers
from veilgraph.paradigms.horizontal.settings import HorizontalJob


def facts(job: HorizontalJob, sender: PartyId) -> dict[str, bool]:
    """What rows of the table of messages may depend on."""
    settings = job.horizontal
    return {
        "paired": True,
        "horizontal": True,
        "secure-max": settings.combine == "secure-max",
        "each in the clear": settings.combine != "secure-max",
        "pooled": settings.pools,
        "added up": not settings.pools,
        "degrees": settings.aggregate == "mean",
        "edge lists": settings.edges == "deduplicate",
        "raw features": settings.message == "none",
        "fixed first layer": first_is_fixed(settings),
        "more layers": settings.layers > 1,
        "more layers back": len(learning_layers(settings)) > 1,
        "from reporter": sender == job.data.label_party,
    }


def reveals(job: HorizontalJob) -> dict[Revelation, str]:
    """What a job reveals → the settings that cause it."""
    settings, paradigm = job.horizontal, "paradigm=horizontal"
    aggregate, combine = f"horizontal.aggregate={settings.aggregate}", f"horizontal.combine={settings.combine}"
    causes: dict[Revelation, str] = {"embedding-maxima" if settings.pools else "embedding-sums": aggregate}
    if settings.combine != "secure-max":
        causes["single-embeddings"] = combine
    if settings.aggregate == "mean":
        causes |= {"pooled-degrees": aggregate, "single-degrees": aggregate}
    causes["training-rows"] = paradigm
    causes["node-lists"] = paradigm
    if settings.edges == "deduplicate":
        causes["edge-lists"] = "horizontal.edges=deduplicate"
    if settings.message == "none":
        causes["raw-features"] = "horizontal.message=none"
    if settings.layers > 1:
        causes["edge-gradients"] = f"horizontal.layers={settings.layers}"
    causes |= {"global-embeddings": paradigm, "weight-gradients": paradigm, "label-tallies": paradigm}
    if len(job.data.names) == 2:
        causes["single-summands"] = f"{paradigm}, 2 holders"
    if job.data.from_tables and job.data.feature_scaling == "standard":
        causes["column-statistics"] = "data.feature_scaling=standard"
    return causes
