import json
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from veilgraph_datasets.public import musae_data

from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.dataset import data_root, load_for_learner, load_parties, load_parts
from veilgraph.graph.party import save_party
from veilgraph.graph.pooling import pool
from veilgraph.graph.settings import DataSettings

DATA = os.environ.get("VEILGRAPH_DATA")


def chosen(tensor, mask):
    return tensor[mask]


def members(mask):
    return mask.nonzero().flatten().tolist()


@pytest.mark.cases(1)
@pytest.mark.parametrize("holders", [2, 3, 8])
def test_digits(holders, monkeypatch):
    for module in ("torch_geometric", "sklearn.datasets", "sklearn.neighbors"):  # seconds to import, and not needed
        monkeypatch.setitem(sys.modules, module, None)
    parties = load_parties(DataSettings(dataset="digits", holders=holders), 0)
    assert len(parties) == holders
    assert sum(party.num_features for party in parties) == 64
    assert all(party.num_nodes == 1797 and party.num_edges >= 5 * 1797 for party in parties)
    assert all(float(party.features.min()) >= 0 and float(party.features.max()) == 1 for party in parties)
    assert all(int(party.degrees().min()) >= 5 for party in parties)
    labelled = parties[0]
    assert labelled.num_classes == 10
    assert torch.bincount(chosen(labelled.labels, labelled.train_mask)).tolist() == [10] * 10
    assert len(members(labelled.val_mask)) == 300
    assert len(members(labelled.test_mask)) == 1797 - 400
    assert all(party.labels is None for party in parties[1:])
    for party in parties:
        x = (16 * party.features).double()
        distances = (x.square().sum(1)[:, None] + x.square().sum(1) - 2 * x @ x.T).fill_diagonal_(torch.inf)
        nearest = distances.sort(dim=1, stable=True).indices[:, :5]  # of equally near ones the first
        edges = torch.zeros(1797, 1797, dtype=torch.bool).scatter_(1, nearest, value=True)
        assert torch.equal(party.edge_index, (edges | edges.T).nonzero().T)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"holders": 9}, {"key": "data.holders", "value": 9}),
        ({"feature_proportions": (1, 2)}, {"key": "data.dataset", "value": "digits"}),
    ],
)
def test_what_the_digits_refuse(changes, problem):
    with refused(DataError, **problem):
        load_parties(DataSettings(dataset="digits", **changes), 0)


def test_synthetic():
    settings = DataSettings(dataset="synthetic", holders=4, edge_proportions=(4, 2, 1, 1), feature_scaling="standard")
    parties = load_parties(settings, 5)
    assert parties[0].num_nodes == 400
    assert sum(party.num_features for party in parties) == 24
    torch.testing.assert_close(parties[2].features.mean(0), torch.zeros(6), atol=1e-6, rtol=0)
    data = synthetic_data(seed=5)
    assert 4 < data.num_edges / 400 < 8
    assert float((data.y[data.edge_index[0]] == data.y[data.edge_index[1]]).float().mean()) > 0.6
    assert data.num_edges == sum(party.num_edges for party in parties)


def test_saved_parties(tmp_path):
    whole = load_parties(DataSettings(dataset="synthetic"), 0)
    paths = {"bank": tmp_path / "a.safetensors", "shop": tmp_path / "b.safetensors"}
    for party, path in zip(whole, paths.values(), strict=True):
        save_party(party, path)
    settings = DataSettings(graphs=paths, feature_scaling="row")
    bank, shop = load_parties(settings, 0)
    assert (bank.party, shop.party) == ("bank", "shop")
    torch.testing.assert_close(bank.features.abs().sum(1), torch.ones(400))
    paths["bank"].unlink()
    with refused(DataError, key=tmp_path / "a.safetensors"):
        load_parties(settings, 0)


def test_the_root(monkeypatch):
    monkeypatch.delenv("VEILGRAPH_DATA", raising=False)
    assert data_root(DataSettings()) == Path(".data")
    monkeypatch.setenv("VEILGRAPH_DATA", "somewhere")
    assert data_root(DataSettings()) == Path("somewhere")
    assert data_root(DataSettings(root=Path("here"))) == Path("here")


