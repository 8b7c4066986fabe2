"""Edges by a shared value beside an ε of one edge: the noised sums tell whether a customer has the device.

This is why such jobs are refused. The control is a table of pairs, where one row is one edge, as ε counts it.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import Tensor
from veilgraph_node_dp.settings import SumPrivacySettings
from veilgraph_node_dp.sums import NoisySums, pair_matrix
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests.privacy.chance import fixed
from tests.tables.writing import party, write
from veilgraph.privacy.accountant import analytic_multiplier
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.tables.edges import read_edges

EPSILON, DELTA, SURE = 1.0, 1e-5, 0.999
AT_MOST = 20
NODES = [f"c{number}" for number in range(AT_MOST + 1)]


def edges(folder: Path, rows: dict[str, Any], **said: object) -> Tensor:
    """Of a file with these rows, in both directions: Tensor[2, E]."""
    folder.mkdir()
    write(folder / "edges.csv", rows)
    settings = party(edges=[{"file": "edges.csv", "source": "customer", **said}]).edges[0]
    table = read_edges(settings, folder, pa.array(NODES))
    ends = torch.tensor([table.source.tolist(), table.target.tolist()])
    return torch.cat([ends, ends.flip(0)], dim=1)


def proven(with_row: Tensor, without: Tensor, trials: int) -> float:
    """ε that sums of neighbours' rows prove, noised for one edge of ``EPSILON``."""
    deviation = analytic_multiplier(EPSILON, DELTA) * SumPrivacySettings(unit="edge", epsilon_total=EPSILON).sensitivity
    x = torch.ones(len(NODES), 1, dtype=torch.float64)
    pairs = [pair_matrix(each, None, len(NODES)) for each in (with_row, without)]
    noisy = NoisySums(1, Gaussian(1.0, deviation), None)
    clean = [torch.from_numpy(each @ x.numpy()) for each in pairs]
    toward, middle = clean[0] - clean[1], (clean[0] + clean[1]) / 2
    said = [0, 0]
    for number, world in enumerate(pairs):
        for trial in range(trials):
            released = noisy.release(world, x, fixed((number, trial)), lambda sums: sums)
            said[number] += float(((released - middle) * toward).sum()) > 0
    return epsilon_lower_bound(said[0], said[1], trials, DELTA, SURE)


@pytest.mark.parametrize(
    "others", [AT_MOST - 1, AT_MOST], ids=["joins all who have it", "takes away what joined others"]
)
def test_one_row_of_a_shared_value_is_told_beyond_the_epsilon_of_an_edge(tmp_path: Path, others: int) -> None:
    def table(name: str, count: int) -> Tensor:
        rows = {"customer": NODES[:count], "device": ["d"] * count}
        return edges(tmp_path / name, rows, target=None, shared="device", at_most=AT_MOST)

    assert proven(table("with", others + 1), table("without", others), 200) > 2 * EPSILON


def test_one_row_of_pairs_is_told_within_the_epsilon_of_an_edge(tmp_path: Path) -> None:
    def table(name: str, count: int) -> Tensor:
        return edges(tmp_path / name, {"customer": NODES[:count], "to": NODES[1 : count + 1]}, target="to")

    assert 0 < proven(table("with", AT_MOST), table("without", AT_MOST - 1), 1000) <= EPSILON
