"""What a job is compared with: ways to come to predictions of the common nodes, all of one seed's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.comparison.figures import Floats, Scored, figures
from veilgraph.comparison.plain import ABOUT_PLAIN, PLAIN, across_apart
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.federation import find_label_holder
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import holder_alone, pool
from veilgraph.graph.settings import PartitionSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

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
    found |= _pooled_kinds(inputs, whole)
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
        way = partial(_by_the_best, inputs, whole, _in_one_place(Inputs(job, left)))
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
    each = "each holder" if len(graphs) > 1 else graphs[0].party
    beside = beside_job(job)
    classes, balanced = max(graph.num_classes or 0 for graph in graphs), job.train.class_weights == "balanced"

    def stacked(of: Callable[[PartyGraph], Floats | None]) -> Floats:
        found = ((graph.common, of(graph)) for graph in graphs)
        return np.concatenate([np.zeros((own, classes)) if one is None else one[:own] for own, one in found])

    def alone(by: Inputs, progress: Progress) -> Floats:
        trained = paradigm_of(by.settings).baselines.alone
        return stacked(lambda graph: _probabilities(trained(by, graph.party, progress)))

    def plain(name: str, _progress: Progress) -> Floats:
        models = PLAIN[name]
        return stacked(lambda g: None if g.labels is None else models(across_apart(g), job.seed, balanced=balanced))

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
    whole = _in_one_place(inputs)
    found |= _pooled_kinds(inputs, whole)
    if any(graph.common < graph.num_nodes for graph in graphs):
        inside = [graph.with_edges((graph.edge_index < graph.common).all(0)) for graph in graphs]
        without = partial(_by_the_best, inputs, whole, _in_one_place(replace(inputs, graphs=inside)))
        about = "the same without edges between nodes of different holders: what these bring"
        found[f"{POOLED} − edges across"] = Kind(without, epochs, EVERYTHING, about)
    return found


def nodes_of_test(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Labels of the nodes that ways are judged on, and which rows of their predictions these are: Tensor[T] each."""
    labels, rows = _judged_nodes(inputs, "test_mask")
    if not len(rows):
        whose = f"party {inputs.settings.data.label_party!r}" if inputs.settings.is_aligned else "holders"
        raise DataError(
            f"{whose}: test_mask: no node is one to test on, and ways are compared on these; set some aside "
            "(nodes.split.test)",
            key="test_mask",
        )
    return labels, rows


def _judged_nodes(inputs: Inputs, mask: str) -> tuple[Tensor, Tensor]:
    """Labels of the nodes of a split, ``val_mask`` or ``test_mask``, and their rows in predictions: Tensor[T] each."""
    graphs = inputs.graphs
    if inputs.settings.is_aligned:
        graphs = [find_label_holder(graphs, inputs.settings.data.label_party)]
    graphs = [graph.common_part() for graph in graphs]

    def joined(name: str) -> Tensor:
        each = [(graph.num_nodes, getattr(graph, name)) for graph in graphs]
        return torch.cat([torch.zeros(nodes, dtype=torch.long) if of is None else of for nodes, of in each])

    rows = torch.nonzero(joined(mask)).ravel()
    labels = joined("labels")[rows]
    return labels[labels >= 0], rows[labels >= 0]


def _in_one_place(inputs: Inputs) -> dict[str, Way]:
    """Ways on all data in one place, each trained once: the job's network and, where nodes can be told, plain models.

    Plain models see every holder's links as relations of their own, or those of a union each once.
    """
    job, network = inputs.settings, paradigm_of(inputs.settings).baselines
    balanced = job.train.class_weights == "balanced"

    def plain(name: str, _progress: Progress) -> Floats:
        aligned = job.is_aligned
        graph = pool(inputs.graphs, job.data.label_party, relational=True) if aligned else network.one_graph(inputs)
        assert graph is not None
        return PLAIN[name](graph, job.seed, balanced=balanced)

    tells = job.is_aligned or network.one_graph(inputs) is not None
    ways = {"network": _network(network.pooled, inputs)} | {name: partial(plain, name) for name in PLAIN if tells}
    return {name: _cached(way) for name, way in ways.items()}


def _pooled_kinds(inputs: Inputs, whole: dict[str, Way]) -> dict[str, Kind]:
    """Each way on all data in one place and, before them, the one that ranks validation nodes best."""
    epochs = inputs.settings.train.epochs
    about = "the job's network on all holders' columns and the union of their links"
    if not inputs.settings.is_aligned:
        about = "the job's network on all holders' nodes and links in one place, as nobody may have them"
    if len(whole) == 1:
        return {POOLED: Kind(whole["network"], epochs, EVERYTHING, about)}
    way = partial(_by_the_best, inputs, whole, whole)
    best = "all holders' data in one place, as nobody may have them: that of the next lines that ranks validation "
    found = {POOLED: Kind(way, epochs, EVERYTHING, f"{best}nodes best")}
    found[f"{POOLED}: network"] = Kind(whole["network"], epochs, EVERYTHING, about)
    for name in PLAIN:
        found[f"{POOLED}: {name}"] = Kind(whole[name], 0, EVERYTHING, f"{ABOUT_PLAIN[name]}, all holders'")
    return found


def _by_the_best(inputs: Inputs, whole: dict[str, Way], of: dict[str, Way], progress: Progress) -> Floats:
    """Of ways ``of`` the one that is best on all data: what is left out is to be missed by that one, not by another."""
    return of[_best_by_auc(inputs, whole, progress)](progress)


def _cached(way: Way) -> Way:
    kept = list[Floats]()

    def again(progress: Progress) -> Floats:
        if not kept:
            kept.append(way(progress))
        return kept[0]

    return again


def _best_by_auc(inputs: Inputs, each: Mapping[str, Way], progress: Progress) -> str:
    """Of several ways the one with the highest AUC on validation nodes; the first where it is undefined."""
    labels, rows = _judged_nodes(inputs, "val_mask")
    found = {name: way(progress)[rows] for name, way in each.items()} if len(rows) else {}
    aucs = {name: figures(Scored(labels.numpy(), one), 1.0)["auc"] for name, one in found.items()}
    return max(each, key=lambda name: float(np.nan_to_num(aucs.get(name, np.nan), nan=-1.0)))


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