class TestFilesAreMissing:
    def test_planetoid(self, tmp_path, monkeypatch):
        def offline(root, name):
            raise OSError("no network")

        monkeypatch.setattr("torch_geometric.datasets.Planetoid", offline)
        with refused(DataError, key="data.dataset", value="cora"):
            load_parties(DataSettings(dataset="cora", root=tmp_path), 0)

    def test_damaged_planetoid(self, tmp_path):
        raw = tmp_path / "Cora" / "raw"
        raw.mkdir(parents=True)
        for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
            (raw / f"ind.cora.{part}").write_bytes(b"nonsense")
        with refused(DataError, key=raw):
            load_parties(DataSettings(dataset="cora", root=tmp_path), 0)

    def test_amazon(self, tmp_path):
        settings = DataSettings(dataset="amazon", root=tmp_path)
        path = tmp_path / "fraud" / "amazon_upu" / "Amazon.mat"
        with refused(DataError, key="data.dataset", value="amazon"):
            load_parties(settings, 0)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"nonsense")
        with refused(DataError, key=path):
            load_parties(settings, 0)
        scipy.io.savemat(path, {"Network": sp.eye(3, format="csc")})
        with refused(DataError, key=path):
            load_parties(settings, 0)

    @pytest.mark.parametrize("name", ["acm", "ogbn-arxiv", "github"])
    def test_of_others(self, tmp_path, monkeypatch, name):
        monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
        with refused(DataError, key="data.dataset", value=name):
            load_parties(DataSettings(dataset=name, root=tmp_path), 0)


def test_amazon(tmp_path):
    path = tmp_path / "fraud" / "amazon_upu" / "Amazon.mat"
    path.parent.mkdir(parents=True)
    network = sp.csc_matrix(np.triu(np.ones((50, 50))) + np.triu(np.ones((50, 50))).T)
    attributes, label = sp.csc_matrix(np.arange(200.0).reshape(50, 4)), np.arange(50)[None] % 10 == 9
    scipy.io.savemat(path, {"Network": network, "Attributes": attributes, "Label": label.astype(float)})
    settings = DataSettings(dataset="amazon", root=tmp_path)
    pooled = pool(load_parties(settings, 0), "A")
    assert pooled.num_edges == 50 * 49
    assert pooled.num_classes == 2
    assert sorted(pooled.features[1].tolist()) == [4, 5, 6, 7]
    assert pooled.labels is not None
    assert pooled.labels[:12].tolist() == [-1] * 9 + [1, 0, 0]
    for mask, of_class in ((pooled.train_mask, [14, 2]), (pooled.val_mask, [8, 1]), (pooled.test_mask, [14, 2])):
        assert torch.bincount(chosen(pooled.labels, mask)).tolist() == of_class
    other = pool(load_parties(settings, 1), "A")
    assert members(pooled.train_mask) != members(other.train_mask)


def write_musae(root):
    """Twelve pages, a ring with a chord, a loop and an edge listed in both directions."""
    folder = root / "facebook"
    folder.mkdir(parents=True)
    edges = [*((node, (node + 1) % 12) for node in range(12)), (0, 6), (6, 0), (4, 4)]
    lines = ["id_1,id_2", *(f"{source},{target}" for source, target in edges)]
    (folder / "musae_facebook_edges.csv").write_text("\n".join(lines) + "\n")
    features = {str(node): [node, 4713, node] for node in reversed(range(11))} | {"11": []}
    (folder / "musae_facebook_features.json").write_text(json.dumps(features))
    targets = ["id,target", *(f"{node},{node % 2}" for node in reversed(range(12)))]
    (folder / "target.csv").write_text("\n".join(targets) + "\n")
    return folder


def test_musae(tmp_path):
    write_musae(tmp_path)
    settings = DataSettings(dataset="facebook", root=tmp_path)
    pooled = pool(load_parties(settings, 0), "A")
    assert (pooled.num_nodes, pooled.num_features, pooled.num_edges) == (12, 4714, 2 * 13)
    assert bool((pooled.edge_index[0] != pooled.edge_index[1]).all())
    assert pooled.labels is not None
    assert pooled.labels.tolist() == [0, 1] * 6
    assert sorted(pooled.features.to_dense().sum(1).tolist()) == [0, *[2] * 11]
    assert pooled.features.to_dense().max() == 1
    for mask, of_class in ((pooled.train_mask, 3), (pooled.val_mask, 1), (pooled.test_mask, 2)):
        assert torch.bincount(chosen(pooled.labels, mask)).tolist() in ([of_class] * 2, [3 - of_class] * 2)
    whole = load_parts(DataSettings(dataset="facebook", root=tmp_path, partition={"knows": "all"}), 0)[0].graph
    places = whole.features.to_dense().nonzero().tolist()
    assert places == sorted([[node, node] for node in range(11)] + [[node, 4713] for node in range(11)])


