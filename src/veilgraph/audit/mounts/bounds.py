"""A lower bound on ε as a finding, and the total of a ledger that it is held against."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from numpy.typing import NDArray

from veilgraph.audit.attacks.epsilon import Claims, one_run_epsilon
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding
from veilgraph.audit.statistics import Interval
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.inserted import Inserted
from veilgraph.run.ledgers import LEDGER_SUMMARY

_CONFIDENCE: Final = 0.95


def claimed(case: Case, holder: PartyId) -> float | None:
    """The total ε of a holder's ledger; None where that is infinite.

    Raises:
        DataError: its ledger is not here.
    """
    path = case.run.party_path(holder) / LEDGER_SUMMARY
    if not path.is_file():
        raise DataError("its ledger is not here")
    total = json.loads(path.read_text(encoding="utf-8")).get("epsilon_total")
    return None if total is None else float(total)


def inserted_at(case: Case, holder: PartyId) -> Inserted:
    """A holder's canaries in its data, as its run kept them.

    Raises:
        DataError: they are not here.
    """
    kept = case.run.party(holder).canaries()
    if kept is None:
        raise DataError("its canaries are not here")
    return Inserted.of(case.settings, holder, case.graph(holder).num_nodes, bytes, kept.key)


def paid(case: Case, holder: PartyId) -> int:
    """How many releases a holder's ledger has.

    Raises:
        DataError: its ledger is not here.
    """
    path = case.run.party_path(holder) / LEDGER_SUMMARY
    if not path.is_file():
        raise DataError("its ledger is not here")
    return sum(json.loads(path.read_text(encoding="utf-8"))["releases"].values())


def withstands(case: Case, members: Collection[PartyId]) -> bool:
    """Whether what ledgers claim is claimed against these parties together.

    Args:
        case: of the run.
        members: of a coalition with the server.
    """
    settings = case.settings
    if settings.shares_noise is not None:
        return len({*members} & {*settings.publishing}) <= settings.shares_noise[1]
    if settings.training_plan is not None:
        return True
    return len(members) == 1 or not vertical(settings).model.initial.is_joint


def bound_finding(
    adversary: PartyId,
    holder: PartyId,
    evidence: str,
    scores: NDArray[Any],
    coins: NDArray[Any],
    *,
    delta: float,
    gaussian: bool,
    limit: float | None,
    claim: str,
    claims: Claims | None = None,
) -> Finding:
    """What an adversary's scores of canaries prove of a holder's ε (``attacks.epsilon``).

    Args:
        adversary: who has the evidence.
        holder: whose canaries they are.
        evidence: in words.
        scores: [m], higher = in.
        coins: [m] bool.
        delta: of the ε.
        gaussian: whether all noise is Gaussian, for the sharper bound.
        limit: the ε that is claimed; None for none.
        claim: what the limit is, a sentence.
        claims: of a ledger whose releases are not Gaussian, for a sharper bound as well.

    Raises:
        DataError: scores and coins do not fit each other.
    """
    bound = one_run_epsilon(scores, coins, delta, _CONFIDENCE, gaussian=gaussian, claims=claims)
    return Finding(
        adversary,
        holder,
        "noise",
        "epsilon",
        evidence,
        permitted=True,
        measure="epsilon",
        value=Interval(bound.epsilon, bound.epsilon, bound.ceiling, _CONFIDENCE),
        accuracy=bound.correct / bound.guesses,
        limit=limit,
        note=f"ε is at least this with {_CONFIDENCE:.0%} confidence; {bound.correct} of {bound.guesses} guesses are "
        f"right; more than {bound.ceiling:.3g} could not have been proven. {claim}",
    )
