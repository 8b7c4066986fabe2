"""Whether votes of a sealed job have the noise that its ledgers count with, by the shares that all holders keep.

No party sees these votes. An auditor who has what all holders keep adds their shares up, and has the counts H = A·Y +
noise that every prediction is made of. What Y is, who votes for what, was opened to nobody and is not kept. But every
neighbour votes once, so that a row of A·Y adds up to the number of a node's neighbours, whatever they vote for: what is
left of the sums of rows is noise alone, of C entries each. Rows of nodes without neighbours are noise as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from veilgraph.audit.attacks.noise_level import Noisy, noise_level
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped
from veilgraph.audit.mounts.bounds import inserted_at
from veilgraph.audit.mounts.claims import claim_finding
from veilgraph.audit.passes import numbers
from veilgraph.core.errors import RunError, VeilgraphError
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.mpc.sealed.functions import BITS
from veilgraph.paradigms.sealed.entering import hidden_edges
from veilgraph.paradigms.sealed.networks.voting import VOTES
from veilgraph.paradigms.sealed.private import deviation_of, shrink
from veilgraph.paradigms.sealed.settings import sealed

_ROUNDING: Final = 0.1
"""Votes by which a row may differ for what is rounded, at most."""


def votes_noise(case: Case) -> Iterator[Finding | Skipped]:
    """The votes that predictions are made of now, against the noise that they should have.

    Args:
        case: of a sealed run with noise on edges.
    """
    job = sealed(case.settings)
    try:
        shares = [_share(case, holder) for holder in job.data.names]
        neighbours = sum((_neighbours(case, holder) for holder in job.publishing), torch.zeros(len(shares[0])))
    except VeilgraphError as error:
        yield Skipped(SERVER, "noise-level", str(error), "noise-level")
        return
    deviation = deviation_of(job, len(neighbours))
    if not deviation:
        yield Skipped(SERVER, "noise-level", "the job has no noise", "noise-level")
        return
    votes = torch.stack(shares).sum(dim=0).double() / 2**BITS / shrink(deviation)
    sums = votes.sum(dim=1, keepdim=True) - neighbours[:, None]
    releases = [Noisy(numbers(sums), deviation * votes.shape[1] ** 0.5, _ROUNDING)]
    if (neighbours == 0).any():
        alone = votes[neighbours == 0]  # each class by itself, for one may have another's noise
        releases += [Noisy(numbers(column[:, None]), deviation, _ROUNDING) for column in alone.T]
    found = noise_level(releases)
    who = " and ".join(job.publishing)
    words = f"votes over edges of {who}, of the shares that all holders keep, less the number of votes of a node"
    note = f"Of the noise {found.share:.3g} is there by the least of all estimates, at every node anew."
    yield claim_finding("noise-level", SERVER, job.publishing[0], "noise", words, found.p_value, note)


def _share(case: Case, holder: PartyId) -> Tensor:
    """What a holder keeps of the votes: Tensor[N, C] int64; all of them add up to these, modulo 2^64.

    Raises:
        RunError: it is not here.
    """
    path = case.run.party(holder).model_path
    tensors, _ = load_tensors(path)
    if VOTES not in tensors:
        raise RunError(f"{path}: it has no share of the votes; give the files of a run that was trained to its end")
    return tensors[VOTES]


def _neighbours(case: Case, holder: PartyId) -> Tensor:
    """How many votes a node has over a holder's edges, its canaries among them: Tensor[N] float64."""
    graph = case.graph(holder)
    if case.run.party(holder).canaries() is not None:
        graph = inserted_at(case, holder).into(graph)
    return torch.bincount(hidden_edges(sealed(case.settings), graph)[1], minlength=graph.num_nodes).double()
