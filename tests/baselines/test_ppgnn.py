"""PPGNN: VFGNN's network with eq. 23's layers, on a split where holders differ in their edges alone."""

from dataclasses import replace

import pytest
import torch
from veilgraph_testing.vertical import weights_of

from research.ppgnn import as_vertical, ppgnn
from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job

EQ_23 = {"layers": 2, "dim": 8, "message": "none", "update": "sum", "server": {"dropout": 0.0}}


def job(**changes: object) -> JobSettings:
    data = {"dataset": "synthetic", "holders": 2, "partition": {"knows": "all"}}
    content = {"paradigm": "horizontal", "data": data, "model": EQ_23, "train": {"epochs": 6}}
    return parse_job({**content, **changes})


def eq_23(parts: list[HorizontalPart], weights: list[torch.Tensor], output: torch.nn.Linear) -> torch.Tensor:
    """Logits by the equation, node by node."""
    embeddings = []
    for part, weight in zip(parts, weights, strict=True):
        source, target = part.graph.edge_index
        count = part.graph.num_nodes

        def pooled(h: torch.Tensor, source=source, target=target, count=count) -> torch.Tensor:
            zero = torch.zeros(1, h.shape[1])
            return torch.stack([h[v] + torch.cat([zero, h[source[target == v]]]).amax(dim=0) for v in range(count)])

        embeddings.append(pooled(torch.relu(pooled(part.graph.features.to_dense().float()) @ weight)))
    logits: torch.Tensor = output(torch.stack(embeddings).mean(dim=0))
    return logits


def test_the_logits_are_those_of_the_equation(monkeypatch) -> None:
    settings, made = job(), []

    def catch(network, progress):
        made.append(network)
        raise InterruptedError

    monkeypatch.setattr("research.ppgnn.fit", catch)
    parts = load_parts(settings.data, 0)
    with pytest.raises(InterruptedError):
        ppgnn(settings, parts)
    (network,) = made
    weights = [weights_of(network)[f"{party}/W"].float() for party in ("A", "B")]
    assert not torch.equal(*weights)
    with torch.no_grad():
        expected = eq_23(parts, weights, network.head.output)
    torch.testing.assert_close(network.infer(), expected)


@nightly
def test_it_trains_and_only_the_label_holders_labels_count() -> None:
    settings = job(train={"epochs": 30})
    parts = load_parts(settings.data, 0)
    seen: list[object] = []
    result = ppgnn(settings, parts, seen.append)
    assert result.metrics[-1]["loss"] < result.metrics[0]["loss"]
    assert result.summary["test_f1"] is not None
    assert len(seen) == len(result.metrics)
    other = replace(
        parts[1], graph=replace(parts[1].graph, labels=torch.zeros(parts[1].graph.num_nodes, dtype=torch.int64))
    )
    again = ppgnn(settings, [parts[0], other])
    assert [record["loss"] for record in again.metrics] == [record["loss"] for record in result.metrics]


def test_holders_that_are_not_aligned_are_refused() -> None:
    settings = job(data={"dataset": "synthetic", "holders": 2, "partition": {"knows": "own"}})
    with refused(DataError, key="data.partition"):
        ppgnn(settings, load_parts(settings.data, 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 3}, {"key": "horizontal"}),
        ({"message": "linear"}, {"key": "horizontal"}),
        ({"update": "concat"}, {"key": "horizontal"}),
        ({"aggregate": "mean", "edges": "disjoint"}, {"key": "horizontal"}),
        ({"server": {"batch_norm": True}}, {"key": "model.server.batch_norm", "value": True}),
    ],
)
def test_other_networks_are_refused(changes, message) -> None:
    with refused(ConfigError, **message):
        as_vertical(job(model={**EQ_23, **changes}))
