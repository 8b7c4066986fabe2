"""A holder's columns of the common nodes as they are, from holder to holder, where a job says that they go.

Whatever their layout they cross as the entries that are not zero: of a table of words that is little.
"""

from __future__ import annotations

import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.graph.features import SPARSE_BELOW, from_scipy, is_sparse, to_scipy
from veilgraph.link.collectives import receive_as

_COUNTS, _PLACES, _VALUES = (Tag(Kind.COLUMNS, 0, round_) for round_ in range(3))


def send_columns(link: Link, to: PartyId, features: Tensor) -> None:
    """Sends them: how many entries each row has, in which columns, and these.

    Args:
        link: of the holder.
        to: the holder that is to have them.
        features: Tensor[C, F], dense or ``torch.sparse_csr``, of the common nodes, in the dtype of the job.
    """
    columns = from_scipy(_entries(features))
    link.send(to, _COUNTS, columns.crow_indices().diff())
    link.send(to, _PLACES, columns.col_indices().to(torch.int32))
    link.send(to, _VALUES, columns.values())


def receive_columns(link: Link, sender: PartyId, nodes: int, columns: int, dtype: torch.dtype) -> Tensor:
    """What ``send_columns`` sent.

    Args:
        link: of the holder.
        sender: whose they are.
        nodes: C.
        columns: F, as the sender stated.
        dtype: of the job.

    Returns:
        Tensor[C, F], ``torch.sparse_csr``.

    Raises:
        ProtocolError: it is no such matrix.
        LinkError: as ``Link.receive``.
    """
    counts = receive_as(link, sender, _COUNTS, (nodes,), torch.int64)
    if bool((counts < 0).any()) or bool((counts > columns).any()):
        raise _broken(sender, f"a row without 0 to {columns} entries")
    entries = int(counts.sum())
    places = receive_as(link, sender, _PLACES, (entries,), torch.int32).to(torch.int64)
    if entries and not 0 <= int(places.min()) <= int(places.max()) < columns:
        raise _broken(sender, f"an entry outside its {columns} columns")
    row = torch.repeat_interleave(torch.arange(nodes), counts)
    if bool((places.diff()[row.diff() == 0] <= 0).any()):
        raise _broken(sender, "a row whose entries are not in the order of its columns")
    return matrix_of(counts, places, receive_as(link, sender, _VALUES, (entries,), dtype), columns)


def matrix_of(counts: Tensor, places: Tensor, values: Tensor, columns: int) -> Tensor:
    """What the three messages are together: Tensor[C, F], ``torch.sparse_csr``.

    Args:
        counts: Tensor[C] int64, of the entries of each row.
        places: Tensor[entries] of whole numbers, in which column each is.
        values: Tensor[entries].
        columns: F.
    """
    pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    shape = (len(counts), columns)
    return torch.sparse_csr_tensor(pointers, places.to(torch.int64), values, shape, check_invariants=True)


def beside(own: Tensor, others: list[Tensor]) -> Tensor:
    """A holder's features and, at the common nodes, columns of others beside them.

    Args:
        own: Tensor[N, F], dense or ``torch.sparse_csr``.
        others: Tensor[C, F_i], ``torch.sparse_csr``, of the first C nodes; zeros are taken for the nodes beyond.

    Returns:
        Tensor[N, F + ΣF_i] in the dtype of ``own``, in the layout that fits how many of them are zero.
    """
    layers = [_entries(own)]
    for each in others:
        matrix = to_scipy(each.to(own.dtype))
        matrix.resize((len(own), each.shape[1]))
        layers.append(matrix)
    joined = sp.csr_matrix(sp.hstack(layers))
    dense = joined.nnz >= SPARSE_BELOW * max(1, joined.shape[0] * joined.shape[1])
    return torch.from_numpy(joined.toarray()) if dense else from_scipy(joined)


def _entries(features: Tensor) -> sp.csr_matrix:
    """A copy of them, in scipy's layout."""
    return to_scipy(features).copy() if is_sparse(features) else sp.csr_matrix(features.numpy())


def _broken(sender: PartyId, what: str) -> ProtocolError:
    return ProtocolError(
        f"{sender} sent columns with {what}; ask what {sender} runs", code="columns", key=Kind.COLUMNS, party=sender
    )
