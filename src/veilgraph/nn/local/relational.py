"""GraphSAGE's mean of each relation by itself, with weights of its own (after Schlichtkrull et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.graph.relations import EVERY, Relation
from veilgraph.nn.linear import linear
from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency, first_rows


class RelationalSettings(LocalSettings):
    """How its weights start."""

    start: Literal["glorot", "average"] = Field(
        "glorot", description="first weights: random, or those of the mean of a node and its R relations' means"
    )


class RelationalHop(nn.Module):
    """W_0·h_v + Σ_r W_r·MEAN({h_u : u → v of relation r}) (Schlichtkrull et al. 2018, eq. 2, c_{i,r} their degree).

    A relation's mean is weighted where its edges have weights, and zero for a node without an edge of it. With one
    relation this is sage-mean.

    Args:
        dim: d.
        relations: names of those that it looks at.
        averages: start from W_0 = I/2 and W_r = I/(2R) in place of random weights.
    """

    def __init__(self, dim: int, relations: Sequence[str], *, averages: bool = False) -> None:
        super().__init__()
        together = linear((1 + len(relations)) * dim, dim, bias=False).weight.detach()
        own, *others = (part.clone() for part in together.chunk(1 + len(relations), dim=1))
        if averages:
            nn.init.eye_(own).div_(2)
            for weight in others:
                nn.init.eye_(weight).div_(2 * len(others))
        self.own = nn.Parameter(own)
        self.related = nn.ParameterDict(
            {_key(name): nn.Parameter(w) for name, w in zip(relations, others, strict=True)}
        )
        self._relations = tuple(relations)

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One hop."""
        result = first_rows(h, adjacency.num_targets) @ self.own.t()
        for name in self._relations:
            neighbours = adjacency.of_relation(name).mean(h)
            result = torch.addmm(result, neighbours, self.related[_key(name)].t())
        return result


def _key(name: str) -> str:
    """What a relation's weight is called: a text of which torch takes every one."""
    return "relation " + name.replace("%", "%25").replace(".", "%2E")


class Relational(HopModel[RelationalSettings]):
    """K hops of it; a relation that reaches fewer takes part in the last of them alone.

    Args:
        relations: of the holder's graph; none where they are not told apart.
    """

    settings = RelationalSettings
    words: ClassVar[str] = "the mean of its neighbours, relation by relation (R-GCN)"
    is_relational: ClassVar[bool] = True
    draws: ClassVar[bool] = False

    def __init__(
        self,
        settings: RelationalSettings,
        dim: int,
        holders: int,
        *,
        normalize: bool,
        relations: Sequence[Relation] = (),
    ) -> None:
        hops = [self._hop(settings, dim, relations or (EVERY,), left) for left in range(settings.hops, 0, -1)]
        super().__init__(settings, dim, holders, normalize=normalize, hops=hops)

    @override
    @staticmethod
    def hop(settings: RelationalSettings, dim: int, holders: int) -> nn.Module:
        return Relational._hop(settings, dim, (EVERY,), 1)

    @staticmethod
    def _hop(settings: RelationalSettings, dim: int, relations: Sequence[Relation], left: int) -> nn.Module:
        """The hop after which ``left`` − 1 follow: edges of it count ``left`` hops from a node."""
        reaching = [each.name for each in relations if each.hops is None or each.hops >= left]
        return RelationalHop(dim, reaching, averages=settings.start == "average")
