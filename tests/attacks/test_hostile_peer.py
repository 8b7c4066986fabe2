"""A peer that sends legal frames with anything in them, to a whole party: an error of ours, or the party goes on.

Every scenario is a small session of which all messages are recorded. A case is one party's part of it over again, by
itself and with the same randomness, where one message of one kind is another: another shape or dtype, numbers that are
not finite, extremes, noise, another text, or none under that tag. ``VEILGRAPH_FUZZ_CASES`` sets the cases per kind.
"""

import json
import os
import random
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.roles import AveragingHolder, AveragingServer
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.symbols.roles import SymbolHolder, SymbolServer
from veilgraph_node_dp.release import exchange_releases

from tests.paradigms.averaging.jobs import graphs as averaged_graphs
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.averaging.symbol_jobs import publisher_for as symbol_publisher
from tests.paradigms.averaging.symbol_jobs import symbol_job
from tests.paradigms.union.banks import banks, by_name
from tests.reference.horizontal import job as horizontal_job
from tests.reference.horizontal import parts_of
from tests.roles.federation import fixed_secrets, small_job, small_parties
from tests.roles.local_parties import PRIVATE_LABELS, local_job, local_parties, publisher_for
from veilgraph.core.errors import LinkError, LinkTimeout, VeilgraphError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import MemoryKeeper
from veilgraph.core.types import NOBODY, SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.codec import DTYPES, decode, encode
from veilgraph.link.collectives import tensor_text, text_tensor
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.intersect import agree_on_order, align_holder, align_server
from veilgraph.mpc.pair.exchange import Exchange
from veilgraph.mpc.sealed.cut_and_choose import checked_link, dealer_of
from veilgraph.mpc.sealed.linked import DealerMachine, HolderMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.paradigms.horizontal.paradigm import Totals, check_columns
from veilgraph.paradigms.horizontal.roles import HorizontalHolder, HorizontalServer
from veilgraph.paradigms.vertical.roles import DataHolder, LabelHolder, Server
from veilgraph.privacy.publisher import OPEN
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Judgement
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.session.training import infer, judge_epoch, train_step
from veilgraph.tables.columns import column_hashes

CASES = int(os.environ.get("VEILGRAPH_FUZZ_CASES", "4"))
MEMORY_BYTES = 1 << 30
"""What all cases of a kind may add to the largest size that the process ever had."""

Program = Callable[[Link], object]
Key = tuple[PartyId, Tag]

ELSEWHERE = {Kind.SEAL, Kind.READY, Kind.AUDIT_QUESTION, Kind.AUDIT_ANSWER, Kind.POSITIONS, Kind.SIGNATURE}
"""Sealing, signatures, audits and answers have tests of their own (tests/link, tests/audit,
paradigms/sealed/test_answers.py). READY, a byte, comes in graphs of several blocks alone."""


def session_of(settings: JobSettings, link: Link) -> RoleContext:
    return RoleContext(settings, link, LearningStreams(settings.seed, link.party), fixed_secrets(link.party))


def works(role: Role, settings: JobSettings) -> None:
    """Set-up, a training step, an evaluation that is judged, and an inference."""
    try:
        role.setup([])
        train_step(role, 0, 1)
        step = infer(role, 1)
        judge_epoch(role, 1, Judgement(), {})
        infer(role, step)
    finally:
        role.close()


def vertical(settings: JobSettings) -> Mapping[PartyId, Program]:
    """Set-up, a training step, an evaluation and an inference."""
    graphs = {graph.party: graph for graph in small_parties(2)}

    def program(link: Link) -> None:
        session = session_of(settings, link)
        role: Role
        if link.party == SERVER:
            role = Server(session)
        elif link.party == settings.data.label_party:
            role = LabelHolder(session, graphs[link.party])
        else:
            role = DataHolder(session, graphs[link.party])
        works(role, settings)

    return dict.fromkeys(["A", "B", SERVER], program)


def horizontal(settings: JobSettings) -> Mapping[PartyId, Program]:
    parts = {part.graph.party: part for part in parts_of(settings)}

    def program(link: Link) -> None:
        session = session_of(settings, link)
        if link.party == SERVER:
            works(HorizontalServer(session), settings)
        else:
            part = parts[link.party]
            works(HorizontalHolder(session, part.graph, [str(node) for node in part.ids.tolist()]), settings)

    return dict.fromkeys([*settings.data.names, SERVER], program)


