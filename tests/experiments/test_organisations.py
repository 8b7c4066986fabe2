import numpy as np
import pytest
import torch
import yaml

from tests.tables.writing import build
from veilgraph.graph.dataset import load_parties, load_parts
from veilgraph.graph.party import PartyGraph, unpack_ids
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import load_tensors
from veilgraph.samples.organisations import export_organisations, export_parts, job_of

HOLDERS = 3
JOB = parse_job(
    {
        "name": "small",
        "data": {"dataset": "synthetic", "holders": HOLDERS, "label_holder": "B"},
        "model": {"dim": 8, "local": {"hops": 1}},
        "train": {"epochs": 4},
    }
)


def whole_graphs():
    return load_parties(JOB.data, 0)


def built(path, common=None):
    return build(read_party_settings(path), path.parent, common)


def rows_of(ids):
    return np.array([int(text.removeprefix("C")) for text in ids])


def pairs(graph, rows):
    """Edges by the rows of the whole, sorted, with their weights."""
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    source, target = rows[graph.edge_index.numpy()]
    return sorted(zip(source.tolist(), target.tolist(), weight.tolist(), strict=True))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_give_back_what_each_holder_knows(tmp_path, suffix):
    graphs = whole_graphs()
    files = export_organisations(graphs, tmp_path, overlap=0.7, seed=3, format=suffix)
    assert list(files) == ["A", "B", "C"]
    for graph in graphs:
        back = built(files[graph.party])
        rows = rows_of(back.ids.to_pylist())
        assert (np.diff(rows) < 0).any()
        assert torch.equal(back.graph.features, graph.features[rows])
        known = np.isin(graph.edge_index.numpy(), rows).all(axis=0)
        mine = PartyGraph(graph.party, graph.features, graph.edge_index[:, known])
        assert pairs(back.graph, rows) == pairs(mine, np.arange(400))
        assert (back.graph.labels is None) == (graph.party != "B")
    labelled, whole = built(files["B"]), graphs[1]
    rows = rows_of(labelled.ids.to_pylist())
    assert torch.equal(labelled.graph.labels, whole.labels[rows])
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(labelled.graph, mask), getattr(whole, mask)[rows])


def test_directed_weighted_unlabelled_and_sparse(tmp_path):
    features = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.5, 0.1]]).to_sparse_csr()
    edge_index = torch.tensor([[0, 0, 1, 2], [1, 1, 2, 2]])
    train_mask, val_mask = torch.tensor([[True, False, False], [False, False, True]])
    weight, labels = torch.tensor([0.1, 2, 3, 4]), torch.tensor([1, -1, 0])
    one = PartyGraph("one", features, edge_index, weight, labels, train_mask, val_mask, num_classes=2)
    # Two edges from 0 to 1, two back, a loop: not directed.
    two = PartyGraph("two", torch.ones(3, 1), torch.tensor([[0, 1, 0, 1, 2], [1, 0, 1, 0, 2]]))
    files = export_organisations([one, two], tmp_path, overlap=1, seed=0)
    ids = ["C000000", "C000001", "C000002"]
    for graph in (one, two):
        back = built(files[graph.party], ids).graph
        assert torch.equal(back.features.to_dense(), graph.features.to_dense())
        assert pairs(back, np.arange(3)) == pairs(graph, np.arange(3))
    back = built(files["one"], ids).graph
    assert back.labels.tolist() == [1, -1, 0]
    masks = [back.train_mask.tolist(), back.val_mask.tolist(), back.test_mask.tolist()]
    assert masks == [[True, False, False], [False, False, True], [False, False, False]]
    directed = [yaml.safe_load(files[name].read_text())["edges"][0]["directed"] for name in ("one", "two")]
    assert directed == [True, False]


