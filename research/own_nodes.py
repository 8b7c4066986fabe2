"""Own nodes by the preset's defaults: horizontal and averaging beside each holder alone, fedprox, and all in one place.

Run it with: ``python -m research.own_nodes [--sets raw,cora] [--holders 2,4] [--seeds 3] [--epochs 200]``. Figures are
test accuracies over all holders' test nodes. Each is kept in ``docs/figures/own-nodes.json`` and is not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import networkx as nx  # type: ignore[import-untyped]
import torch
import typer
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from veilgraph_averaging import twin as averaging_baselines
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging

from docs.pages import figure_path
from veilgraph.core.files import write_whole
from veilgraph.graph.features import scale_together
from veilgraph.graph.partition import split_by_label, split_by_nodes
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.graph.settings import DATASETS, DataSettings, holder_names
from veilgraph.paradigms.horizontal import twin as horizontal_baselines
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.horizontal.twin import LayeredNetwork
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Judgement
from veilgraph.protocol.plain_fitting import PlainResult, fit

PAGE: Final = figure_path("own-nodes.json")
PARTS: Final = ("random", "classes", "communities")
NOTHING: Final = lambda _: None  # noqa: E731


def graph_of(name: str, seed: int) -> Data:
    """A data set by its name; ``raw``: 1,000 nodes of 8 classes with 100 columns of zeros and ones."""
    if name != "raw":
        settings = DataSettings.model_validate({"dataset": name, "holders": 2, "split": [0.5, 0.25, 0.25]})
        return DATASETS[name].whole(settings, seed)
    made = {"nodes": 1000, "classes": 8, "features": 8, "mean_degree": 12}
    data = DATASETS["block-model"].whole(DataSettings(dataset="block-model", block_model=made, holders=2), seed)
    generator = torch.Generator().manual_seed(seed)
    chance = 0.35 + 0.35 * 0.35 * (torch.rand(8, 100, generator=generator) - 0.5)
    data.x = torch.bernoulli(chance[data.y], generator=generator)
    return data


def parts_of(data: Data, kind: str, holders: int, seed: int) -> list[HorizontalPart]:
    """The data dealt to holders at random, mostly by class, or by Louvain's communities, the largest first."""
    names = holder_names(holders)
    if kind == "random":
        return split_by_nodes(data, names=names, seed=seed)
    if kind == "classes":
        return split_by_label(data, names=names, seed=seed, mixed=0.3)
    graph = nx.Graph()
    graph.add_nodes_from(range(int(data.num_nodes or 0)))
    graph.add_edges_from(data.edge_index.t().tolist())
    home, sizes = torch.zeros(len(graph), dtype=torch.int64), [0] * holders
    for community in sorted(nx.community.louvain_communities(graph, seed=seed), key=len, reverse=True):
        smallest = sizes.index(min(sizes))
        home[list(community)] = smallest
        sizes[smallest] += len(community)
    by_home = data.clone()
    by_home.y = home
    found = split_by_label(by_home, names=names, seed=seed, mixed=0.0)
    labelled = [replace(part.graph, labels=data.y[part.ids], num_classes=int(data.y.max()) + 1) for part in found]
    return [HorizontalPart(graph, part.ids) for graph, part in zip(labelled, found, strict=True)]


def _over_all(found: Sequence[PlainResult | None], parts: Sequence[HorizontalPart]) -> float:
    """Test accuracy of each holder's model on its own nodes, over all of these."""
    counts = [0 if part.graph.test_mask is None else int(part.graph.test_mask.sum()) for part in parts]
    right = [
        0.0 if one is None else one.summary["test_accuracy"] * n for one, n in zip(found, counts, strict=True) if n
    ]
    return sum(right) / sum(counts)


def averaged(job: AveragingJob, parts: Sequence[HorizontalPart]) -> float:
    """Test accuracy of the epoch that validation nodes choose."""
    plain, judgement, best = PlainAveraging(job, [part.graph for part in parts]), Judgement(), 0.0
    for epoch in range(1, job.train.epochs + 1):
        plain.round(epoch)
        scores = plain.scores()
        judgement = judgement.after(epoch, scores, job.train.select_by)
        best = float(scores.values["test_accuracy"] or 0) if judgement.best_epoch == epoch else best
        if judgement.stops(job.train):
            break
    return best


