"""Backward passes from gradients that came from elsewhere: torch's to the bit, without what torch imports for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import backward

from tests.roles.federation import Settings, small_job
from veilgraph.nn.handed import handed
from veilgraph.run.jobs import train

SYMBOLIC = "torch.fx.experimental.symbolic_shapes"
"""What imports sympy."""


def passed() -> tuple[list[Tensor], list[Tensor]]:
    """A leaf with weights, and two outputs of which one goes into the other."""
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((7, 4), (4, 5), (5, 2))]
    first = (leaves[0] @ leaves[1]).tanh()
    return leaves, [first, (first @ leaves[2]).exp()]


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_are_those_of_torch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (leaves, outputs), (ours, again) = passed(), passed()
    given = [torch.randn_like(output, requires_grad=False) for output in outputs[-count:]]
    backward(outputs[-count:], given)
    monkeypatch.setitem(sys.modules, SYMBOLIC, None)  # who imports it fails
    with pytest.raises(ImportError):
        backward(again[-1:], given[-1:], retain_graph=True)
    with torch.no_grad():
        number = handed(again[-count:], given)
    backward(number)
    assert number == 0
    for one, other in zip(leaves, ours, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_a_gradient_of_another_shape_is_refused_though_torch_could_add_it_up() -> None:
    _, (output, _) = passed()
    with pytest.raises(RuntimeError):
        handed([output], [torch.ones(7, 7, 5)])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"rounds": 2}},
        {"train": {"batch_size": 16}, "model": {"local": {"fanout": 3}}},
        {"paradigm": "horizontal"},
    ],
    ids=["rounds", "batches", "horizontal"],
)
def test_no_training_imports_sympy(changes: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, SYMBOLIC, None)
    assert train(small_job(2, {"train": {"epochs": 1}}, changes), tmp_path / "run").metrics
