"""A job with ``averaging.symbols`` in sentences, and what it sends."""

from __future__ import annotations

from collections.abc import Mapping

from veilgraph.core.text import TRUST, listed
from veilgraph.core.types import PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.paradigms.horizontal.node_lists import HASH_BYTES
from veilgraph.paradigms.sealed.inputs import padded
from veilgraph.protocol.costs import Costs, PartySizes, Stage
from veilgraph_averaging.settings import AveragingJob


def describe_symbols(job: AveragingJob) -> list[str]:
    """Say who has what, what is sent, and what it shows to whom."""
    given, private = job.averaging.symbols, job.label_privacy
    assert given is not None
    assert private is not None
    who = (
        "Training nodes alone have one, and others learn which of the nodes at such edges these are."
        if given.answers == "trained"
        else "Every node has one: who is not trained on says the same class, so that ε covers that as well."
    )
    return [
        f"{listed(job.data.names)} have nodes of their own with labels, and edges between them, also to nodes of each "
        "other.",
        "Two holders tell each other hashes of the edges between their nodes: each learns which of those that it has "
        "the other has as well.",
        "For each such edge a holder sends one byte, the symbol of its own end: that node's label under randomised "
        f"response with ε {private.epsilon:g}, drawn once. {who}",
        "No features, edges, weights or scores are sent. Each holder weighs at home, on its own validation nodes, what "
        "symbols say beside its own model, and leaves them out where they do not help.",
        TRUST,
    ]


def costs_of_symbols(sizes: Mapping[PartyId, PartySizes]) -> Costs:
    """Return the most that a job sends, with every edge across confirmed."""
    listed_bytes, symbol_bytes = dict[PartyId, int](), dict[PartyId, int]()
    for holder, own in sizes.items():
        each = [own.shared.get(other, 0) for other in sizes if other != holder]
        listed_bytes[holder] = sum(HEADER_BYTES + HASH_BYTES * padded(count) for count in each)
        symbol_bytes[holder] = sum(HEADER_BYTES + count for count in each)
    notes = ["at most: pairs of nodes with edges both ways, and edges that one holder lacks, are fewer"]
    return Costs([Stage("edges", 1, listed_bytes), Stage("symbols", 1, symbol_bytes)], {}, notes)