def releases(settings: JobSettings) -> Mapping[PartyId, Program]:
    graphs = {graph.party: graph for graph in local_parties(settings)}

    def program(link: Link) -> None:
        graph = graphs.get(link.party)
        publisher = None if graph is None else publisher_for(settings, graph)
        exchange_releases(replace(session_of(settings, link), publisher=publisher or OPEN), graph, 0, {})

    return dict.fromkeys([*settings.data.names, SERVER], program)


def alignment() -> Mapping[PartyId, Program]:
    holders = ["A", "B", "C"]

    def program(link: Link) -> None:
        if link.party == SERVER:
            align_server(link, holders)
        else:
            own = ["x", "y", "z", link.party]
            rows = align_holder(link, holders, own, secrets=fixed_secrets(link.party)).rows
            agree_on_order(link, holders, [own[row] for row in rows.tolist()], LearningStreams(5, link.party))

    return dict.fromkeys([*holders, SERVER], program)


def collection() -> Mapping[PartyId, Program]:
    def program(link: Link) -> None:
        mine = column_hashes([], ["no", "yes"], None)
        check_columns(link, [name for name in "AB" if name != link.party], [], mine)
        Totals(link, ["A", "B"])([3 << 300, 5])

    return dict.fromkeys("AB", program)


def sealed(*, checked: bool = False, dealer: PartyId = SERVER) -> Mapping[PartyId, Program]:
    """With checks the first dealing is opened and the second one used; A or B deals for two others, or nobody."""
    holders = ["A", "B"] if dealer in (SERVER, NOBODY) else ["A", "B", "C"]

    def machine_of(link: Link) -> Machine:
        if dealer == NOBODY:
            return PairMachine(link, holders, Exchange(link, holders, system_secrets))
        if link.party == dealer:
            secrets = fixed_secrets(SERVER)
            return dealer_of(link, holders, secrets, work) if checked else DealerMachine(link, holders, secrets)
        if checked:
            draws = iter([bytes(8), b"\xff" * 8])
            link = checked_link(link, holders, SERVER, work, 0.5, lambda _: next(draws), MemoryKeeper())
        return HolderMachine(link, holders, dealer)

    def work(machine: Machine) -> None:
        has = machine.party == "A"
        wire = machine.put("A", torch.ones(3, 2) if has else None, (3, 2), 16)
        graph = machine.hidden_graph("A", torch.tensor([[0], [1]]) if has else None, 3, 2)
        wire = machine.open(machine.hop([graph], machine.open(machine.split(wire), ring=32)))
        wire = machine.open(machine.gate(machine.negative(wire), wire))
        wire = machine.open(machine.product(torch.mul, wire, wire), 2)
        wire = machine.open(machine.pick("A", torch.tensor([2, 0]) if has else None, 2, wire))
        machine.reveal(wire, "A")

    return dict.fromkeys({*holders, dealer} - {NOBODY}, lambda link: work(machine_of(link)))


def averages(settings: AveragingJob) -> Mapping[PartyId, Program]:
    parts = {graph.party: graph for graph in averaged_graphs(settings)}

    def program(link: Link) -> None:
        session = session_of(settings, link)
        serves = link.party == SERVER
        works(AveragingServer(session) if serves else AveragingHolder(session, parts[link.party]), settings)

    return dict.fromkeys([*settings.data.names, SERVER], program)


def symbols(settings: AveragingJob) -> Mapping[PartyId, Program]:
    found = banks(len(settings.data.names), accounts=12)
    graphs, ids = by_name(found), found[1]

    def program(link: Link) -> None:
        session = session_of(settings, link)
        if link.party == SERVER:
            works(SymbolServer(session), settings)
        else:
            paying = replace(session, publisher=symbol_publisher(settings, found, link.party))
            works(SymbolHolder(paying, graphs[link.party], ids[link.party]), settings)

    return dict.fromkeys([*settings.data.names, SERVER], program)


