"""Whether an organisation accepts a job: by its limits, by what the job can cost it, and by how its tables are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from veilgraph.core.types import Link, PartyId
from veilgraph.protocol.agreement import Hello, agree_with_people
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import joined, refusal
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.tables.column_settings import beyond_own_row, declared_values, scaled_twice
from veilgraph.tables.settings import (
    NO_EDGE_FEATURES,
    EdgeSettings,
    beyond_own_edge,
    says_hops,
    says_weights,
    shared_values,
)

OF_OTHER_TASKS: Final = "is for task values (averaging, horizontal) or graphs (averaging); choose that, or leave it out"

_BEFORE: Final = 1  # round of the first agreement; that on shapes and checkpoints is 0


def refusal_of(own: Organisation, job: JobSettings, nodes: int | None = None, *, named: bool = False) -> str | None:
    """Why an organisation refuses a job, by its limits or by how its tables become features; None if it accepts.

    ``nodes`` are common ones, where known. ``named`` adds names of its columns, which others must not see.
    """
    party = own.settings.party
    if own.settings.has_nodes == (party == job.inputs.across):
        return (
            f"its party file has {'' if own.settings.has_nodes else 'no '}nodes, and the job names "
            f"{job.inputs.across or 'no holder'} as the one without nodes: mend across (paradigm union), or the party "
            "file"
        )
    if own.settings.machines is not None and (reason := paradigm_of(job).session.unspreadable(job)) is not None:
        return reason
    if reason := _refusal_of_edges(job, party, own.settings.edges) or _refusal_of_nodes(own, job, named=named):
        return reason
    features, scaling = own.settings.nodes.features, job.data.feature_scaling
    if reason := scaled_twice(features, scaling, named=named) or _outside_range(own, job):
        return reason
    if party in job.inputs.per_node and (reasons := beyond_own_row(features, scaling, named=named)):
        why = "ε is of one node's features, which must be made of that node's own row alone: "
        return joined([why + "; ".join(reasons)])
    besides = paradigm_of(job).privacy.disclosed_by_tables(job, features)
    return refusal(own.settings.limits, job, party, nodes, besides=besides)


def _refusal_of_nodes(own: Organisation, job: JobSettings, *, named: bool) -> str | None:
    nodes = own.settings.nodes
    if own.settings.party in _protecting_edges(job) and (made := nodes.features_from_edges):
        which = f" ({', '.join(made)})" if named else ""
        return (
            f"nodes.features has {len(made)} of nodes.columns_from_edges{which}, which show edges at any ε, and "
            "this job's ε protects edges: leave them out of nodes.features"
        )
    for name, key in (("targets", "target"), ("membership", "graph")):
        if name not in job.inputs.of_nodes and getattr(nodes, key) is not None:
            return f"nodes.{key} {OF_OTHER_TASKS}"
    return None


def _outside_range(own: Organisation, job: JobSettings) -> str:
    """Why the features that its party file declares do not fit the range in which nodes perturb them; or "".

    Rows are not looked at: jobs of one range after another would find the largest value there is.
    """
    release, values = job.noise.feature_release, declared_values(own.settings.nodes.features)
    if release is None or own.settings.party not in job.duties.releasing or values is None:
        return ""
    if release.low <= values[0] and values[1] <= release.high:
        return ""
    return (
        f"{release.setting}: its party file lets features lie outside low={release.low:g} to high={release.high:g}: "
        "set low to 0 and high to 1, or wider where it fills in other values for missing ones"
    )


def _refusal_of_edges(job: JobSettings, party: PartyId, edges: Sequence[EdgeSettings]) -> str | None:
    if not job.inputs.is_relational and (reason := says_hops(edges)) is not None:
        return reason
    if not job.inputs.weights and (place := says_weights(edges)) is not None:
        left_out = "leave weight out of the party file's edges"
        way_out = left_out if job.privacy else f"set model.edge_weights: true, or {left_out}"
        return f"{place} gives edges weights, and model.edge_weights=false says that all count alike; {way_out}"
    if not job.inputs.edge_features and any(each.features for each in edges):
        return f"edges.features: {NO_EDGE_FEATURES}"
    if party in job.inputs.per_edge and (reasons := beyond_own_edge(edges)):
        why = "ε is of one edge, whose weight must be made of that edge's own row alone: "
        return joined([why + "; ".join(reasons)])
    if (party in _protecting_edges(job) or party in job.inputs.per_node) and (reasons := shared_values(edges)):
        return joined(["ε is of edges that one node's rows make alone: " + "; ".join(reasons)])
    return None


def _protecting_edges(job: JobSettings) -> tuple[PartyId, ...]:
    """The holders whose edges an ε of this job protects, alone or with their nodes."""
    of_edges = job.training_plan is not None or (job.privacy is not None and "edge" in job.privacy.unit)
    return job.duties.noising if of_edges else ()


def agree_on_job(
    link: Link,
    settings: JobSettings,
    party: PartyId,
    organisation: Organisation | None,
    refuses: str = "",
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> dict[PartyId, Hello]:
    """Agree on the release, the job, and that every party accepts it, before anything of the data is sent.

    Where jobs are counted, this one is from here on, unless a party refuses. Where a person is asked, it waits here.
    ``organisation`` is None at the server, or without party files; ``refuses`` is a reason of its own, ``stated`` are
    further fields of its ``Hello``. Raises ``ConfigError``: a party refuses, at every party with the same reason.
    """
    reasons = [refuses, "" if organisation is None else refusal_of(organisation, settings)]
    mine = Hello(job=settings.hash(), refuses=joined(reasons), **stated)
    consent = None if organisation is None else organisation.consent
    if consent is None or mine.refuses:
        return agree_with_people(link, settings.data.names, mine, lambda wait_s: "", settings.timeout_s, _BEFORE)
    with consent.job() as used_up:
        mine = mine.model_copy(update={"refuses": used_up, "waits": consent.asks and not used_up})
        return agree_with_people(link, settings.data.names, mine, consent.answer, settings.timeout_s, _BEFORE)
