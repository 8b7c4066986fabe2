"""What an audit reads of planted records: an auditor adds up all holders' shares, and has what A is told."""

from __future__ import annotations

import torch
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.types import PartyId
from veilgraph.paradigms.sealed.inputs import short_rows
from veilgraph.paradigms.sealed.plan import record_noise_of
from veilgraph.paradigms.sealed.records.bits import BITS
from veilgraph.paradigms.sealed.records.program import SUMS, WHITENING
from veilgraph.paradigms.sealed.records.rows import RecordNoise, feature_rows
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.protocol.canaries import RecordCanaries
from veilgraph.protocol.evidence import Audited


def told_of_canaries(job: SealedJob, run: Audited, holder: PartyId, canaries: RecordCanaries) -> Tensor:
    """What the label holder is told by a holder's columns of each canary's node that is not trained on: [m].

    Of a score it is that of the class which the canary's node that is trained on has.
    """
    nodes = canaries.places(holder)[:, 1]
    if canaries.of_bits:
        return _added_up(job, run, BITS)[nodes, canaries.owners.index(holder)]
    planted = canaries.into(run.graph(holder))
    multiplier, matrix = record_noise_of(job, planted.common), run.model(holder).get(WHITENING + holder)
    assert multiplier is not None
    if matrix is None:
        raise RunError(f"{holder}: its second moments are not there; give the files of a run that was trained")
    noise = RecordNoise(multiplier, planted.num_features)
    rows = feature_rows(short_rows(planted.features.to_dense().to(torch.float64)), matrix, noise)
    scores = rows[nodes] @ _added_up(job, run, SUMS + holder).to(torch.float64)
    labels = canaries.into(run.graph(job.data.label_party)).labels
    assert labels is not None
    of_class = labels[canaries.places(holder)[:, 0]]
    if scores.shape[1] == 1:  # of two classes, the second's, of which the first's residuals are below 0
        return torch.where(of_class == 1, scores[:, 0], -scores[:, 0])
    return scores.gather(1, of_class[:, None])[:, 0]


def _added_up(job: SealedJob, run: Audited, name: str) -> Tensor:
    """Add up all holders' saved shares of that name, modulo 2^64; ``RunError`` where one has none."""
    shares = [run.model(holder).get(name) for holder in job.data.names]
    if missing := [holder for holder, share in zip(job.data.names, shares, strict=True) if share is None]:
        raise RunError(f"{missing[0]}: it has no share of {name}; give the files of a run that was trained to its end")
    return torch.stack([share for share in shares if share is not None]).sum(0)