def test_damaged_musae(tmp_path):
    folder = write_musae(tmp_path)
    (folder / "musae_facebook_features.json").write_text('{"0": [4714]}')
    with refused(DataError, key=folder):
        load_parties(DataSettings(dataset="facebook", root=tmp_path), 0)


def test_lastfm_as_published(tmp_path):
    folder = write_musae(tmp_path).rename(tmp_path / "lastfm")
    for name in ("edges.csv", "features.json"):
        (folder / f"musae_facebook_{name}").rename(folder / f"lastfm_asia_{name}")
    settings = DataSettings(dataset="lastfm", root=tmp_path)
    with refused(DataError, key="data.dataset", value="lastfm"):
        load_parties(settings, 0)
    (folder / "target.csv").rename(folder / "lastfm_asia_target.csv")
    listed = json.dumps({str(node): [node, 7841] for node in range(12)})
    (folder / "lastfm_asia_features.json").write_text(listed)
    pooled = pool(load_parties(settings, 0), "A")
    assert (pooled.num_nodes, pooled.num_features, pooled.num_edges) == (12, 7842, 2 * 13)
    (folder / "lastfm_asia_features.json").unlink()
    with pytest.raises(DataError, match=r"lacks lastfm_asia_features\.json; fetch"):
        load_parties(settings, 0)
    without = musae_data("lastfm", tmp_path, 0, with_features=False)
    assert (tuple(without.x.shape), without.x.values().numel(), without.num_edges) == ((12, 7842), 0, 2 * 13)


class Arxiv(list[Data]):
    """What ogb's data set looks like."""

    def __init__(self, name, root):
        if root.endswith("offline"):
            raise OSError("no network")
        edge_index = torch.tensor([[0, 1, 2, 2, 3], [1, 0, 1, 3, 3]])
        super().__init__([Data(x=torch.rand(5, 4), edge_index=edge_index, y=torch.arange(5)[:, None] % 2)])

    def get_idx_split(self):
        return {"train": torch.tensor([0, 1]), "valid": torch.tensor([2]), "test": torch.tensor([3, 4])}


def test_arxiv(tmp_path, monkeypatch):
    fake = ModuleType("ogb.nodeproppred")
    fake.PygNodePropPredDataset = Arxiv  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ogb", ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", fake)
    parties = load_parties(DataSettings(dataset="ogbn-arxiv", root=tmp_path), 0)
    pooled = pool(parties, "A")
    assert sorted(pooled.edge_index.T.tolist()) == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]]
    assert members(pooled.train_mask) == [0, 1]
    with refused(DataError, key="data.dataset", value="ogbn-arxiv"):
        load_parties(DataSettings(dataset="ogbn-arxiv", root=tmp_path / "offline"), 0)


