"""What a job will cost before it runs, and how many bytes of one sender's can wait unread in an honest session.

Both follow from public sizes alone. What can wait is a bound, several times what the largest message of a kind takes:
no honest session comes near, and a sender that floods a party is noticed while that is still small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph, pairs_once
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.mailbox import BOOKKEEPING_BYTES, SLACK_BYTES
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.facets import InputRules

NO_RULES: Final = InputRules()


@dataclass(frozen=True)
class PartySizes:
    """Sizes of a holder's data, which costs follow from; ``neighbours``: the most edges of a node, None if unknown.

    ``nodes`` counts its own, where it has some; ``shared``: other holder → edges to that one's nodes, where known.
    """

    columns: int
    edges: int
    training: int = 0
    classes: int = 0
    validation: int = 0
    neighbours: int | None = None
    nodes: int = 0
    shared: Mapping[PartyId, int] = field(default_factory=dict)


def pairs_of(graph: PartyGraph, rules: InputRules) -> Tensor:
    """Return a graph's edges as pairs of nodes, each pair once, without loops: int64 [2, E].

    Where another holder has the edges across holders (``rules.across``), only the pairs among its own nodes.
    """
    edges, _ = pairs_once(graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]])
    return edges if rules.across in (None, graph.party) else edges[:, (edges < graph.common).all(0)]


def size_of(graph: PartyGraph, rules: InputRules = NO_RULES, ids: Sequence[str] = ()) -> PartySizes:
    """Count a holder's sizes over common nodes or, where edges may join its own nodes to others', over its own.

    Over its own nodes each pair counts once, in the direction in which more end at them, and at a node both ways. A
    holder without nodes counts others' nodes. ``ids`` of its rows say whose nodes its edges join.
    """
    part = graph.common_part()
    training = 0 if part.train_mask is None else int(part.train_mask.sum())
    classes = part.num_classes or (0 if part.labels is None else int(part.labels.max()) + 1)
    validation = 0 if part.val_mask is None else int(part.val_mask.sum())
    edges, most, shared = part.num_edges, math.ceil(part.most_edges_at_a_node()), Counter[PartyId]()
    if rules.joins_others:
        own, pairs = graph.common or graph.num_nodes, pairs_of(graph, rules)
        ways = [ends[ends < own].bincount(minlength=own) for ends in pairs]
        edges, most = max(int(way.sum()) for way in ways), int((ways[0] + ways[1]).max())
        across = pairs_once(pairs.sort(0).values)[0] if rules.joins_undirected else pairs
        counts = across.amax(0).bincount(minlength=graph.num_nodes)[own:].tolist()
        for name, count in zip(ids[own:], counts, strict=bool(ids)):
            shared[name.split("/", 1)[0]] += count
    return PartySizes(part.num_features, edges, training, classes, validation, most, graph.common, shared)


JUDGEMENT_BYTES: Final = HEADER_BYTES + 2  # what a label holder tells one party of an evaluation: best so far? stop?
REPEATED: Final = ("training", "rounds", "evaluations")  # stages whose bytes are sent over again in every epoch


@dataclass(frozen=True)
class Stage:
    """A part of a job: its ``rounds`` of messages between holders, and party → bytes sent, headers included."""

    name: str
    rounds: int
    sent: Mapping[PartyId, int]


@dataclass(frozen=True)
class Costs:
    """What a job costs, stage by stage.

    ``memory``: party → bytes held at once, about; {} if unknown. ``notes``: what is assumed.
    """

    stages: Sequence[Stage]
    memory: Mapping[PartyId, int]
    notes: Sequence[str] = ()

    @property
    def rounds(self) -> int:
        """Rounds of all stages."""
        return sum(stage.rounds for stage in self.stages)

    def sent(self) -> dict[PartyId, int]:
        """Party → bytes of all stages."""
        parties = dict.fromkeys(party for stage in self.stages for party in stage.sent)
        return {party: sum(stage.sent.get(party, 0) for stage in self.stages) for party in parties}

    def seconds(self, bits_per_second: float, round_trip_s: float) -> float:
        """Time on the network alone: all parties send at once, and every round waits for half a round trip."""
        return 8 * max(self.sent().values()) / bits_per_second + self.rounds * round_trip_s / 2


def total_bytes(*parts: tuple[Mapping[PartyId, int], int]) -> dict[PartyId, int]:
    """Add up to party → bytes; each part is party → bytes of messages, and how often these are sent."""
    total: dict[PartyId, int] = {}
    for sent, times in parts:
        for party, count in sent.items():
            total[party] = total.get(party, 0) + times * count
    return total


ITEM_BYTES: Final = 8
PASSES: Final = 2
_BLOCKS: Final = 4  # of operands of the secure product, which holders prepare two ahead


def unread_of_passes(
    hellos: Mapping[PartyId, Hello], *, width: int, dim: int, rounds: int, batch_size: int | None = None
) -> int:
    """Bound the bytes of one sender that can wait unread in passes over common nodes, ``batch_size`` or all a step.

    ``width`` is of a round's widest matrix, ``dim`` of an embedding; a pass has so many ``rounds``.
    """
    nodes, features = max(hello.nodes for hello in hellos.values()), [hello.features for hello in hellos.values()]
    matrix = ITEM_BYTES * nodes * width
    once = 2 * ITEM_BYTES * nodes * max(features) + _BLOCKS * ITEM_BYTES * dim * sum(features)
    batches = 1 if batch_size is None else math.ceil(nodes / batch_size)
    messages = 2 * rounds + 6
    return SLACK_BYTES + once + PASSES * messages * (matrix + BOOKKEEPING_BYTES * batches)
