"""What whoever guesses the parties' seeds has: their first weights, and out of the first h^0 their features."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.stats import rankdata

from veilgraph.audit.case import Case
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.mounts.features import attacked
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.mpc.embed import SUM_BITS, init_std, init_weight
from veilgraph.mpc.ring import fractional_bits

_NOTE: Final = (
    "Known are the job's settings alone, its seed among them, from which every party learns that has not drawn a "
    "private one, as with --private-seeds and in runs across organisations."
)


def from_public_seed(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """The first h^0 divided by the weights that follow from the job's seed.

    h^0 = Σ xⁱWⁱ; the adversary takes its own part off, and its guess is the least squares solution for what is left.
    The weights of a party that learns with a private seed are others, and the guess is noise.

    Raises:
        DataError: h^0 is not one that the first weights made.
    """
    settings, names = case.settings, case.settings.data.names
    if not evidence.steps or not evidence.words.startswith("the initial embeddings h0"):
        raise DataError("this is no first h0 of a run, which initial weights made")
    columns = {name: case.graph(name).num_features for name in names}
    std = init_std(settings.model.initial, sum(columns.values()), settings.model.dim)
    shared = settings.model.initial.method == "collaborative"

    def weight(owner: PartyId) -> Floats:
        """All parties add to it where it is shared."""
        givers, own_std = (names, std / len(names) ** 0.5) if shared else ((owner,), std)
        streams = [LearningStreams(settings.seed, giver) for giver in givers]
        return np.asarray(
            np.sum(
                [init_weight(each, owner, columns[owner], settings.model.dim, own_std).numpy() for each in streams],
                axis=0,
            )
        )

    others = [name for name in names if name != adversary]
    mine = case.graph(adversary).features.to_dense().double().numpy() @ weight(adversary)
    left = evidence.steps[0] * _unit(case) - mine
    stacked = np.concatenate([weight(name) for name in others])
    guess = left @ np.linalg.pinv(stacked)
    start = sum(columns[name] for name in others[: others.index(target)])
    attributes = attacked(case, target)
    scores = [rankdata(guess[:, start + each.column]) / len(guess) for each in attributes]
    return Outcome(np.concatenate(scores), np.concatenate([each.values > 0 for each in attributes]), note=_NOTE)


def _unit(case: Case) -> float:
    """Of h^0, whose fractional bits all holders know; passes take all sums to have those of ``secure-sum``."""
    initial, graphs = case.settings.model.initial, [case.graph(name) for name in case.settings.data.names]
    if initial.method == "secure-sum":
        return 1.0
    stated = initial.feature_bits
    bits = max(fractional_bits(each.features) for each in graphs) if stated is None else stated
    return 2.0 ** (SUM_BITS - 2 * bits - initial.gradient_bits)
