"""What a job is compared with: ways to come to predictions of the common nodes, all of one seed's data.

Plain models are what somebody would try first: they know nothing of graphs, or of neighbours no more than their means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from veilgraph.comparison.figures import Floats, Scored, figures
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import to_numbers
from veilgraph.graph.partition import holder_alone, pool
from veilgraph.graph.party import PartyGraph, find_label_holder
from veilgraph.graph.settings import PartitionSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

TREES: Final = 150
"""Of boosting, for each class."""
# Boosting takes means over neighbours of so many columns at most, those that differ most from node to node.
_MOST_COLUMNS: Final = 600


def logistic(graph: PartyGraph, seed: int, *, balanced: bool) -> Floats:
    """Logistic regression on a graph's columns: probabilities [N, C]; ``balanced``: classes weigh alike."""

    def model(strength: float) -> Any:  # noqa: ANN401 - of a library without types
        inverse = LogisticRegression(C=strength, max_iter=1000, class_weight="balanced" if balanced else None)
        return make_pipeline(StandardScaler(with_mean=False), inverse)

    return _best_model(graph, to_numbers(graph.features), [partial(model, strength) for strength in (0.003, 0.03, 0.3)])


def boosting(graph: PartyGraph, seed: int, *, balanced: bool) -> Floats:
    """Boosted trees on the columns and, by relation, their means over one and two hops and degrees: [N, C]."""
    own = to_numbers(graph.features)
    dense = own.toarray() if sp.issparse(own) else own
    most = max(1, _MOST_COLUMNS // max(1, len(graph.relations)))
    if dense.shape[1] > most:
        dense = dense[:, np.sort(np.argsort(-dense.var(axis=0), kind="stable")[:most])]
    parts = [dense]
    for place in range(max(1, len(graph.relations))):
        mean, degrees = _mean_over_neighbours(graph, place if graph.relations else None)
        rows = dense
        for _ in range(2):
            rows = mean @ rows
            parts.append(rows)
        parts.append(degrees[:, None])
    x = np.concatenate(parts, axis=1)

    def model(leaves: int, rate: float) -> Any:  # noqa: ANN401 - of a library without types
        return HistGradientBoostingClassifier(
            max_leaf_nodes=leaves,
            learning_rate=rate,
            max_iter=TREES,
            early_stopping=False,
            class_weight="balanced" if balanced else None,
            random_state=seed,
        )

    return _best_model(graph, x, [partial(model, *pair) for pair in ((4, 0.05), (15, 0.05), (31, 0.1))])


def _best_model(graph: PartyGraph, x: Any, models: list[Callable[[], Any]]) -> Floats:  # noqa: ANN401 - dense or sparse
    """Fit models, and give probabilities [N, C] of the one with the lowest log loss on validation nodes."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    labels, train, val = graph.labels.numpy(), graph.train_mask.numpy(), graph.val_mask.numpy()
    classes = graph.num_classes or int(labels.max()) + 1
    tried = [np.zeros((len(labels), classes)) for _ in models]
    for make, likely in zip(models, tried, strict=True):
        model = make().fit(x[train], labels[train])
        likely[:, model.classes_] = model.predict_proba(x)
    return min(tried, key=lambda likely: float(log_loss(labels[val], likely[val], labels=range(classes))))


def _mean_over_neighbours(graph: PartyGraph, relation: int | None) -> tuple[sp.csr_matrix, Floats]:
    """The matrix of means over neighbours of a relation [N, N], and degrees [N]; None: over all edges."""
    if relation is not None:
        assert graph.edge_relation is not None
        graph = graph.with_edges(torch.nonzero(graph.edge_relation == relation).ravel())
    source, target = graph.edge_index.numpy()
    weight = np.ones(len(source)) if graph.edge_weight is None else graph.edge_weight.double().numpy()
    matrix = sp.csr_matrix((weight, (target, source)), shape=(graph.num_nodes, graph.num_nodes))
    degrees = np.asarray(matrix.sum(axis=1)).ravel()
    scale = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    return sp.diags(scale) @ matrix, degrees


PLAIN: Final[Mapping[str, Callable[..., Floats]]] = {"logistic": logistic, "boosting": boosting}
ABOUT_PLAIN: Final[Mapping[str, str]] = {
    "logistic": "a logistic regression on the columns",
    "boosting": "boosted trees on the columns, their means over neighbours and over neighbours' neighbours, and the "
    "degree, each relation apart",
}
"""Name of a plain model → what it is, in words; on whose data is said behind."""


POOLED: Final = "pooled"

Way = Callable[[Progress], Floats]
"""Trains, and gives probabilities of the common nodes [N, C]."""


@dataclass(frozen=True)
class Kind:
    """A way to predict, in at most so many epochs, or 0, and what it takes.

    ``shares``: what has to be shown to whom, from ``NOBODY`` to ``EVERYTHING``; ``about``: what is trained on what.
    """

    way: Way
    epochs: int
    shares: str
    about: str


NOBODY: Final = "nothing"
LABELS: Final = "the label holder's labels, to another holder"
AS_JOB: Final = "as the paradigm says"
EVERYTHING: Final = "everything, to one place"


def beside_job(job: JobSettings) -> JobSettings | None:
    """A job of another paradigm over the same data, with what both are to have alike; None where there is none."""
    if (said := paradigm_of(job).baselines.beside(job)) is None:
        return None
    alike = job.model_dump(mode="json", include={"name", "preset", "seed", "data", "timeout_s"})
    return parse_job({**alike, "train": {"class_weights": job.train.class_weights}, **said})


def ways(inputs: Inputs, *, at_home: bool = False, alone_by: JobSettings | None = None) -> dict[str, Kind]:
    """Name → what a job is compared with, itself among it; those of the label holder by itself come first.

    ``at_home`` leaves out all that needs others' data; ``alone_by`` adds its network with that job's settings.
    """
    job, graphs = inputs.settings, inputs.graphs
    if not job.is_aligned:
        return _own_ways(inputs, at_home=at_home)
    holder, epochs = job.data.label_party, job.train.epochs
    own = holder_alone(graphs, holder, holder)

    def alone(name: PartyId, by: Inputs, whose: str = "the job's network", shares: str = NOBODY) -> Kind:
        way = _network(paradigm_of(by.settings).baselines.alone, by, name)
        return Kind(way, by.settings.train.epochs, shares, f"{whose} on {name}'s columns and links alone")

    found = {f"{holder} alone": alone(holder, inputs)}
    found |= {f"{holder}: {name}": _plain_kind(name, own, job, f"{holder}'s own", NOBODY) for name in PLAIN}
    if alone_by is not None:
        by = Inputs(with_overrides(alone_by, {"seed": job.seed}), graphs)
        found[f"{holder} alone, own settings"] = alone(holder, by, "a network with settings for that")
    if at_home:
        return found
    if (beside := beside_job(job)) is not None:
        beside = paradigm_of(beside).data.fit_bounds_to(beside, graphs)
    found |= _together(inputs, beside)

    whole = _in_one_place(inputs)

    def pooled(all_there: dict[str, Way], progress: Progress) -> Floats:
        # All data choose the learner: what is left out is to be missed by that one, not by another.
        return all_there[_better_by_auc(inputs, whole, progress)](progress)

    found |= {
        POOLED: Kind(partial(pooled, whole), epochs, EVERYTHING, "all holders' data in one place, as nobody may have "
         "them: the network or boosting of the next lines, whichever ranks validation nodes better"),
        f"{POOLED}: network": Kind(whole["network"], epochs, EVERYTHING, "the job's network on all holders' columns "
         "and the union of their links"),
        f"{POOLED}: boosting": Kind(whole["boosting"], 0, EVERYTHING, f"{ABOUT_PLAIN['boosting']}, all holders' links "
         "as relations of their own"),
        f"{POOLED}: logistic": _plain_kind("logistic", pool(graphs, holder), job, "all holders'", EVERYTHING),
    }  # fmt: skip
    others = [each for each in graphs if each.party != holder]
    no_links = [replace(each.with_edges(torch.empty(0, dtype=torch.int64)), edge_weight=None) for each in graphs]
    rest = {"all links": no_links}
    for place, each in enumerate(graphs):
        if each.party != holder:
            no_columns = replace(each, features=torch.zeros(each.num_nodes, 1, dtype=each.features.dtype))
            for what, less in (("columns", no_columns), ("links", no_links[place])):
                rest[f"{each.party}'s {what}"] = [*graphs[:place], less, *graphs[place + 1 :]]
    for what, left in rest.items():
        about = f"the same learner as pooled, without {what}: what these bring"
        way = partial(pooled, _in_one_place(Inputs(job, left)))
        found[f"{POOLED} − {what}"] = Kind(way, epochs, EVERYTHING, about)
    return found | {f"{each.party} alone, lent labels": alone(each.party, inputs, shares=LABELS) for each in others}


def _together(
    inputs: Inputs, beside: JobSettings | None, ids: Mapping[PartyId, Sequence[str]] | None = None
) -> dict[str, Kind]:
    """The job itself and, beside it, the job of another paradigm over the same data."""
    jobs = [(inputs.settings, "the job as it is, with all parties and messages")]
    if beside is not None:
        jobs.append((beside, f"the same data by paradigm {beside.paradigm} with its defaults"))
    return {
        job.paradigm: Kind(partial(_federated, job, inputs.graphs, ids=ids), job.train.epochs, AS_JOB, about)
        for job, about in jobs
    }


def _own_ways(inputs: Inputs, *, at_home: bool) -> dict[str, Kind]:
    """``ways`` of a job whose holders have nodes of their own: each predicts all holders' rows, in the job's order."""
    job, graphs, epochs = inputs.settings, inputs.graphs, inputs.settings.train.epochs
    paradigm, each = paradigm_of(job), "each holder" if len(graphs) > 1 else graphs[0].party
    beside = beside_job(job)
    classes, balanced = max(graph.num_classes or 0 for graph in graphs), job.train.class_weights == "balanced"

    def stacked(of: Callable[[PartyGraph], Floats | None]) -> Floats:
        found = ((graph.common, of(graph)) for graph in graphs)
        return np.concatenate([np.zeros((own, classes)) if one is None else one[:own] for own, one in found])

    def alone(by: Inputs, progress: Progress) -> Floats:
        trained = paradigm_of(by.settings).baselines.alone
        return stacked(lambda graph: _probabilities(trained(by, graph.party, progress)))

    def plain(name: str, _progress: Progress) -> Floats:
        return stacked(lambda g: None if g.labels is None else PLAIN[name](g, job.seed, balanced=balanced))

    about = f"the job's network on {each}'s own nodes and links alone, judged on these nodes"
    found = {f"{each} alone": Kind(partial(alone, inputs), epochs, NOBODY, about)}
    if beside is not None:
        way = partial(alone, replace(inputs, settings=beside))
        about = f"the network of paradigm {beside.paradigm} on {each}'s own nodes and links alone"
        found[f"{each} alone: {beside.paradigm}'s network"] = Kind(way, beside.train.epochs, NOBODY, about)
    for name in PLAIN:
        found[f"{each}: {name}"] = Kind(partial(plain, name), 0, NOBODY, f"{ABOUT_PLAIN[name]}, {each}'s own")
    if at_home:
        return found
    found |= _together(inputs, beside, inputs.ids)
    about = "the job's network on all holders' nodes and links in one place, as nobody may have them"
    found[POOLED] = Kind(_network(paradigm.baselines.pooled, inputs), epochs, EVERYTHING, about)
    if any(graph.common < graph.num_nodes for graph in graphs):
        inside = [graph.with_edges((graph.edge_index < graph.common).all(0)) for graph in graphs]
        without = _network(paradigm.baselines.pooled, replace(inputs, graphs=inside))
        about = "the same without edges between nodes of different holders: what these bring"
        found[f"{POOLED} − edges across"] = Kind(without, epochs, EVERYTHING, about)
    return found


def nodes_of_test(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Labels of the nodes that ways are judged on, and which rows of their predictions these are: Tensor[T] each."""
    holder = inputs.settings.data.label_party
    if inputs.settings.is_aligned:
        graphs, whose = [find_label_holder(inputs.graphs, holder).common_part()], f"party {holder!r}"
    else:
        graphs, whose = [graph.common_part() for graph in inputs.graphs], "holders"
    none = [torch.zeros(graph.num_nodes, dtype=torch.long) for graph in graphs]
    labels = torch.cat([at if graph.labels is None else graph.labels for graph, at in zip(graphs, none, strict=True)])
    masks = [at if graph.test_mask is None else graph.test_mask for graph, at in zip(graphs, none, strict=True)]
    rows = torch.nonzero(torch.cat(masks)).ravel()
    if not len(rows):
        raise DataError(
            f"{whose}: test_mask: no node is one to test on, and ways are compared on these; set some aside "
            "(nodes.split.test)",
            key="test_mask",
        )
    return labels[rows], rows


def _in_one_place(inputs: Inputs) -> dict[str, Way]:
    """Two ways on pooled data, each trained once: the job's network, and boosting by relation."""
    job, holder = inputs.settings, inputs.settings.data.label_party

    def boosted(_progress: Progress) -> Floats:
        graph = pool(inputs.graphs, holder, relational=True)
        return boosting(graph, job.seed, balanced=job.train.class_weights == "balanced")

    return {"network": _cached(_network(paradigm_of(job).baselines.pooled, inputs)), "boosting": _cached(boosted)}


def _cached(way: Way) -> Way:
    kept = list[Floats]()

    def again(progress: Progress) -> Floats:
        if not kept:
            kept.append(way(progress))
        return kept[0]

    return again


def _better_by_auc(inputs: Inputs, each: Mapping[str, Way], progress: Progress) -> str:
    """Of several ways the one with the highest AUC on validation nodes; the first where it is undefined."""
    labelled = find_label_holder(inputs.graphs, inputs.settings.data.label_party).common_part()
    assert labelled.labels is not None
    assert labelled.val_mask is not None
    val = torch.nonzero(labelled.val_mask & (labelled.labels >= 0)).ravel().numpy()
    found = {name: way(progress)[: labelled.num_nodes] for name, way in each.items()}
    aucs = {name: figures(Scored(labelled.labels.numpy()[val], one[val]), 1.0)["auc"] for name, one in found.items()}
    return max(aucs, key=lambda name: float(np.nan_to_num(aucs[name], nan=-1.0)))


def _network(train: Callable[..., PlainResult | None], *of: object) -> Way:
    """A way that runs a paradigm's plaintext training ``train(*of, progress)``."""

    def way(progress: Progress) -> Floats:
        likely = _probabilities(train(*of, progress))
        assert likely is not None  # who has no labels is lent some
        return likely

    return way


def _plain_kind(name: str, graph: PartyGraph, job: JobSettings, whose: str, shares: str) -> Kind:
    """The ``Kind`` of a plain model of ``PLAIN`` on a graph, balanced as the job's classes are."""
    balanced, about = job.train.class_weights == "balanced", f"{ABOUT_PLAIN[name]}, {whose}"
    return Kind(lambda _progress: PLAIN[name](graph, job.seed, balanced=balanced), 0, shares, about)


def _federated(
    job: JobSettings,
    graphs: Sequence[PartyGraph],
    progress: Progress,
    ids: Mapping[PartyId, Sequence[str]] | None = None,
) -> Floats:
    """Train a whole job, with all parties and messages, and return its probabilities; ``ids``: where nodes are own."""
    # The graphs are there, divided and scaled. Scaling again changes nothing, and networks depend on how columns are.
    there = {"parties": None, "partition": PartitionSettings()}
    data = job.data.model_copy(update=there)
    if not job.inputs.is_relational:  # and it takes no hops that only those jobs know
        graphs = [graph.merged() for graph in graphs]
    with TemporaryDirectory() as folder:
        job, run = job.model_copy(update={"data": data}), Path(folder) / "run"
        trained = train(job, run, parties=graphs, ids=ids, options=RunOptions(progress=progress), study=True)
        if not job.is_aligned:
            stores = [RunDirectory.open(run).party(graph.party) for graph in graphs if graph.common]
            return np.concatenate([load_predictions(store).uncalibrated.double().numpy() for store in stores])
        return np.asarray(trained.predictions.uncalibrated.double().numpy())


def _probabilities(result: PlainResult | None) -> Floats | None:
    return None if result is None else np.asarray(result.output.detach().double().softmax(dim=1).numpy())