def weights(run):
    """All parties' weights; of W, which is shared at random, the sum of the shares."""
    found: dict[str, torch.Tensor] = {}
    for path in (run / "parties").glob("*/model.safetensors"):
        for name, tensor in load_tensors(path)[0].items():
            if "share/" in name:
                found[name] = tensor + found.get(name, torch.zeros((), dtype=tensor.dtype))
            else:
                found[f"{path.parent.name}/{name}"] = tensor
    return found


def as_aligned(graph, rows, common):
    """The holder's graph from the whole one, with none of the code for tables."""
    rows = torch.from_numpy(rows)
    place = torch.full((graph.num_nodes,), -1)
    place[rows] = torch.arange(len(rows))
    source, target = place[graph.edge_index]
    once = (source >= 0) & (target >= 0) & (graph.edge_index[0] <= graph.edge_index[1])
    there = torch.stack([source[once], target[once]])
    labels = {
        name: None if getattr(graph, name) is None else getattr(graph, name)[rows]
        for name in ("labels", "train_mask", "val_mask", "test_mask")
    }
    edges = torch.cat([there, there.flip(0)], dim=1)
    return PartyGraph(
        graph.party,
        graph.features[rows],
        edges,
        num_classes=graph.num_classes,
        num_common=common,
        **labels,  # type: ignore[arg-type]
    )


def test_training_from_tables_is_training_on_the_aligned_graphs(tmp_path):
    graphs = whole_graphs()
    export_organisations(graphs, tmp_path / "tables", overlap=0.8, seed=1, job=JOB)
    run = train(read_job(tmp_path / "tables" / "job.yaml"), tmp_path / "run").path
    aligned = []
    for graph in graphs:
        ids = unpack_ids(load_tensors(run / "parties" / graph.party / "nodes.safetensors")[0])
        aligned.append(as_aligned(graph, rows_of(ids), 320))
    direct = train(JOB, tmp_path / "direct", parties=aligned).path
    from_tables, from_graphs = weights(run), weights(direct)
    assert sum("share/" in name for name in from_tables) == HOLDERS
    assert from_tables.keys() == from_graphs.keys()
    assert {name for name in from_tables if not torch.equal(from_tables[name], from_graphs[name])} == set()


HORIZONTAL = parse_job(
    {
        "name": "parts",
        "paradigm": "horizontal",
        "data": {"dataset": "synthetic", "holders": HOLDERS, "partition": {"overlap": 0.3}},
        "model": {"layers": 3, "combine": "secure-max"},
    }
)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_horizontal_holders_tables_give_back_their_parts(tmp_path, suffix):
    files = export_parts(HORIZONTAL.data, tmp_path, 3, suffix, job=HORIZONTAL)
    for part in load_parts(HORIZONTAL.data, 3):
        back, graph = built(files[part.graph.party]), part.graph
        rows = rows_of(back.ids.to_pylist())
        at = np.searchsorted(part.ids.numpy(), rows)
        assert sorted(rows) == part.ids.tolist()
        assert (np.diff(rows) < 0).any()
        assert torch.equal(back.graph.features, graph.features.to_dense()[at])
        assert torch.equal(back.graph.labels, graph.labels[at])  # type: ignore[index]
        for mask in ("train_mask", "val_mask", "test_mask"):
            assert torch.equal(getattr(back.graph, mask), getattr(graph, mask)[at])
        assert pairs(back.graph, rows) == pairs(graph, part.ids.numpy())


def test_horizontal_party_files_accept_their_job(tmp_path):
    files = export_parts(HORIZONTAL.data, tmp_path, 3, job=HORIZONTAL)
    here, across = read_job(tmp_path / "job.yaml"), read_job(tmp_path / "network-job.yaml")
    assert here.hash() == across.hash()
    assert (here.paradigm, horizontal(here).model, here.seed) == ("horizontal", horizontal(HORIZONTAL).model, 3)
    for party, file in files.items():
        assert refusal_of(Organisation.read(file, party), here) is None
    assert job_of("cora", "horizontal").name == "cora-horizontal"
    assert job_of("digits", "horizontal").paradigm == "horizontal"
