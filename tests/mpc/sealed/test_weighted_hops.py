"""Hops of hidden edges with hidden weights: what dense matrices give, bytes to the count, and nothing to be seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.mpc.sealed.parties import NAMES, run
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.types import SERVER
from veilgraph.mpc.sealed.machine import CountingMachine, Machine

BITS = 16


def edges_of(holder: int, nodes: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(holder)
    return torch.randint(nodes, (2, count), generator=generator), torch.rand(count, generator=generator).double()


@pytest.mark.parametrize(("holders", "nodes", "columns", "count"), [(2, 7, 3, 12), (3, 1, 1, 2), (4, 9, 2, 0)])
def test_sums_are_weighted(holders: int, nodes: int, columns: int, count: int) -> None:
    values = torch.randn(nodes, columns, generator=torch.Generator().manual_seed(9)).double()

    def program(machine: Machine) -> object:
        graphs = []
        for place, name in enumerate(NAMES[:holders]):
            own = machine.party in (name, "")
            edges, weights = edges_of(place, nodes, count) if own else (None, None)
            graphs.append(machine.hidden_graph(name, edges, nodes, count + 2, weights, BITS))
        wire = machine.put("A", values if machine.party in ("A", "") else None, (nodes, columns), BITS)
        wire = machine.open(machine.split(wire))
        return machine.reveal(machine.open(machine.hop(graphs, wire), BITS), "A")

    links: Any = {}
    found: Any = run(program, holders, links)
    expected = values.clone()
    for place in range(holders):
        edges, weights = edges_of(place, nodes, count)
        expected.index_add_(0, edges[1], values[edges[0]] * weights[:, None])
    assert torch.allclose(found[""], expected)
    assert float((found["A"] - expected).abs().max()) < 1e-3
    counter = CountingMachine(NAMES[:holders], SERVER)
    program(counter)
    for party, link in links.items():
        sent = sum(entry.bytes for entry in link.traffic() if entry.direction == "sent")
        assert sent == sum(cost.sent[party] for cost in counter.costs.values()), party


def test_what_others_are_told_of_weights_is_uniform_and_new_in_every_session() -> None:
    """Highest bits of E, over sessions: without its mask they would be those of small numbers, which are 0."""
    edges, weights = edges_of(0, 5, 8)

    def program(machine: Machine) -> object:
        own = machine.party in ("A", "")
        graph: Any = machine.hidden_graph("A", edges if own else None, 5, 10, weights if own else None, BITS)
        return getattr(graph, "masked_weights", None)

    told = [run(program, secrets=fixed_secrets("session", number))["B"] for number in range(20)]
    highest = torch.stack([one < 0 for one in told if isinstance(one, torch.Tensor)]).double()
    assert highest.numel() == 20 * 15
    assert abs(float(highest.mean()) - 0.5) < 0.15
    assert not any(torch.equal(told[0], one) for one in told[1:])  # type: ignore[arg-type]
