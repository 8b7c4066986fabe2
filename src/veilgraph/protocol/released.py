"""What nodes perturbed is released before anybody learns, or what was kept of it used again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.graph.features import is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.local.affine import AffineFeatures
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.protocol.feature_release import Releases, exchange_releases, released_features
from veilgraph.protocol.releases import RELEASE, KeptRelease
from veilgraph.protocol.role import Session


def with_released_features(
    session: Session, folder: Path, graph: PartyGraph | None, publisher: LocalPublisher | None
) -> tuple[PartyGraph | None, bool]:
    """The holder's graph with what all holders released in place of its features (``method: perturbed``).

    They are X'' = scale·x* of every holder side by side, in the job's order, N rows in all: of its own nodes other
    holders have no features, which are zero there. Without the mechanisms' offsets, the same in all rows of a column,
    X'' is sparse where few features are sampled.

    Args:
        session: of the party.
        folder: of its files, where the release is kept.
        graph: its own, validated; None at the server.
        publisher: of a holder.

    Returns:
        The graph, None at the server; and whether the release is of this session.

    Raises:
        BudgetSpent: a new release is needed, and a holder's budget has no room for it.
        ProtocolError: what came is no release of this job.
        DataError: a feature lies outside the declared range.
    """
    if graph is None:
        return None, exchange_releases(session, None, 0, {}, None).is_new
    releases = agreed(session, folder, graph, publisher)
    try:
        blocks = released_features(session, releases, graph.common, graph.num_nodes)
    except (KeyError, ProtocolError) as error:
        raise damaged(folder, error) from error
    whole = [replace(block, values=_with_rows(block.values, graph.num_nodes)) for block in blocks]
    return replace(graph, features=AffineFeatures.joined(whole, session.dtype).values), releases.is_new


def agreed(session: Session, folder: Path, graph: PartyGraph, publisher: LocalPublisher | None) -> Releases:
    """The release that all have, kept for later sessions."""
    kept = KeptRelease(folder, session.settings, session.alignment, graph)
    releases = exchange_releases(session, graph, kept.number, kept.tensors, publisher)
    if releases.is_new:
        kept.replace(releases.number, releases.tensors)
    return releases


def _with_rows(values: Tensor, count: int) -> Tensor:
    """The matrix with rows of zeros below, up to ``count``; in the same layout."""
    missing, columns = count - values.shape[0], values.shape[1]
    if not missing:
        return values
    if not is_sparse(values):
        return torch.cat([values, values.new_zeros(missing, columns)])
    pointers = values.crow_indices()
    return torch.sparse_csr_tensor(
        torch.cat([pointers, pointers[-1:].expand(missing)]),
        values.col_indices(),
        values.values(),
        (count, columns),
        check_invariants=False,  # holds for more rows of nothing
    )


def damaged(folder: Path, error: KeyError | ProtocolError) -> RunError:
    """Of the kept release: a new one was checked when it came."""
    what = f"it lacks {error}" if isinstance(error, KeyError) else str(error).partition(";")[0]
    return RunError(f"{folder / RELEASE}: damaged ({what}); delete it, and the holders release anew")
