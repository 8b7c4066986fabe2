"""Random tiny jobs of every paradigm over saved graphs, and changes of one holder's data."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.perturbed import holders as own_nodes
from tests.paradigms.sealed.programs import small_graphs
from tests.paradigms.sealed.programs import small_job as sealed_job
from tests.roles.federation import merge, small_job, small_parties
from tests.roles.local_parties import MECHANISMS, local_job, local_parties
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job

CHANGES = ("row", "column", "edge", "label")
LABEL_HOLDER = "A"
TIMEOUT_S = 600
"""Nothing is lost unnoticed in a pair, and the machine may be busy."""


@dataclass(frozen=True)
class Drawn:
    """A job, and where its holders' graphs lie.

    Attributes:
        settings: of the job.
        graphs: of the holders.
        folder: of the graphs' files.
    """

    settings: JobSettings
    graphs: Sequence[PartyGraph]
    folder: Path

    def change(self, draw: random.Random) -> PartyId:
        """Change the data of one holder where they lie, and say whose."""
        graph = draw.choice(list(self.graphs))
        kinds = [kind for kind in CHANGES if kind != "label" or graph.labels is not None]
        _save(self.folder, changed(graph, draw.choice(kinds), draw))
        return graph.party


def changed(graph: PartyGraph, kind: str, draw: random.Random) -> PartyGraph:
    """The graph with one row, column, edge or label of another value."""
    features, nodes = graph.features.to_dense().clone(), graph.num_nodes
    if kind == "row" and features.numel():
        features[draw.randrange(nodes)] *= -0.5
    if kind == "column" and features.numel():
        features[:, draw.randrange(features.shape[1])] *= -0.5
    if kind == "edge":
        ends = torch.tensor([[draw.randrange(nodes), draw.randrange(nodes)]]).T
        edges = torch.cat([graph.edge_index, ends, ends.flip(0)], 1)
        return replace(graph, edge_index=edges, edge_weight=None)
    if kind == "label" and graph.labels is not None and graph.num_classes:
        labels, node = graph.labels.clone(), draw.randrange(nodes)
        labels[node] = (labels[node] + 1) % graph.num_classes
        return replace(graph, labels=labels)
    return replace(graph, features=features)


def _save(folder: Path, graph: PartyGraph) -> None:
    """With ids, of which neighbouring holders have some in common."""
    shift = 10 * (ord(graph.party) - ord(LABEL_HOLDER)) if graph.num_common is None else 0
    names = [f"n{row + shift}" for row in range(graph.num_nodes)]
    save_party(graph, folder / f"{graph.party}.safetensors", ids=names)


def _train(draw: random.Random, **changes: Any) -> dict[str, Any]:
    steps = {"epochs": draw.choice([2, 3]), "checkpoint_every": draw.choice([1, 1, 2]), "patience": None}
    return {"train": steps | changes}


def _vertical(draw: random.Random) -> tuple[JobSettings, list[PartyGraph]]:
    holders = draw.choice([2, 3])
    methods = ["collaborative", "collaborative", "secure-sum", "individual"]
    model: dict[str, Any] = {
        "dim": draw.choice([3, 4]),
        "initial": {"method": draw.choice(methods)},
        "local": {"dropout": draw.choice([0.0, 0.2])},
        "combine": {"strategy": draw.choice(["mean", "concat", "regression"])},
    }
    labels = {"label_privacy": {"epsilon": 2.0}} if draw.random() < 0.3 else {}
    steps = _train(draw, select_by=draw.choice(["last", "accuracy"]))
    job = small_job(holders, {"model": model, "seed": draw.randrange(1000)}, steps, labels)
    return job, small_parties(holders, seed=draw.randrange(1000))


def _horizontal(draw: random.Random) -> tuple[JobSettings, list[PartyGraph]]:
    holders = draw.choice([2, 3])
    models: list[Mapping[str, Any]] = [
        {},
        {"combine": "secure-max"},
        {"aggregate": "mean", "edges": "deduplicate"},
        {"message": "none"},
    ]
    dropout = {"model": {"dim": 3, "server": {"dropout": draw.choice([0.0, 0.3])}}, "seed": draw.randrange(1000)}
    labels = {"label_privacy": {"epsilon": 2.0}} if draw.random() < 0.3 else {}
    job = horizontal_job(holders, dropout, {"model": draw.choice(models)}, _train(draw), labels)
    return job, _own_nodes(holders, draw)


def _own_nodes(holders: int, draw: random.Random, nodes: int = 24) -> list[PartyGraph]:
    """Graphs that a job takes: a holder without training or validation nodes is refused."""
    while True:
        graphs = own_nodes(nodes * holders, holders, draw.randrange(1000))
        masks = [mask for graph in graphs for mask in (graph.train_mask, graph.val_mask) if mask is not None]
        if all(bool(mask.any()) for mask in masks):
            return graphs


def _averaging(draw: random.Random) -> tuple[JobSettings, list[PartyGraph]]:
    aside = random.Random()  # the other jobs are what they are without private ones among them
    aside.setstate(draw.getstate())
    private = aside.random() > 0.6
    holders = draw.choice([3, 4])
    rules: list[Mapping[str, Any]] = [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.3}, {"name": "fedadam"}]
    terms: dict[str, Any] = {"rule": draw.choice(rules), "local_epochs": 1, "patience_s": TIMEOUT_S / 6}
    if draw.random() < 0.3:
        terms["personal"] = ["input"]
    changes: list[Mapping[str, Any]] = [_train(draw, select_by=draw.choice(["last", "accuracy"]))]
    model: dict[str, Any] = {"dim": 3, "dropout": draw.choice([0.0, 0.1])}
    if private:
        terms |= {"rule": {"name": "fedsgd"}, "personal": [], "privacy": _sampled(draw, holders)}
        model |= {"dropout": 0.0, "local": {"model": draw.choice(["gin", "sage-mean"]), "hops": 1}}
        changes = [_train(draw, select_by="last")]
    data = {"holders": holders, "split": [0.5, 0.25, 0.25], "stratify": False}
    settings = {"model": model, "seed": draw.randrange(1000), "averaging": terms, "timeout_s": TIMEOUT_S, "data": data}
    job = averaging_job(settings, *changes)
    graphs = _own_nodes(3, draw, nodes=32)
    if holders == 4:
        graphs = [*_own_nodes(3, draw), replace(_own_nodes(3, draw)[0], party="D")]
    return job, graphs


def _sampled(draw: random.Random, holders: int) -> dict[str, Any]:
    """Noise of every holder, or, of four, noise made together."""
    joint = {"joint_noise": {"colluding": 1}} if holders == 4 and draw.random() < 0.5 else {}
    noise = {"noise_multiplier": draw.choice([2.0, 4.0]), "delta": 1e-4, "degree_bound": 20}
    return noise | joint | {"batch": 6, "sampling_rate": draw.choice([0.25, 1.0])}


def _node_dp(draw: random.Random) -> tuple[JobSettings, list[PartyGraph]]:
    holders, features = draw.choice([2, 3]), dict(draw.choice(list(MECHANISMS.values())))
    labels = {"release": {"labels": {"holder": "B", "epsilon": 2.0}}} if draw.random() < 0.5 else {}
    split = {"data": {"split": [0.5, 0.25, 0.25], "stratify": False}} if labels else {}
    steps: dict[str, Any] = {"model": {"dim": 3, "hops": 1}}
    if not labels and draw.random() < 0.5:
        noise = {"unit": "edge", "epsilon_total": 4.0, "delta": 1e-4, "hops": draw.choice([1, 2])}
        steps = {"model": {"dim": 3, "hops": "auto"}, "privacy": noise}
    changes = (steps, {"seed": draw.randrange(1000)}, labels, split, _train(draw))
    job = local_job(holders, *changes, **features)
    return job, local_parties(job, own=draw.random() < 0.5, seed=draw.randrange(1000))


def _sealed(draw: random.Random) -> tuple[JobSettings, list[PartyGraph]]:
    holders, nodes = draw.choice([2, 2, 3]), draw.choice([16, 24])
    model: dict[str, Any] = {"network": draw.choice(["linear", "mlp"]), "hidden": 3}
    changes: dict[str, Any] = {"output": draw.choice(["classes", "margins"])}
    blocks = ["own", "pooled.1", "pooled.2", "pooled.4"]
    if model["network"] == "linear" and draw.random() < 0.5:
        changes["privacy"] = {"unit": "edge", "epsilon_total": 8.0}
        model["edge_slots"] = 1024
    else:
        blocks += ["neighbours", "each.1"]
    model["blocks"] = draw.sample(blocks, draw.randint(1, 3))
    train = _train(draw, select_by="last" if "privacy" in changes else draw.choice(["last", "accuracy", "auc"]))
    del train["train"]["patience"]
    settings = {"model": model, "seed": draw.randrange(1000), **changes}
    training = draw.choice([6, nodes - 4])
    graphs = small_graphs(holders, nodes=nodes, columns=3, training=training, seed=draw.randrange(1000))
    return sealed_job(holders, settings, train), graphs


PARADIGMS: Mapping[str, Callable[[random.Random], tuple[JobSettings, list[PartyGraph]]]] = {
    "vertical": _vertical,
    "horizontal": _horizontal,
    "averaging": _averaging,
    "node-dp": _node_dp,
    "sealed": _sealed,
}


def drawn(paradigm: str, draw: random.Random, folder: Path) -> Drawn:
    """A random job, with its holders' graphs saved in a folder."""
    job, graphs = PARADIGMS[paradigm](draw)
    folder.mkdir(parents=True)
    for graph in graphs:
        _save(folder, graph)
    said = {"graphs": {graph.party: str(folder / f"{graph.party}.safetensors") for graph in graphs}}
    content = job.model_dump(mode="json", exclude_unset=True)
    content["timeout_s"] = TIMEOUT_S
    content["data"] = {**{key: content["data"][key] for key in ("feature_scaling",) if key in content["data"]}, **said}
    return Drawn(parse_job(merge(content)), graphs, folder)
