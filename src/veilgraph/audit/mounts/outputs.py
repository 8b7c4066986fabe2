"""Features of a holder from outputs of the whole network, through a model of it that is learned from some rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from veilgraph.audit.attack import Attack
from veilgraph.audit.attacks.equations import fit_model, log_ratios, solve_equations
from veilgraph.audit.attacks.generative import generated_columns
from veilgraph.audit.case import Case
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.mounts.edges import rows_of
from veilgraph.audit.mounts.features import KNOWN, attacked, known_nodes, own_inference, ranks
from veilgraph.audit.roc import Floats, Truth
from veilgraph.core.types import PartyId


def solved(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """A linear model of the outputs, fitted on the known nodes, is solved for the others' columns."""

    def found(own: Floats, columns: Floats, outputs: Floats, known: Truth) -> Floats:
        return solve_equations(fit_model(own, columns, outputs, known), own, outputs)

    return _inferred(found, (evidence, case, adversary, target))


def generated(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """A generator makes the columns that a model, learned on the known nodes, puts the outputs out for."""

    def found(own: Floats, columns: Floats, outputs: Floats, known: Truth) -> Floats:
        return generated_columns(own, columns, outputs, known, seed=case.seed)

    return _inferred(found, (evidence, case, adversary, target))


def _inferred(
    infer: Callable[[Floats, Floats, Floats, Truth], Floats], of: tuple[Evidence, Case, PartyId, PartyId]
) -> Outcome:
    evidence, case, adversary, target = of
    attributes, (auxiliary, asked) = attacked(case, target), known_nodes(case, target)
    columns, known = np.stack([each.values[asked] for each in attributes], axis=1).astype(np.float64), auxiliary[asked]
    outputs = log_ratios(rows_of(evidence)) if evidence.sort == "posteriors" else rows_of(evidence)
    own = case.own_rows(adversary, target)
    mine = np.empty((len(known), 0)) if own is None else own[asked]
    found = infer(mine, columns, outputs[asked], known)[~known]
    return Outcome(
        np.concatenate([ranks(found[:, place]) for place in range(columns.shape[1])]),
        np.concatenate([columns[~known, place] > 0 for place in range(columns.shape[1])]),
        without=own_inference(case, adversary, target),
        note=f"{len(attributes)} columns, each known of {KNOWN:.0%} of the nodes, from which a model of the network is "
        "learned: nobody has its weights. Without: a classifier on the own features.",
    )


SOLVED: Final = Attack("features", ("embedding", "initial", "posteriors"), solved)
GENERATED: Final = Attack("features", ("embedding", "posteriors"), generated)