CLEAR = {"model": {"rounds": 2, "combine": {"masked": False}, "initial": {"method": "secure-sum"}}}
SCENARIOS: dict[str, Callable[[], Mapping[PartyId, Program]]] = {
    "masked, collaborative": partial(vertical, small_job(2, {"model": {"rounds": 2, "dim": 4}})),
    "clear, secure sum": partial(vertical, small_job(2, CLEAR)),
    "horizontal, mean": partial(horizontal, horizontal_job(2, aggregate="mean", edges="deduplicate")),
    "horizontal, secure maximum": partial(horizontal, horizontal_job(2, combine="secure-max", layers=1)),
    "releases": partial(releases, local_job(3, PRIVATE_LABELS, mechanism="gaussian", delta=1e-5)),
    "sampled releases": partial(releases, local_job(3)),
    "alignment": alignment,
    "collection": collection,
    "sealed": sealed,
    "sealed, checked": partial(sealed, checked=True),
    "sealed, dealt by the holder with edges": partial(sealed, dealer="A"),
    "sealed, dealt by another holder": partial(sealed, dealer="B"),
    "sealed, dealt by nobody": partial(sealed, dealer=NOBODY),
    "averaging": partial(averages, averaging_job()),
    "symbols": partial(symbols, symbol_job(holders=("A", "B"))),
}


