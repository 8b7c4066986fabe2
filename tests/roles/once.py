"""Jobs with a single release in threads: their parties set up, and the label holder's inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.roles.federation import Settings, publisher_of, small_job
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import Keeper, MemoryKeeper
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Message, RecordedLink
from veilgraph.paradigms.vertical.once import LearningHolder, OnceRole, ReleaseServer, ReleasingHolder
from veilgraph.privacy.publisher import Publisher
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.releases import KeptRelease
from veilgraph.protocol.role import RoleContext
from veilgraph.runtime.launch.processes import run_threads

LOCAL: Settings = {"model": "appnp", "hops": 2, "teleport": 0.2, "activation": "none"}


def job(holders: int, *changes: Settings, **privacy: object) -> JobSettings:
    noise = {} if {"epsilon_total", "epsilon_step"} & privacy.keys() else {"noise_multiplier": 0.5}
    return small_job(
        holders,
        {
            "precision": "float64",
            "model": {"initial": {"method": "individual"}, "local": LOCAL, "combine": {"masked": None}},
            "privacy": {"unit": "row", "schedule": "once", **noise, **privacy},
        },
        *changes,
    )


@dataclass
class Worked:
    roles: Mapping[PartyId, OnceRole]
    transcripts: Mapping[PartyId, tuple[Message, ...]]

    @property
    def learner(self) -> LearningHolder:
        found = self.roles["A"]
        assert isinstance(found, LearningHolder)
        return found


def session_of(
    settings: JobSettings,
    link: Link,
    party: PartyId,
    keeper: Keeper | None = None,
    publisher: Publisher | None = None,
) -> RoleContext:
    streams = LearningStreams(settings.seed, party)
    publisher = publisher or publisher_of(settings, party)
    return RoleContext(settings, link, streams, system_secrets, publisher=publisher, keeper=keeper or MemoryKeeper())


def kept_by(settings: JobSettings, graph: PartyGraph, number: int, rows: Tensor | None) -> Keeper:
    """A keeper with that release, of another alignment where the number is negative."""
    keeper = MemoryKeeper()
    if number:
        kept = KeptRelease(keeper, "" if number > 0 else "another alignment", graph)
        kept.replace(abs(number), {} if rows is None else {"released": rows})
    return keeper


def work(
    settings: JobSettings,
    graphs: Sequence[PartyGraph],
    held: Mapping[PartyId, int],
    rows: Tensor | None = None,
    keepers: Mapping[PartyId, Keeper] | None = None,
    publishers: Mapping[PartyId, Publisher] | None = None,
) -> Worked:
    """Sets all parties up, keeps what was released, and lets the label holder infer."""
    by_name = {graph.party: graph for graph in graphs}
    links: dict[PartyId, RecordedLink] = {}

    def program(link: Link) -> OnceRole:
        party = link.party
        recorded = links[party] = RecordedLink(link, keep_transcript=True)
        role: OnceRole
        if party == SERVER:
            role = ReleaseServer(session_of(settings, recorded, party))
        else:
            graph, kind = by_name[party], LearningHolder if party == "A" else ReleasingHolder
            keeper = (keepers or {}).get(party) or kept_by(
                settings, graph, held.get(party, 0), rows if party == "A" else None
            )
            role = kind(session_of(settings, recorded, party, keeper, (publishers or {}).get(party)), graph)
        role.setup([])
        role.keep()
        role.infer_only()
        with torch.no_grad():
            role.forward(0, None)
        recorded.close()
        return role

    roles = run_threads(dict.fromkeys([*settings.data.names, SERVER], program), 20, lambda: None)
    return Worked(roles, {party: link.transcript() for party, link in links.items()})
