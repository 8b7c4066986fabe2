"""The attacks on plain networks: the networks against PyTorch Geometric's, and the whole experiment in small."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCNConv, SAGEConv

from research import attack_strength
from research.attack_strength_members import membership
from research.attack_strength_models import PlainNetwork, PlainSettings
from research.attack_strength_settings import StrengthSettings
from research.paper_tables import reproduce
from tests import nightly
from veilgraph.audit.statistics import intervals
from veilgraph.graph.builtin import synthetic_data

OVERFIT = PlainSettings("GCN", width=16, epochs=60)
TINY = StrengthSettings(
    inductive=(replace(OVERFIT, kind="GraphSAGE"),),
    transductive=OVERFIT,
    out_models=6,
    links=PlainSettings("GCN", width=8, epochs=30, dropout=0.5),
    attributes=PlainSettings("GCN", width=8, epochs=30),
    words=1,
    queries=20,
    split_width=8,
    split_epochs=8,
)
ATTACKS = {"membership": 10, "links": 20, "attributes": 2, "labels": 7, "solved features": 9, "hops": 4}


def words(dataset):
    """The synthetic graph with features of 0 and 1, one other graph per data set."""
    data = synthetic_data(num_nodes=240, seed=len(dataset))
    data.x = (data.x > 0).float()
    return data


@pytest.fixture
def loaded(monkeypatch):
    """Names of the data sets that are read, in order."""
    names = []

    def load(dataset):
        names.append(dataset)
        return words(dataset)

    monkeypatch.setattr(attack_strength, "load", load)
    monkeypatch.setattr(attack_strength, "StrengthSettings", lambda: TINY)
    return names


def make(out, **changes):
    arguments = {"seeds": 1, "datasets": ["cora"], "out": out, "progress": lambda what, done, total: None}
    return reproduce("attack-strength", **{**arguments, **changes})


@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE"])
def test_networks_are_those_of_pytorch_geometric(kind):
    data = words("cora")
    network = PlainNetwork(PlainSettings(kind, 5, 1), 24, 3)
    found = network.outputs(data)
    layers = []
    for weight, in_, out in ((network.first.weight, 24, 5), (network.second.weight, 5, 3)):
        if kind == "GCN":
            layer = GCNConv(in_, out, bias=False)
            layer.lin.weight.data = weight.data
        else:
            layer = SAGEConv(in_, out, bias=False)
            layer.lin_r.weight.data, layer.lin_l.weight.data = weight.data.chunk(2)
        layers.append(layer)
    with torch.no_grad():
        hidden = layers[0](data.x, data.edge_index).relu()
        posteriors = layers[1](hidden, data.edge_index).softmax(dim=1)
    np.testing.assert_allclose(found.embeddings, hidden, atol=1e-5)
    np.testing.assert_allclose(found.posteriors, posteriors, atol=1e-5)


@nightly
def test_it_is_training_that_gives_members_away():
    data = words("cora")
    by_heart = torch.rand(len(data.y), generator=torch.Generator().manual_seed(0)) < 0.3
    data.y = torch.where(by_heart, data.y.roll(1), data.y)
    scores = []
    for epochs in (60, 0):
        network = PlainSettings("GraphSAGE", width=16, epochs=epochs)
        settings = replace(TINY, inductive=(network,), transductive=replace(OVERFIT, epochs=0))
        found = membership(data, data, settings, 0)["inductive GraphSAGE: LiRA"]
        scores.append(intervals(found.scores, found.truth, seed=0, samples=200, confidence=0.99)["auc"])
    assert scores[0].low > 0.55
    assert scores[1].low < 0.5 < scores[1].high


@nightly
def test_every_attack_has_a_row_and_every_figure_an_interval(tmp_path, loaded):
    text = make(tmp_path)
    tables = json.loads((tmp_path / "attack-strength.json").read_text())["tables"]
    kept = {name: table["attacks"] for name, table in tables.items()}
    assert {name: len(attacks) for name, attacks in kept.items()} == {
        f"cora, {family}, seed 0": count for family, count in ATTACKS.items()
    }
    assert set(loaded) == {"cora", "citeseer"}
    rows = dict(line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| "))
    for attack, figures in [row for attacks in kept.values() for row in attacks.items()]:
        auc = figures["auc"]
        assert 0 <= auc["low"] <= auc["value"] <= auc["high"] <= 1
        assert rows[attack].startswith(f"{auc['value']:.3f} | ")
    stolen = kept["cora, links, seed 0"]
    assert stolen["attack 0, posteriors alone"]["auc"]["low"] > 0.6
    assert stolen["attack 3 on embeddings"]["auc"]["low"] > 0.6
    assert stolen["LinkTeller"]["auc"]["low"] > 0.9
    assert kept["cora, labels, seed 0"]["blind, free rows"]["accuracy"] > 0.9
    assert "abstract says AUC above 0.95" in text
    assert "`python -m research attack-strength --seeds 1 --datasets cora`" in text
    assert (tmp_path / "attack-strength.md").read_text() == text