class ReplayedLink:
    """What a party received in a session, again; what it sends is gone."""

    def __init__(self, party: PartyId, messages: Mapping[Key, Tensor]) -> None:
        self.party, self.messages = party, messages
        self.taken: set[Key] = set()

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        encode(tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        self.taken.add((sender, tag))
        if (sender, tag) not in self.messages:
            raise LinkTimeout(f"{self.party} waited for {tag} from {sender}")
        return self.messages[sender, tag].clone()

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        return True

    def expect(self, unread_bytes: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Recording:
    programs: Mapping[PartyId, Program]
    received: Mapping[PartyId, Mapping[Key, Tensor]]

    def again(self, party: PartyId, changed: Mapping[Key, Tensor | None]) -> ReplayedLink:
        """The party's part with some messages changed, or with none in their place."""
        messages = {**self.received[party], **changed}
        link = ReplayedLink(party, {key: tensor for key, tensor in messages.items() if tensor is not None})
        self.programs[party](link)
        return link


@cache
def recorded(scenario: str) -> Recording:
    programs = SCENARIOS[scenario]()
    links: dict[PartyId, RecordedLink] = {}

    def program(link: Link) -> None:
        links[link.party] = RecordedLink(link, keep_transcript=True)
        programs[link.party](links[link.party])

    run_threads(dict.fromkeys(programs, program), 30, lambda: None)
    received = {
        party: {
            (message.sender, message.tag): message.tensor for message in link.transcript() if message.receiver == party
        }
        for party, link in links.items()
    }
    return Recording(programs, received)


@cache
def taken(scenario: str, party: PartyId) -> list[Key]:
    """What a party waits for, in one order in every run: threads record in theirs, and a dealer deals ahead."""
    return sorted(recorded(scenario).again(party, {}).taken, key=str)


def places(kind: Kind) -> list[tuple[str, PartyId, Key]]:
    """Everywhere that a message of a kind is received."""
    return [
        (scenario, party, key)
        for scenario in SCENARIOS
        for party in sorted(recorded(scenario).programs)
        for key in taken(scenario, party)
        if key[1].kind == kind
    ]


@pytest.mark.cases(8)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_replayed_unchanged_is_a_whole_session(scenario):
    """Else a case could end before its message, and find nothing."""
    recording = recorded(scenario)
    for party, messages in recording.received.items():
        taken = recording.again(party, {}).taken
        # dealt ahead, for a pass that never came: how many of them a party has is a matter of time
        ahead = {key for key in taken | set(messages) if key[1].kind == Kind.CORRELATION}
        assert taken - ahead == set(messages) - ahead


EXTREMES = (0, 1, -1, 2, 255, 2**31, -(2**31), 2**53, 2**61, -(2**61), 2**63 - 1, -(2**63))
FLOATS = (float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e-45, 1e308, 0.0, -0.0)


def extreme(draw: random.Random, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.tensor(draw.choice(FLOATS), dtype=torch.float64).to(dtype)
    value = torch.tensor(draw.choice(EXTREMES))
    if dtype == torch.int32:
        return value.to(torch.int32)
    return value % 256 if dtype == torch.uint8 else value


def noise(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(draw.getrandbits(60))
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=generator, dtype=dtype)
        return x * 10.0 ** draw.randint(-30, 30)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low, high = (0, 256) if dtype == torch.uint8 else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def other_shape(draw: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    changed = list(shape)
    how = draw.randrange(6)
    if how == 0 and changed:
        changed[draw.randrange(len(changed))] = draw.choice((0, 1, 2, 7, 1000))
    elif how == 1 and changed:
        place = draw.randrange(len(changed))
        changed[place] = max(0, changed[place] + draw.choice((-1, 1)))
    elif how == 2 and changed:
        changed.pop(draw.randrange(len(changed)))
    elif how == 3 and len(changed) < 4:
        changed.insert(draw.randrange(len(changed) + 1), draw.choice((0, 1, 2)))
    elif how == 4:
        changed.reverse()
    else:
        changed = [draw.choice((0, 1, 3, 17)) for _ in range(draw.randrange(5))]
    return tuple(changed)


STATED: tuple[object, ...] = (
    *EXTREMES,
    13,
    64,
    10**50,
    0.5,
    True,
    None,
    "",
    "x",
    "2",
    "\u202e",
    [],
    [0],
    [10**9],
    [[1]],
    {},
    {"a": 1},
)


def other_text(draw: random.Random, original: Tensor) -> Tensor:
    """A hello with another field, or what is none."""
    stated = json.loads(tensor_text(original))
    how = draw.randrange(8)
    if how == 0:
        stated.pop(draw.choice(list(stated)))
    elif how == 1:
        return text_tensor(json.dumps(draw.choice((stated, [stated], *STATED)))[: draw.randrange(300)])
    else:
        stated[draw.choice([*Hello.model_fields, "other"])] = draw.choice(STATED)
    return text_tensor(json.dumps(stated))


def hostile(draw: random.Random, tag: Tag, original: Tensor) -> Tensor | None:
    """What comes in the place of a message: a legal frame, or None where its tag was another."""
    shape, dtype = tuple(original.shape), original.dtype
    how = draw.randrange(8)
    if tag.kind == Kind.HELLO and how > 1:
        changed = other_text(draw, original)
    elif how == 0:
        return None
    elif how == 1:
        changed = noise(draw, other_shape(draw, shape), draw.choice([dtype, *DTYPES.values()]))
    elif how == 2:
        changed = noise(draw, shape, draw.choice(list(DTYPES.values())))
    elif how == 3:
        changed = noise(draw, shape, dtype)
    elif how == 4:
        changed = original[torch.randperm(len(original))] if original.ndim and len(original) else original
    else:
        changed = original.clone()
        for _ in range(draw.choice((1, 1, 3, original.numel()))):
            if original.numel():
                changed.view(-1)[draw.randrange(original.numel())] = extreme(draw, dtype)
    header, data = encode(tag, changed)
    return decode(header + bytes(data))[1]


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.cases(15)
@pytest.mark.parametrize("kind", sorted(set(Kind) - ELSEWHERE), ids=lambda kind: kind.name)
@pytest.mark.filterwarnings("ignore")  # of numpy and torch, of numbers that are none
def test_no_frame_of_a_peer_breaks_a_party(kind):
    where, before = places(kind), peak_bytes()
    assert where, f"no scenario sends {kind.name}"
    refused: list[tuple[Tensor | None, VeilgraphError]] = []
    for case in range(10 * CASES):
        if case >= CASES and refused:  # what was dealt ahead, for a pass that never came, nobody misses
            break
        draw = random.Random(f"{kind.name}/{case}")
        scenario, party, key = draw.choice(where)
        recording = recorded(scenario)
        changed = hostile(draw, key[1], recording.received[party][key]) if case else None
        try:
            recording.again(party, {key: changed})
        except VeilgraphError as error:
            refused.append((changed, error))
        except BaseException as error:
            raise AssertionError(f"{scenario}: {party} breaks at {key[1]} from {key[0]}, case {case}") from error
    assert all(str(error).isprintable() for _, error in refused)
    assert all(isinstance(error, LinkError) for changed, error in refused if changed is None)
    assert refused, "a party takes nothing for what it waits for"
    assert peak_bytes() - before < MEMORY_BYTES