@pytest.mark.skipif(
    not Path(DATA or "", "planetoid", "Cora", "raw", "ind.cora.x").is_file(),
    reason="VEILGRAPH_DATA does not name a folder that has the public data sets",
)
class TestPublicData:
    @pytest.mark.parametrize(
        ("dataset", "nodes", "edges", "features", "classes"),
        [("cora", 2708, 5278, 1433, 7), ("citeseer", 3327, 4552, 3703, 6), ("pubmed", 19717, 44324, 500, 3)],
    )
    def test_planetoid(self, dataset, nodes, edges, features, classes):
        parties = load_parties(DataSettings(dataset=dataset, holders=3, feature_scaling="row"), 0)
        assert all(party.num_nodes == nodes for party in parties)
        assert sum(party.num_edges for party in parties) == 2 * edges
        assert sum(party.num_features for party in parties) == features
        assert all(party.features.layout == torch.sparse_csr for party in parties)
        assert parties[0].num_classes == classes
        counts = [len(members(mask)) for mask in (parties[0].train_mask, parties[0].val_mask, parties[0].test_mask)]
        assert counts == [20 * classes, 500, 1000]

    def test_acm(self):
        first, second = load_parties(DataSettings(dataset="acm", feature_proportions=(1, 3)), 0)
        assert (first.num_nodes, first.num_edges // 2) == (4019, 26917)
        assert second.num_edges // 2 == 2167097
        assert first.num_features + second.num_features == 1902
        assert abs(3 * first.num_features - second.num_features) <= 4
        assert first.num_classes == 3
        assert len(members(first.train_mask)) == 60

    @pytest.mark.skipif(
        not Path(DATA or "", "fraud", "amazon_upu", "Amazon.mat").is_file(),
        reason="VEILGRAPH_DATA does not name a folder that has fraud/amazon_upu/Amazon.mat",
    )
    def test_amazon(self):
        parties = load_parties(DataSettings(dataset="amazon", holders=3), 0)
        assert all(party.num_nodes == 10224 for party in parties)
        assert sum(party.num_edges for party in parties) == 2 * 175608
        assert sum(party.num_features for party in parties) == 25
        labels = parties[0].labels
        assert labels is not None
        assert torch.bincount(labels + 1).tolist() == [2295, 7236, 693]
        counts = [len(members(mask)) for mask in (parties[0].train_mask, parties[0].val_mask, parties[0].test_mask)]
        assert counts == [3171, 1587, 3171]

    @pytest.mark.skipif(
        not Path(DATA or "", "github", "target.csv").is_file(),
        reason="VEILGRAPH_DATA does not name a folder that has github",
    )
    @pytest.mark.parametrize(
        ("dataset", "nodes", "edges", "features", "entries", "classes"),
        [("facebook", 22470, 170823, 4714, 314583, 4), ("github", 37700, 289003, 4005, 690358, 2)],
    )
    def test_musae(self, dataset, nodes, edges, features, entries, classes):
        data = musae_data(dataset, data_root(DataSettings()), 0)
        assert data.x.shape == (nodes, features)
        assert data.x.values().numel() == entries
        assert data.num_edges == 2 * edges
        assert int(data.y.max()) + 1 == classes
        assert abs(int(data.train_mask.sum()) - nodes // 2) <= classes
        assert abs(int(data.val_mask.sum()) - nodes // 4) <= classes


# A split of the job's own


def shares(party):
    masks = [getattr(party, mask)[party.labels >= 0].float().mean() for mask in ("train_mask", "val_mask", "test_mask")]
    return [float(share) for share in masks]


@pytest.mark.parametrize("split", [(0.5, 0.25, 0.25), (0.1, 0.2, 0.3)])
def test_a_split_is_of_every_class_in_every_paradigm(split):
    settings = DataSettings(dataset="synthetic", holders=2, split=split)
    labelled = [
        load_parties(settings, 1)[0],
        load_for_learner(settings, "A", 1)[0],
        load_for_learner(settings, "B", 1)[1],
    ]
    for party in labelled:
        assert shares(party) == pytest.approx(split, abs=0.01)
        for label in range(3):
            trained = chosen(party.train_mask, party.labels == label)
            assert float(trained.float().mean()) == pytest.approx(split[0], abs=0.01)
    dealt = sum(len(members(part.graph.train_mask)) for part in load_parts(settings, 1))
    assert dealt / 400 == pytest.approx(split[0], abs=0.01), "each label is one holder's"


def test_a_split_follows_the_seed_and_without_one_the_data_sets_own_is_taken():
    drawn = DataSettings(dataset="synthetic", split=(0.5, 0.25, 0.25))
    one, again = (load_for_learner(drawn, "A", 1)[0] for _ in range(2))
    assert members(one.train_mask) == members(again.train_mask)
    data = synthetic_data(seed=2)
    own = load_for_learner(DataSettings(dataset="synthetic"), "A", 2)[0]
    assert members(own.train_mask) == members(data.train_mask)
    assert members(load_for_learner(drawn, "A", 2)[0].train_mask) != members(own.train_mask)


def test_a_split_without_training_nodes_is_refused():
    with refused(DataError, key="train_mask", party="A"):
        load_for_learner(DataSettings(dataset="synthetic", split=(0.0, 0.5, 0.5)), "A", 0)
    load_for_learner(DataSettings(dataset="synthetic", split=(0.5, 0.5, 0.0)), "A", 0)


# For a learner


def test_a_learners_graphs_are_in_the_jobs_order_and_unscaled():
    settings = DataSettings(dataset="synthetic", holders=3, label_holder="C")
    parties = load_for_learner(settings, "C", 4)
    assert [party.party for party in parties] == ["A", "B", "C"]
    data = synthetic_data(seed=4)
    assert parties[2].num_edges == data.num_edges
    assert parties[2].num_classes == 3
    dealt = torch.cat([party.features.to_dense() for party in parties[:2]], dim=1)
    assert sorted(map(tuple, dealt.T.tolist())) == sorted(map(tuple, data.x.T.tolist()))
