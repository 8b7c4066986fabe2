"""The relations of a party's edges: what each is called, and how far it reaches. They stay at the party."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.given import kind_of
from veilgraph.graph.rules import refuse

MOST_HOPS: Final = 32
"""As many as a local model has at most."""

DTYPE: Final = torch.int16
_DTYPES: Final = (torch.int16, torch.int32, torch.int64)
_MOST: Final = 2**15


@dataclass(frozen=True)
class Relation:
    """One of a party's relations.

    Attributes:
        name: the party's own; never told to others.
        hops: edges of it count within so many hops of a node, from 0; None: as far as the job's local model looks.
            Of a relational local model, no other knows it.
    """

    name: str
    hops: int | None = None


EVERY: Final = Relation("edges")
"""All edges of a graph whose relations are not told apart."""


def are_told_apart(relations: Sequence[Relation]) -> bool:
    """Whether a graph keeps which edge is of which: there are two or more, or one does not reach as far as any."""
    return len(relations) > 1 or any(relation.hops is not None for relation in relations)


def check_relations(party: str, relations: object, edge_relation: Tensor | None, num_edges: int) -> None:
    """Names that differ, hops from 0 to ``MOST_HOPS``, and of every edge which relation it is of.

    Args:
        party: whose.
        relations: as ``PartyGraph`` has them.
        edge_relation: Tensor[E] of whole numbers, or None.
        num_edges: E.

    Raises:
        DataError: the first rule that is broken.
    """
    if not isinstance(relations, tuple) or not all(isinstance(each, Relation) for each in relations):
        refuse(party, "relations", f"{kind_of(relations)} must be a tuple of Relation", "give one, or leave it out")
    if len(relations) > _MOST:
        refuse(party, "relations", f"{len(relations)} are more than {_MOST:,}", "make fewer of them")
    names = [relation.name for relation in relations]
    for relation in relations:
        _check(party, relation, names.count(relation.name))
    if (edge_relation is None) != (not relations):
        refuse(
            party,
            "edge_relation",
            f"{'missing' if edge_relation is None else 'given'} beside {len(relations)} relations",
            "give both, or none",
        )
    if edge_relation is None:
        return
    if edge_relation.dtype not in _DTYPES or tuple(edge_relation.shape) != (num_edges,):
        refuse(
            party,
            "edge_relation",
            f"{edge_relation.dtype} {list(edge_relation.shape)} must be whole numbers [{num_edges}]",
            "say of every edge which relation it is of",
        )
    outside = (edge_relation < 0) | (edge_relation >= len(relations))
    if bool(outside.any()):
        edge = int(outside.nonzero()[0])
        refuse(
            party,
            "edge_relation",
            f"value {int(edge_relation[edge])} of edge {edge} lies outside 0..{len(relations) - 1}",
            "mend it, or name the relation",
        )


def _check(party: str, relation: Relation, times: int) -> None:
    name, hops = relation.name, relation.hops
    if not isinstance(name, str) or not name:
        refuse(party, "relations", f"name={name!r} must be a text that is not empty", "give one")
    if times > 1:
        refuse(party, "relations", f"{name!r} is there {times} times, and names differ", "make one of them")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops <= MOST_HOPS):
        refuse(
            party,
            "relations",
            f"hops={hops!r} of {name!r} must be a whole number from 0 to {MOST_HOPS}",
            "give one, or leave it out",
        )


def packed(relations: Sequence[Relation]) -> str:
    """As JSON."""
    return json.dumps([asdict(relation) for relation in relations])


def unpacked(text: str) -> tuple[Relation, ...]:
    """The inverse of ``packed``.

    Raises:
        ValueError: it is none.
    """
    try:
        return tuple(Relation(**each) for each in json.loads(text))
    except TypeError as error:
        raise ValueError(f"its relations are damaged: {error}") from error
