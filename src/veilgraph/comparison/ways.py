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
from veilgraph.comparison.plain import ABOUT_PLAIN, PLAIN, boosting
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.federation import find_label_holder
from veilgraph.graph.partition import isolate, pool
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import PartitionSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.run.jobs import train
from veilgraph.run.predictions import load_predictions
from veilgraph.run.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

POOLED: Final = "pooled"

Way = Callable[[Progress], Floats]
"""Trains, and gives probabilities of the common nodes [N, C]."""


@dataclass(frozen=True)
class Kind:
    """A way to predict, and what it takes.

    Attributes:
        epochs: at most; 0 where there are none to show.
        shares: who has to show what to whom: nobody, as the job, or everybody everything.
        about: what is trained on what.
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
    """Name → what a job is compared with, itself among it.

    Those of the label holder by itself come first.

    Args:
        inputs: a job's, with every holder's graph; at home the label holder's alone.
        at_home: leave out all that needs others' data.
        alone_by: the label holder's network alone with the settings of this job also; None leaves it out.
    """
    job, graphs = inputs.settings, inputs.graphs
    if not job.is_aligned:
        return _own_ways(inputs, at_home=at_home)
    holder, epochs = job.data.label_party, job.train.epochs
    own = isolate(graphs, holder, holder)

    def alone(name: PartyId, by: Inputs, whose: str = "the job's network", shares: str = NOBODY) -> Kind:
        way = partial(_plain, partial(paradigm_of(by.settings).baselines.alone, by, name))
        return Kind(way, by.settings.train.epochs, shares, f"{whose} on {name}'s columns and links alone")

    found = {f"{holder} alone": alone(holder, inputs)}
    found |= {f"{holder}: {name}": _of_library(name, own, job, f"{holder}'s own", NOBODY) for name in PLAIN}
    if alone_by is not None:
        by = Inputs(with_overrides(alone_by, {"seed": job.seed}), graphs)
        found[f"{holder} alone, own settings"] = alone(holder, by, "a network with settings for that")
    if at_home:
        return found
    found[job.paradigm] = Kind(
        partial(_federated, job, graphs), epochs, AS_JOB, "the job as it is, with all parties and messages"
    )
    if (beside := beside_job(job)) is not None:
        beside = paradigm_of(beside).data.suited(beside, graphs)
        about = f"the same data by paradigm {beside.paradigm} with its defaults"
        found[beside.paradigm] = Kind(partial(_federated, beside, graphs), beside.train.epochs, AS_JOB, about)

    whole = _in_one_place(inputs)

    def pooled(all_there: dict[str, Way], progress: Progress) -> Floats:
        # All data choose the learner: what is left out is to be missed by that one, not by another.
        return all_there[_better(inputs, whole, progress)](progress)

    of_pooled: list[tuple[str, Way, int, str]] = [
        (POOLED, partial(pooled, whole), epochs, "all holders' data in one place, as nobody may have them: the network "
         "or boosting of the next lines, whichever ranks validation nodes better"),
        (f"{POOLED}: network", whole["network"], epochs, "the job's network on all holders' columns and the union of "
         "their links"),
        (f"{POOLED}: boosting", whole["boosting"], 0, f"{ABOUT_PLAIN['boosting']}, all holders' links as relations of "
         "their own"),
    ]  # fmt: skip
    found |= {name: Kind(way, most, EVERYTHING, about) for name, way, most, about in of_pooled}
    found[f"{POOLED}: logistic"] = _of_library("logistic", pool(graphs, holder), job, "all holders'", EVERYTHING)
    others = [each for each in graphs if each.party != holder]
    for each in others:
        for what, less in (("columns", _without_columns(each)), ("links", _without_links(each))):
            rest = Inputs(job, [less if graph is each else graph for graph in graphs])
            about = f"the same learner as pooled, without {each.party}'s {what}: what these bring"
            way = partial(pooled, _in_one_place(rest))
            found[f"{POOLED} − {each.party}'s {what}"] = Kind(way, epochs, EVERYTHING, about)
    return found | {f"{each.party} alone, lent labels": alone(each.party, inputs, shares=LABELS) for each in others}


def _own_ways(inputs: Inputs, *, at_home: bool) -> dict[str, Kind]:
    """As ``ways``, where holders have nodes of their own: every way predicts all holders' rows, in the job's order."""
    job, graphs, epochs = inputs.settings, inputs.graphs, inputs.settings.train.epochs
    paradigm, each = paradigm_of(job), "each holder" if len(graphs) > 1 else graphs[0].party
    beside = beside_job(job)
    classes, balanced = max(graph.num_classes or 0 for graph in graphs), job.train.class_weights == "balanced"

    def stacked(of: Callable[[PartyGraph], Floats | None]) -> Floats:
        found = ((graph, of(graph)) for graph in graphs)
        return np.concatenate([np.zeros((graph.num_nodes, classes)) if one is None else one for graph, one in found])

    def alone(by: Inputs, progress: Progress) -> Floats:
        def of(graph: PartyGraph) -> Floats | None:
            result = paradigm_of(by.settings).baselines.alone(by, graph.party, progress)
            return None if result is None else _likely(result.output)

        return stacked(of)

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
    about = "the job as it is, with all parties and messages"
    found[job.paradigm] = Kind(partial(_federated, job, graphs, ids=inputs.ids), epochs, AS_JOB, about)
    if beside is not None:
        way = partial(_federated, beside, graphs, ids=inputs.ids)
        about = f"the same data by paradigm {beside.paradigm} with its defaults"
        found[beside.paradigm] = Kind(way, beside.train.epochs, AS_JOB, about)
    about = "the job's network on all holders' nodes and links in one place, as nobody may have them"
    found[POOLED] = Kind(
        lambda progress: _likely(paradigm.baselines.pooled(inputs, progress).output), epochs, EVERYTHING, about
    )
    return found


def tested(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Labels of the nodes that ways are judged on, and which rows of their predictions these are: Tensor[T] each.

    Raises:
        DataError: there is none.
    """
    holder, key = inputs.settings.data.label_party, "test_mask"
    if inputs.settings.is_aligned:
        graphs, whose = [find_label_holder(inputs.graphs, holder).common_part()], f"party {holder!r}"
    else:
        graphs, whose = list(inputs.graphs), "holders"
    masks = [
        torch.zeros(graph.num_nodes, dtype=torch.bool) if graph.labels is None or mask is None else mask
        for graph in graphs
        for mask in [graph.test_mask]
    ]
    labels = [masks[at].long() if graph.labels is None else graph.labels for at, graph in enumerate(graphs)]
    rows = torch.nonzero(torch.cat(masks)).ravel()
    if not len(rows):
        raise DataError(
            f"{whose}: test_mask: no node is one to test on, and ways are compared on these; set some aside "
            "(nodes.split.test)",
            key=key,
        )
    return torch.cat(labels)[rows], rows


