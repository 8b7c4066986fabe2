"""Small data and jobs of paradigm node-dp, and the exchange of releases in threads with every message kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from veilgraph_node_dp.mechanisms import feature_mechanism
from veilgraph_node_dp.publisher import LocalPublisher
from veilgraph_node_dp.release import exchange_releases
from veilgraph_node_dp.released import Releases
from veilgraph_node_dp.settings import node_dp

from tests.roles.federation import NODES, Settings, fixed_secrets, merge, small_data
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_for_learner
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Message, RecordedLink
from veilgraph.privacy.publisher import OPEN
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.role import RoleContext
from veilgraph.runtime.launch.processes import run_threads

RANGE: Settings = {"low": -10.0, "high": 10.0}
"""Holds every feature of ``small_data``."""
PRIVATE_LABELS: Settings = {"release": {"labels": {"holder": "B", "epsilon": 2.0}}}
BY_NODE: Settings = {"split": [0.5, 0.25, 0.25], "stratify": False}
"""A split that says nothing of labels."""
MECHANISMS: dict[str, Settings] = {
    "multi-bit, sparse": {"mechanism": "multi-bit", "epsilon": 1.0},
    "multi-bit, dense": {"mechanism": "multi-bit", "epsilon": 8.0},
    "one-bit": {"mechanism": "one-bit", "epsilon": 4.0},
    "gaussian": {"mechanism": "gaussian", "epsilon": 4.0, "delta": 1e-5},
    "laplace": {"mechanism": "laplace", "epsilon": 4.0},
}
COLUMNS = 32
"""Of the data: with two holders that release, 16 each, so that one feature of them is sent in the sparse form."""


def local_job(holders: int = 3, *changes: Settings, **features: Any) -> JobSettings:
    base: Settings = {
        "paradigm": "node-dp",
        "seed": 5,
        "timeout_s": 20,
        "data": {"dataset": "synthetic", "holders": holders},
        "release": {"features": {**RANGE, "epsilon": 4.0, **features}},
        "model": {"dim": 8, "hops": 2},
        "train": {"epochs": 6, "patience": None, "checkpoint_every": 2},
    }
    return parse_job(merge(base, *changes))


def local_parties(settings: JobSettings, *, own: bool = False, seed: int = 0) -> list[PartyGraph]:
    """A graph for each holder of the job, labels where it wants them; ``own``: the learner has features as well."""
    private = node_dp(settings).release.labels
    learner = settings.data.label_party
    labels_at = learner if private is None else private.holder
    whole = PartyGraph.from_data(labels_at, synthetic_data(NODES, COLUMNS, seed=seed))
    graphs = split_for_learner(whole, names=settings.data.names, learner=learner, labels_at=labels_at, seed=seed)
    if not own:
        return graphs
    features = small_data(seed + 1).x
    return [replace(graph, features=features) if graph.party == learner else graph for graph in graphs]


def publisher_for(settings: JobSettings, graph: PartyGraph) -> LocalPublisher | None:
    """Without a ledger, and with the same randomness whenever it is made."""
    release, labels = node_dp(settings).release.features, node_dp(settings).release.labels
    if release is None or graph.party not in settings.duties.releasing:
        return None
    response = None
    if labels is not None and labels.holder == graph.party and graph.num_classes is not None:
        response = LabelResponse(labels.epsilon, graph.num_classes)
    mechanism = feature_mechanism(release, graph.num_features)
    return LocalPublisher(mechanism, response, None, fixed_secrets(f"noise of {graph.party}"))


@dataclass(frozen=True)
class Exchanged:
    releases: Mapping[PartyId, Releases]
    transcripts: Mapping[PartyId, tuple[Message, ...]]

    def sent(self, party: PartyId) -> list[Message]:
        return [message for message in self.transcripts[party] if message.sender == party]


def session_of(settings: JobSettings, link: Link, publisher: LocalPublisher | None = None) -> RoleContext:
    streams = LearningStreams(settings.seed, link.party)
    return RoleContext(settings, link, streams, system_secrets, publisher=publisher or OPEN)


def exchange(
    settings: JobSettings,
    graphs: Sequence[PartyGraph],
    held: Mapping[PartyId, int] | None = None,
    kept: Mapping[str, torch.Tensor] | None = None,
    publishers: Mapping[PartyId, LocalPublisher] | None = None,
) -> Exchanged:
    """What every party comes away with."""
    by_name = {graph.party: graph for graph in graphs}
    links: dict[PartyId, RecordedLink] = {}

    def program(link: Link) -> Releases:
        party = link.party
        links[party] = recorded = RecordedLink(link, keep_transcript=True)
        graph = by_name.get(party)
        publisher = None if graph is None else publisher_for(settings, graph)
        publisher = (publishers or {}).get(party, publisher)
        mine = kept if kept is not None and party == settings.data.label_party else {}
        return exchange_releases(session_of(settings, recorded, publisher), graph, (held or {}).get(party, 0), mine)

    found = run_threads(dict.fromkeys([*settings.data.names, SERVER], program), 20, lambda: None)
    return Exchanged(found, {party: link.transcript() for party, link in links.items()})
