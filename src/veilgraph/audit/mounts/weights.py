"""Features of other holders, from the first opened h^0 and what the adversary can compute of the initial W."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from veilgraph.audit.attack import Attack
from veilgraph.audit.attacks.known_weights import (
    MAX_NUMBERS,
    exact_share,
    matched_rows,
    solver,
    without_own,
)
from veilgraph.audit.case import Case
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.mounts.features import attacked, known_nodes, ranks
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import PUBLIC_SEEDS, LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.features import to_scipy
from veilgraph.paradigms.vertical.initial.method import init_std, init_weight
from veilgraph.paradigms.vertical.settings import vertical

_MOST_NODES: Final = 400
_FEWEST_NODES: Final = 50
_BEGINNINGS: Final = ("train", "restart")


def recovered(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """W of the job's seed, where the holders learn from that, or the part of W that the adversary drew itself."""
    seen = evidence.messages[0]
    members, names = case.holders_of(adversary), case.settings.data.names
    begun = case.run.party(members[0]).views()[seen.session].stem.partition("-")[2] in _BEGINNINGS
    if not begun or seen.tag.step:
        raise DataError("the view does not have the h0 of the initial W; audit a run whose first pass was recorded")
    known = _Known.of(case, members)
    others = [name for name in names if name not in members]
    weights = {name: known.weights(name) for name in names}
    attributes, (auxiliary, asked) = attacked(case, target), known_nodes(case, target)
    own = np.concatenate([_rows(case, member, asked) for member in members], axis=1)
    own_weights = np.concatenate([weights[member] for member in members])
    columns = sum(len(weights[name]) for name in others)
    most = min(_MOST_NODES, MAX_NUMBERS // columns) if known.is_all else len(own)
    if most < _FEWEST_NODES:
        raise DataError(f"the other holders have {columns} columns, too many to solve for {_FEWEST_NODES} nodes")
    nodes = np.flatnonzero(~auxiliary[asked])  # of those asked; the other attacks on features are scored on the same
    if len(nodes) > most:
        nodes = np.sort(np.random.default_rng(case.seed).choice(nodes, size=most, replace=False))
    rest = without_own(evidence.steps[0][asked], own, own_weights, others=len(known.seeds) < len(names))[nodes]
    solve = solver(own) if known.is_all else matched_rows
    found = solve(rest, np.concatenate([weights[name] for name in others]))
    start = sum(len(weights[name]) for name in others[: others.index(target)])
    found = found[:, start : start + len(weights[target])]
    truth = _rows(case, target, np.flatnonzero(asked)[nodes])
    exact = f" Of {len(nodes)} sampled rows, {exact_share(found, truth):.0%} came out exactly." if known.is_all else ""
    return Outcome(
        np.concatenate([ranks(found[:, each.column]) for each in attributes]),
        np.concatenate([each.values[asked][nodes] for each in attributes]),
        note=f"{len(attributes)} columns, of which nothing is known. {known.words}{exact}",
    )


def _rows(case: Case, party: PartyId, nodes: NDArray[Any]) -> Floats:
    """A holder's features of some nodes, dense."""
    features = case.graph(party).features
    if features.layout == torch.sparse_csr:
        return np.asarray(to_scipy(features)[nodes].toarray(), dtype=np.float64)
    return np.asarray(features.double().numpy()[nodes])


@dataclass(frozen=True)
class _Known:
    """What a holder can compute of the initial W; how many columns others have, every party has stated.

    Attributes:
        case: for settings, public facts and the adversary's own seeds.
        seeds: holder → its learning seed, as far as the adversary has it or guesses it.
        is_all: whether W is all there, if the seeds are right.
    """

    case: Case
    seeds: dict[PartyId, int]
    is_all: bool

    @classmethod
    def of(cls, case: Case, members: Sequence[PartyId]) -> _Known:
        own = {member: case.run.party(member).seed() for member in members}
        public = dict.fromkeys(case.settings.data.names, case.settings.seed)
        if max(own.values()) < PUBLIC_SEEDS:
            return cls(case, public | own, is_all=True)
        return cls(case, own if _is_collaborative(case) else public | own, is_all=False)

    @property
    def words(self) -> str:
        """What it is."""
        if self.is_all:
            return "W is computed from the job's seed, which all holders learn from."
        part = "the part of W that it drew itself" if _is_collaborative(self.case) else "a W of the job's seed, a guess"
        return f"Seeds are private: with {part}."

    def weights(self, owner: PartyId) -> Floats:
        """The known part of the initial W of a holder's columns, [F_owner, d]."""
        settings, case = self.case.settings, self.case
        columns = {name: case.graph(name).features.shape[1] for name in settings.data.names}
        std = init_std(vertical(settings).model.initial, sum(columns.values()), vertical(settings).model.dim)
        if _is_collaborative(case):
            drawers, std = self.seeds, std / len(columns) ** 0.5
        else:
            drawers = {owner: self.seeds[owner]}
        drawn = [
            init_weight(LearningStreams(seed, drawer), owner, columns[owner], vertical(settings).model.dim, std).numpy()
            for drawer, seed in drawers.items()
        ]
        return np.asarray(np.sum(drawn, axis=0))


def _is_collaborative(case: Case) -> bool:
    return vertical(case.settings).model.initial.method == "collaborative"


RECOVERED: Final = Attack("features", ("initial",), recovered)
