"""What a check refuses of columns without unit length is what the rings would wrap around, where nothing shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.errors import refused
from tests.paradigms.sealed.programs import TWIN, outcomes, small_graphs, small_job, summed, trained
from veilgraph.core.errors import RangeOverflow
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.bounded import BoundedMachine
from veilgraph.mpc.sealed.wire import Summands
from veilgraph.paradigms.sealed.entering import plan_of
from veilgraph.paradigms.sealed.program import WEIGHT_BITS
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import check_ranges

NETWORKS = ["mlp", "linear", "sign", "gcn", "appnp"]


def of(network: str, *, unit_rows: bool) -> SealedJob:
    return small_job(2, {"output": "probabilities", "model": {"network": network, "unit_rows": unit_rows}})


def scaled(factor: float) -> list[PartyGraph]:
    return [replace(graph, features=graph.features * factor) for graph in small_graphs()]


def apart(job: SealedJob, graphs: list[PartyGraph]) -> float:
    """How far weights are from the twin's after a step, as a share of the largest."""
    found = outcomes(job, graphs, lambda program: trained(program, 1))
    computed = summed(found, WEIGHT_BITS + plan_of(job).halvings)["weight.0"]
    twin = found[TWIN][0]["weight.0"]
    return float((computed - twin).abs().max() / twin.abs().max())


@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_let_through_is_computed_rightly_and_what_is_refused_is_not(network: str) -> None:
    fits = of(network, unit_rows=False)
    check_ranges(fits, scaled(1))
    assert apart(fits, scaled(1)) < 0.01
    with refused(RangeOverflow, code="beyond-the-ring", key="model.unit_rows", value="false"):
        check_ranges(fits, scaled(1e7))
    assert apart(fits, scaled(1e7)) > 0.1


@pytest.mark.parametrize("network", NETWORKS)
def test_rows_of_unit_length_fit_whatever_columns_are(network: str) -> None:
    check_ranges(of(network, unit_rows=True), scaled(1e8))


def summands(value: float, bits: int) -> Summands:
    return Summands(torch.tensor([[value]], dtype=torch.float64), bits)


def test_bounds_are_those_of_the_rings() -> None:
    machine = BoundedMachine(["A", "B"], "model.unit_rows", "false", "scale them")
    machine.open(summands(2.0**30 - 1, 32), 16)
    machine.open(summands(1 - 2.0**30, 32), 16)
    for value in (2.0**30, -(2.0**30), float("nan"), float("inf")):
        with refused(RangeOverflow, key="model.unit_rows"):
            machine.open(summands(value, 32), 16)
    ends = torch.tensor([[0, 1], [2, 2]])
    graph = machine.hidden_graph("A", ends, 3, 4)
    for ring, room in ((32, 14), (64, 46)):
        each = (2.0**room - 1) / 3
        small = machine.open(Summands(torch.zeros(3, 1, dtype=torch.float64), 32), 16, 32 if ring == 32 else 64)
        fits = replace(small, public=torch.full((3, 1), each, dtype=torch.float64))
        machine.hop([graph], fits)
        beyond = replace(fits, public=torch.full((3, 1), 2.0**room / 3 + 1, dtype=torch.float64))
        with refused(RangeOverflow, key="model.unit_rows"):
            machine.hop([graph], beyond)