def pyg(data: Data, epochs: int, seed: int) -> float:
    """PyTorch Geometric's GraphSAGE of two layers on the whole graph, standardised columns."""
    torch.manual_seed(seed)
    x = data.x.to_dense() if data.x.layout == torch.sparse_csr else data.x
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    first, last = SAGEConv(x.shape[1], 64), SAGEConv(64, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.01, weight_decay=5e-4)
    best, found = -1.0, 0.0
    for _ in range(epochs):
        for trains in (True, False):
            hidden = torch.nn.functional.dropout(first(x, data.edge_index).relu(), 0.5, trains)
            logits = last(hidden, data.edge_index)
            if trains:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(logits[data.train_mask], data.y[data.train_mask]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        right = (logits.argmax(1) == data.y).double()
        if float(right[data.val_mask].mean()) > best:
            best, found = float(right[data.val_mask].mean()), float(right[data.test_mask].mean())
    return found


def measured(name: str, kind: str, holders: int, seed: int, epochs: int) -> dict[str, float]:
    """Way → test accuracy over all holders' test nodes."""
    data = graph_of(name, seed)
    parts = parts_of(data, kind, holders, seed)
    said: Mapping[str, Any] = {
        "preset": "auto",
        "seed": seed,
        "data": {"holders": list(holder_names(holders))},
        "train": {"epochs": epochs},
    }
    split = horizontal(parse_job({**said, "paradigm": "horizontal"}))
    mean = averaging(parse_job({**said, "paradigm": "averaging"}))
    plain = averaging(parse_job({**said, "paradigm": "averaging", "averaging": {"rule": {"name": "fedavg"}}}))
    scaled = scale_together([part.graph for part in parts], mean.data.feature_scaling)
    raw, parts = parts, [HorizontalPart(graph, part.ids) for graph, part in zip(scaled, parts, strict=True)]
    paper = horizontal(parse_job({**said, "preset": "paper", "paradigm": "horizontal"}))
    alone = [averaging_baselines.alone(mean, part.graph, NOTHING) for part in parts]
    alone_layered = [horizontal_baselines.alone(split, part, NOTHING) for part in parts]
    return {
        "each alone": _over_all(alone, parts),
        "each alone, horizontal's network": _over_all(alone_layered, parts),
        "horizontal": fit(LayeredNetwork(split.model, split.train, parts, seed=seed)).summary["test_accuracy"],
        "horizontal, papers' defaults": fit(LayeredNetwork(paper.model, paper.train, raw, seed=seed)).summary[
            "test_accuracy"
        ],
        "averaging (fedprox)": averaged(mean, parts),
        "averaging, fedavg": averaged(plain, parts),
        "all in one place": averaging_baselines.pooled(mean, [part.graph for part in parts], NOTHING).summary[
            "test_accuracy"
        ],
        "PyG, whole graph": pyg(data, epochs, seed),
    }


def main(
    sets: Annotated[str, typer.Option()] = "raw",
    holders: Annotated[str, typer.Option()] = "2,4,8",
    seeds: Annotated[int, typer.Option()] = 3,
    epochs: Annotated[int, typer.Option()] = 200,
) -> None:
    """Measures what is not in ``docs/figures/own-nodes.json`` yet."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    for name in sets.split(","):
        for count in map(int, holders.split(",")):
            for seed in range(seeds):
                for kind in PARTS:
                    key = f"{name}, {kind}, {count} holders, seed {seed}, {epochs} epochs"
                    if key not in found:
                        figures = measured(name, kind, count, seed, epochs)
                        found[key] = {way: round(value, 4) for way, value in figures.items()}
                        write_whole(PAGE, json.dumps(found, indent=1).encode())
                        typer.echo(f"{key}: {found[key]}")


if __name__ == "__main__":
    typer.run(main)
