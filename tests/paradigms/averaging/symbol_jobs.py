"""Small jobs of symbols over edges between banks, and one session's messages without what is learnt at home."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.symbols.roles import SymbolHolder, SymbolServer

from tests.mpc.sessions import fixed_secrets, simulate
from tests.paradigms.union.banks import Banks
from tests.roles.federation import Settings, merge
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.view import Message, RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.releases import labels_perturbed
from veilgraph.protocol.role import RoleContext

ALL: Settings = {"averaging": {"symbols": {"answers": "all"}}}
Changed = Callable[[PartyId, Tag, Tensor], Tensor]
"""What a hostile party sends in place of a message: receiver, tag, tensor."""


def symbol_content(*changes: Settings, holders: tuple[str, ...] = ("A", "B", "C")) -> dict[str, Any]:
    content: dict[str, Any] = {
        "paradigm": "averaging",
        "preset": "auto",
        "seed": 5,
        "timeout_s": 400,
        "data": {"graphs": {name: f"{name}.safetensors" for name in holders}},
        "label_privacy": {"epsilon": 2.0},
        "averaging": {"symbols": {"allow_weak": True}},
    }
    for change in changes:
        content = merge(content, change)
    return content


def symbol_job(*changes: Settings, holders: tuple[str, ...] = ("A", "B", "C")) -> AveragingJob:
    return averaging(parse_job(symbol_content(*changes, holders=holders)))


def publisher_for(job: AveragingJob, found: Banks, party: PartyId, seed: object = 0) -> LabelPublisher:
    """Without a ledger, and with the same draws whenever it is made with a seed."""
    (graph,) = (graph for graph in found[0] if graph.party == party)
    assert job.label_privacy is not None
    assert graph.num_classes is not None
    response = LabelResponse(job.label_privacy.epsilon, graph.num_classes)
    _, labels = labels_perturbed(job, graph.common_part())
    return LabelPublisher(response, labels, None, fixed_secrets("symbols", party, seed), None)


class _HostileLink(Wrapper):
    def __init__(self, link: Link, changed: Changed) -> None:
        super().__init__(link)
        self._changed = changed

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self._link.send(to, tag, self._changed(to, tag, tensor))

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        return self._link.receive(sender, tag)


def session(
    job: AveragingJob,
    found: Banks,
    publishers: Mapping[PartyId, Publisher] | None = None,
    hostile: Mapping[PartyId, Changed] | None = None,
    number: int = 0,
) -> tuple[dict[PartyId, Tensor], list[Message]]:
    """Set all roles up, in session ``number``: what each holder counts, and all messages between holders."""
    graphs, seen = {graph.party: graph for graph in found[0]}, list[Message]()

    def program(link: Link) -> Tensor | None:
        recorded: Link = RecordedLink(link, keep=seen.append)
        recorded = _HostileLink(recorded, hostile[link.party]) if hostile and link.party in hostile else recorded
        door = OPEN if link.party == SERVER else (publishers or {}).get(link.party)
        door = publisher_for(job, found, link.party) if door is None else door
        streams = LearningStreams(job.seed, link.party)
        context = RoleContext(job, recorded, streams, fixed_secrets("secrets", link.party, number), publisher=door)
        if link.party == SERVER:
            SymbolServer(context).setup([])
            return None
        role = SymbolHolder(context, graphs[link.party], found[1][link.party])
        role.setup([])
        return role.counts

    counts = simulate(dict.fromkeys([*job.data.names, SERVER], program))
    unique = {(one.sender, one.receiver, one.tag): one for one in seen}
    between = [one for one in unique.values() if SERVER not in (one.sender, one.receiver)]
    return {party: each for party, each in counts.items() if each is not None}, between


def symbols_sent(messages: list[Message], sender: PartyId, receiver: PartyId) -> Tensor:
    """The bytes that one holder sent another."""
    kind = Kind.PERTURBED_LABELS
    (found,) = (one.tensor for one in messages if (one.sender, one.receiver, one.tag.kind) == (sender, receiver, kind))
    return torch.as_tensor(found)
