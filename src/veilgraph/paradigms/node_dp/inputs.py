"""The learner's graph and the others' nodes; labels are at the learner, or at the holder that releases them."""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.datasets import load_for_learner
from veilgraph.graph.party import PartyGraph, check_federation
from veilgraph.paradigms.node_dp.settings import NodeDpJob
from veilgraph.privacy.degree import too_many_neighbours
from veilgraph.privacy.local.features import feature_mechanism
from veilgraph.protocol.feature_release import misplaced_labels


def learner_of(job: NodeDpJob, graphs: Sequence[PartyGraph]) -> PartyId:
    """Who learns, of graphs that are given from Python.

    Raises:
        DataError: they are not one federation.
    """
    private = job.label_release
    if not graphs:
        check_federation(graphs, "")
    labelled = next((graph.party for graph in graphs if graph.labels is not None), graphs[0].party)
    learner = job.data.label_holder or (labelled if private is None else graphs[0].party)
    check_federation(graphs, learner if private is None else private.holder)
    return learner


def local_graphs(settings: NodeDpJob) -> list[PartyGraph]:
    """All holders' graphs of a job of paradigm node-dp over a data set or saved graphs, in the job's order.

    Raises:
        ConfigError: labels are not where the job says, or a split of them would tell what they are; a mechanism cannot
            release so many columns; or the data set is not one graph.
        DataError: the data cannot be read, or break a rule, or a feature lies outside the declared range.
    """
    private, data = settings.label_release, settings.data
    if private is not None and data.dataset is not None and (data.split is None or data.stratify):
        raise ConfigError(
            f"{private.holder} refuses the job: the learner sees who is trained on, and a split by classes tells the "
            "labels that release.labels protects; give data.split, as in [0.5, 0.25, 0.25], with data.stratify: false",
            code="refused",
            key="data.split",
            party=private.holder,
        )
    labels_at = settings.data.label_party if private is None else private.holder
    graphs = load_for_learner(settings.data, labels_at, settings.seed)
    check_values(settings, graphs)
    return graphs


def check_values(settings: NodeDpJob, graphs: Sequence[PartyGraph]) -> None:
    """What the parties would find out, before a run directory is made; here with the value that is out of range."""
    for graph in graphs:
        if reason := misplaced_labels(settings, graph):
            raise ConfigError(f"{graph.party} refuses the job: {reason}", code="refused")
        if reason := too_many_neighbours(settings.degree_rule(graph.party), graph.common_part()):
            raise ConfigError(
                f"{graph.party} refuses the job: {reason}",
                code="refused",
                key="privacy.degree_bound",
                party=graph.party,
            )
        if settings.feature_release is None or graph.party not in settings.releasing:
            continue
        try:
            feature_mechanism(settings.feature_release, graph.num_features).check(graph.common_part().features)
        except DataError as error:
            raise DataError(f"party {graph.party!r}: {error}") from error
