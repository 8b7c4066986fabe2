"""What nodes perturbed is released before anybody learns, or what was kept of it used again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.graph.features import is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.local.affine import AffineFeatures
from veilgraph.protocol.feature_release import exchange_releases, released_features
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.releases import KeptRelease, Releases, damaged
from veilgraph.protocol.role import Session


def with_released_features(session: Session, aligned: Aligned) -> Aligned:
    """The party's data with what all holders released in place of its features (``method: perturbed``).

    They are X'' = scale·x* of every holder side by side, in the job's order, N rows in all: of its own nodes other
    holders have no features, which are zero there. Without the mechanisms' offsets, the same in all rows of a column,
    X'' is sparse where few features are sampled.

    Raises:
        VeilgraphError: as ``Paradigm.release``.
    """
    releases, graph = agreed(session, aligned.graph), aligned.graph
    if graph is None:
        return replace(aligned, releases=releases)
    with checked(session):
        blocks = released_features(session, releases, graph.common, graph.num_nodes)
    whole = [replace(block, values=_with_rows(block.values, graph.num_nodes)) for block in blocks]
    features = AffineFeatures.joined(whole, session.dtype).values
    return replace(aligned, graph=replace(graph, features=features), releases=releases)


def agreed(session: Session, graph: PartyGraph | None) -> Releases:
    """The release that all have, kept for later sessions.

    Args:
        session: of the party.
        graph: its own; None at the server.
    """
    if graph is None:
        return exchange_releases(session, None, 0, {})
    kept = KeptRelease(session.keeper, session.alignment, graph)
    releases = exchange_releases(session, graph, kept.number, kept.tensors)
    if releases.is_new:
        kept.replace(releases.number, releases.tensors)
    return releases


@contextmanager
def checked(session: Session) -> Iterator[None]:
    """What does not fit in what a party kept: a new release was checked when it came.

    Raises:
        RunError: something did not.
    """
    try:
        yield
    except KeyError as error:
        raise damaged(session.keeper, f"it lacks {error}") from error
    except ProtocolError as error:
        raise damaged(session.keeper, str(error).partition(";")[0]) from error


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
