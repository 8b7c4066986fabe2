"""Whole jobs in threads with every message kept: roles as ``party.run_party`` builds them, secrets injected."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.chance import fixed_chance
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Link, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Message, RecordedLink
from veilgraph.paradigms.vertical.network import Collaborative
from veilgraph.protocol.cut import HolderCut
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.role import RoleContext
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.session.publishers import publisher_of
from veilgraph.runtime.session.training import fit
from veilgraph.runtime.store.run_directory import PartyStore

NODES, FEATURES, DIM, CLASSES = 400, 24, 8, 3

Tamper = Callable[[Message, PartyGraph | None], Tensor]
"""What a party whose code was changed sends in place of a message."""


@dataclass(frozen=True)
class Recording:
    """One finished job, all that left each party, and what each holder meant to keep.

    Attributes:
        settings: of the job.
        graphs: holder → its private graph.
        sent: every message, as its sender recorded it.
        received: every message, as its receiver recorded it.
        embeddings: holder → everything it gave to COMBINE, before any mask, each Tensor[N, d].
        shares: (holder, embed step) → owner → the holder's share of that weight block, before the step.
    """

    settings: JobSettings
    graphs: dict[PartyId, PartyGraph]
    sent: list[Message]
    received: list[Message]
    embeddings: dict[PartyId, list[Tensor]]
    shares: dict[tuple[PartyId, int], dict[PartyId, Tensor]]

    @property
    def holders(self) -> tuple[PartyId, ...]:
        return self.settings.data.names

    @property
    def label_party(self) -> PartyId:
        return self.settings.data.label_party


class TamperedLink(RecordedLink):
    """A recorded link of a party whose code sends something else."""

    def __init__(self, link: Link, tamper: Tamper, graph: PartyGraph | None) -> None:
        super().__init__(link, keep_transcript=True)
        self._tamper, self._graph = tamper, graph

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        super().send(to, tag, self._tamper(Message(self.party, to, tag, tensor), self._graph))


def honest(message: Message, graph: PartyGraph | None) -> Tensor:
    return message.tensor


def job(holders: int = 2, **model: Any) -> JobSettings:
    """A job of three epochs; the public shape of a job depends on its settings only."""
    return parse_job(
        {
            "data": {"holders": holders},
            "model": {"dim": DIM, "local": {"dropout": 0.2}, **model},
            "train": {"epochs": 3, "patience": None},
        }
    )


def make_graphs(settings: JobSettings, seed: int) -> dict[PartyId, PartyGraph]:
    """Private inputs: normal features, random edges, labels that depend on the features of all holders."""
    generator = torch.Generator().manual_seed(seed)
    graphs, logits = {}, torch.zeros(NODES, CLASSES)
    for name in settings.data.names:
        features = torch.randn(NODES, FEATURES, generator=generator)
        logits += features @ torch.randn(FEATURES, CLASSES, generator=generator)
        graphs[name] = PartyGraph(name, features, torch.randint(0, NODES, (2, 900), generator=generator))
    label_party = settings.data.label_party
    order = torch.arange(NODES)
    graphs[label_party] = replace(
        graphs[label_party],
        labels=logits.argmax(dim=1),
        train_mask=order < 150,
        val_mask=(order >= 150) & (order < 250),
        test_mask=order >= 250,
        num_classes=CLASSES,
    )
    return graphs


def run_job(
    settings: JobSettings,
    graphs: Mapping[PartyId, PartyGraph],
    path: Path,
    *,
    secrets: object,
    tamper: Mapping[PartyId, Tamper] | None = None,
) -> Recording:
    """Trains the job and gives its transcript.

    Args:
        settings: the job.
        graphs: of its holders.
        path: of their stores.
        secrets: seeds masks, shares and coins.
        tamper: party → what it sends in place of a message.
    """
    links: dict[PartyId, RecordedLink] = {}
    recording = Recording(settings, dict(graphs), [], [], {name: [] for name in settings.data.names}, {})

    def program(party: PartyId) -> Callable[[Link], None]:
        def run(link: Link) -> None:
            graph = graphs.get(party)
            recorded = links[party] = TamperedLink(link, (tamper or {}).get(party, honest), graph)
            streams = LearningStreams(settings.seed, party)
            store = PartyStore(path / party)
            store.path.mkdir(parents=True, exist_ok=True)
            with publisher_of(store, settings, graph, None, begun=False) as publisher:
                session = RoleContext(settings, recorded, streams, fixed_secrets(secrets, party), publisher=publisher)
                role = paradigm_of(settings).session.role(session, Aligned(graph=graph))
                try:
                    fit(role, store.checkpoints, [], begin=lambda epoch, last: None, log=lambda record: None)
                finally:
                    role.close()

        return run

    parties: Sequence[PartyId] = (*settings.data.names, SERVER)
    with fixed_chance(secrets), pytest.MonkeyPatch.context() as patch:
        _watch(patch, recording)
        run_threads({party: program(party) for party in parties}, 30, lambda: None)
    for party in parties:
        for message in links[party].transcript():
            (recording.sent if message.sender == party else recording.received).append(message)
    return recording


def _watch(patch: pytest.MonkeyPatch, recording: Recording) -> None:
    publish, embed = HolderCut.publish, Collaborative.embed

    def watched_publish(self: HolderCut, step: int, round_: int, piece: Tensor) -> None:
        recording.embeddings[self._link.party].append(piece.detach().clone())
        publish(self, step, round_, piece)

    def watched_embed(self: Collaborative, step: int, *, learns: bool) -> Tensor:
        key = (self._session.link.party, step)
        recording.shares[key] = {owner: share.clone() for owner, share in self.shares.items()}
        return embed(self, step, learns=learns)

    patch.setattr(HolderCut, "publish", watched_publish)
    patch.setattr(Collaborative, "embed", watched_embed)
