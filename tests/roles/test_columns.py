"""Columns cross from holder to holder as they are, whatever their layout, and nothing else passes for columns."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from veilgraph.core.errors import ProtocolError
from veilgraph.protocol.aligning import receive_columns, send_columns

F = 7
DENSE = torch.randn(5, F, generator=torch.Generator().manual_seed(0))
FEW = torch.zeros(40, F).index_put_((torch.tensor([0, 3, 3]), torch.tensor([6, 0, 2])), torch.tensor([1.0, -2.0, 0.5]))
LAYOUTS = {
    "dense": DENSE,
    "few": FEW,
    "sparse": FEW.to_sparse_csr(),
    "nothing": torch.zeros(3, F),
    "no rows": DENSE[:0],
}


def wire(features: Tensor) -> dict[Any, Tensor]:
    """The messages, by tag."""
    sent: dict[Any, Tensor] = {}
    link: Any = SimpleNamespace(party="B", send=lambda to, tag, tensor: sent.__setitem__(tag, tensor))
    send_columns(link, "A", features)
    return sent


def received(sent: dict[Any, Tensor], nodes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    link: Any = SimpleNamespace(party="A", receive=lambda sender, tag: sent[tag])
    return receive_columns(link, "B", nodes, F, dtype)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_received_is_what_was_sent(name: str) -> None:
    features = LAYOUTS[name]
    before = features.clone()
    found = received(wire(features), len(features))
    assert torch.equal(found.to_dense(), features.to_dense())
    assert torch.equal(features.to_dense(), before.to_dense()), "and the sender's are untouched"


HOSTILE = {
    "fewer rows": ("shape", 0, lambda t: t[1:]),
    "a negative count": ("columns", 0, lambda t: torch.cat([t[:1] + F + 1, t[1:2] - F - 1, t[2:]])),
    "more entries than there are columns": ("columns", 0, lambda t: torch.cat([t[:1] + 1, t[1:2] - 1, t[2:]])),
    "other counts": ("shape", 0, lambda t: t - (torch.arange(len(t)) == 0).long()),
    "counts of another kind": ("shape", 0, lambda t: t.double()),
    "a column beyond": ("columns", 1, lambda t: t.clone().index_fill_(0, torch.tensor([F - 1]), F)),
    "a column below": ("columns", 1, lambda t: t.clone().index_fill_(0, torch.tensor([0]), -1)),
    "a column twice": ("columns", 1, lambda t: t.clone().index_fill_(0, torch.tensor([1]), 0)),
    "columns out of order": ("columns", 1, lambda t: t.clone().index_copy_(0, torch.tensor([0, 1]), t[[1, 0]])),
    "no places": ("shape", 1, lambda t: t[:0]),
    "fewer values": ("shape", 2, lambda t: t[1:]),
    "values that are not finite": ("not-finite", 2, lambda t: t * torch.inf),
    "values of another kind": ("shape", 2, lambda t: t.double()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_matrix_of_that_size_is_refused(name: str) -> None:
    code, place, change = HOSTILE[name]
    sent = wire(DENSE)
    tag = list(sent)[place]
    sent[tag] = change(sent[tag])
    with refused(ProtocolError, party="B", code=code):
        received(sent, len(DENSE))