def _in_one_place(inputs: Inputs) -> dict[str, Way]:
    """What one place could do with all data, trained once each: the job's network, and boosting by relation."""
    job, holder = inputs.settings, inputs.settings.data.label_party
    kept = dict[str, Floats]()

    def network(progress: Progress) -> Floats:
        if "network" not in kept:
            kept["network"] = _plain(partial(paradigm_of(job).baselines.pooled, inputs), progress)
        return kept["network"]

    def boosted(_progress: Progress) -> Floats:
        if "boosting" not in kept:
            graph = pool(inputs.graphs, holder, relational=True)
            kept["boosting"] = boosting(graph, job.seed, balanced=job.train.class_weights == "balanced")
        return kept["boosting"]

    return {"network": network, "boosting": boosted}


def _better(inputs: Inputs, each: Mapping[str, Way], progress: Progress) -> str:
    """Of several ways the one with the highest AUC on validation nodes; the first where it is undefined."""
    labelled = find_label_holder(inputs.graphs, inputs.settings.data.label_party).common_part()
    assert labelled.labels is not None
    assert labelled.val_mask is not None
    val = torch.nonzero(labelled.val_mask & (labelled.labels >= 0)).ravel().numpy()
    found = {name: way(progress)[: labelled.num_nodes] for name, way in each.items()}
    aucs = {name: figures(Scored(labelled.labels.numpy()[val], one[val]), 1.0)["auc"] for name, one in found.items()}
    return max(aucs, key=lambda name: float(np.nan_to_num(aucs[name], nan=-1.0)))


def _plain(training: Callable[[Progress], PlainResult | None], progress: Progress) -> Floats:
    result = training(progress)
    assert result is not None  # who has no labels is lent some
    return _likely(result.output)


def _of_library(name: str, graph: PartyGraph, job: JobSettings, whose: str, shares: str) -> Kind:
    balanced, about = job.train.class_weights == "balanced", f"{ABOUT_PLAIN[name]}, {whose}"
    return Kind(lambda _progress: PLAIN[name](graph, job.seed, balanced=balanced), 0, shares, about)


def _federated(
    job: JobSettings,
    graphs: Sequence[PartyGraph],
    progress: Progress,
    ids: Mapping[PartyId, Sequence[str]] | None = None,
) -> Floats:
    """A whole job, with all parties and messages; with ids of all holders' rows, of own nodes."""
    # The graphs are there, scaled and divided.
    there = {"feature_scaling": "none", "parties": None, "partition": PartitionSettings()}
    data = job.data.model_copy(update=there)
    if not job.inputs.is_relational:  # and it takes no hops that only those jobs know
        graphs = [graph.merged() for graph in graphs]
    with TemporaryDirectory() as folder:
        job, run = job.model_copy(update={"data": data}), Path(folder) / "run"
        trained = train(job, run, parties=graphs, ids=ids, progress=progress, study=True)
        if not job.is_aligned:
            stores = [RunDirectory.open(run).party(graph.party) for graph in graphs]
            return np.concatenate([load_predictions(store).uncalibrated.double().numpy() for store in stores])
        return np.asarray(trained.predictions.uncalibrated.double().numpy())


def _without_columns(graph: PartyGraph) -> PartyGraph:
    return replace(graph, features=torch.zeros(graph.num_nodes, 1, dtype=graph.features.dtype))


def _without_links(graph: PartyGraph) -> PartyGraph:
    return replace(graph.with_edges(torch.empty(0, dtype=torch.int64)), edge_weight=None)


def _likely(logits: Tensor) -> Floats:
    return np.asarray(logits.detach().double().softmax(dim=1).numpy())
