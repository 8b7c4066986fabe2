"""Bytes and rounds of every operation: as docs/explanation/sealed.md says, as counted, and as sent."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from docs.pages import find_page
from tests.mpc.sealed.parties import NAMES, of, run
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed import functions
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire

PAGE = find_page("sealed.md")


class Clock:
    """Rounds: how many messages between holders wait for one another. The dealer is ahead of them."""

    def __init__(self, dealer: PartyId = SERVER) -> None:
        self._dealer = dealer
        self._sent: dict[tuple[PartyId, PartyId, Tag], int] = {}
        self.at: dict[PartyId, int] = {}

    def link(self, link: Link) -> Link:
        """A link that takes part."""
        return ClockedLink(self, link)

    def sends(self, sender: PartyId, to: PartyId, tag: Tag) -> None:
        self._sent[sender, to, tag] = self.at.get(sender, 0) + 1

    def receives(self, sender: PartyId, to: PartyId, tag: Tag) -> None:
        if sender != self._dealer and to != SERVER:
            self.at[to] = max(self.at.get(to, 0), self._sent[sender, to, tag])


class ClockedLink:
    """Of one party."""

    def __init__(self, clock: Clock, link: Link) -> None:
        self._clock, self._link, self.party = clock, link, link.party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self._clock.sends(self.party, to, tag)
        self._link.send(to, tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        tensor = self._link.receive(sender, tag)
        self._clock.receives(sender, self.party, tag)
        return tensor

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        return self._link.comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        self._link.expect(unread_bytes)

    def close(self) -> None:
        self._link.close()


N, D, S, T = 5, 3, 12, 2
"""Nodes, columns, slots of a graph, picked rows."""
n = N * D


def whole(machine: Machine, ring: Any = 64) -> Wire:
    """A wire of the holders' making: everything before it is the same in what is compared."""
    return machine.open(machine.summands(torch.ones(N, D), (N, D), 16), 0, ring)


def bit(machine: Machine) -> Any:
    return machine.negative(whole(machine))


def graph(machine: Machine) -> Any:
    edges = of(machine, "A", torch.tensor([[0, 1], [1, 2]]))
    return machine.hidden_graph("A", edges, N, S - N)


def weighted(machine: Machine) -> Any:
    edges = of(machine, "A", torch.tensor([[0, 1], [1, 2]]))
    return machine.hidden_graph("A", edges, N, S - N, of(machine, "A", torch.ones(2)), 16)


def half(machine: Machine) -> Summands:
    return machine.split(whole(machine, 32))


Before = Callable[[Machine], tuple[Any, ...]]
OPERATIONS: dict[str, tuple[Before, Callable[..., object]]] = {
    "put": (lambda m: (), lambda m: m.put("A", of(m, "A", torch.ones(N, D)), (N, D), 16)),
    "open": (lambda m: (m.split(whole(m)),), lambda m, x: m.open(x)),
    "open to 32 bits": (lambda m: (m.split(whole(m)),), lambda m, x: m.open(x, 0, 32)),
    "open 32 bits": (lambda m: (half(m),), lambda m, x: m.open(x, 0, 32)),
    "open and cut to 32 bits": (lambda m: (m.split(whole(m)),), lambda m, x: m.open(x, 16, 32)),
    "open and cut": (lambda m: (m.split(whole(m)),), lambda m, x: m.open(x, 16)),
    "open and cut by more than 32": (lambda m: (m.split(whole(m)),), lambda m, x: m.open(x, 40)),
    "open 32 bits to 64": (lambda m: (half(m),), lambda m, x: m.open(x)),
    "product": (lambda m: (whole(m), whole(m)), lambda m, x, y: m.product(matmul, x, y.T)),
    "triple of three": (lambda m: (whole(m), whole(m), whole(m)), lambda m, *xs: m.triple(*xs)),
    "triple of two": (lambda m: (whole(m), whole(m)), lambda m, x, y: m.triple(x, x, y)),
    "cube": (lambda m: (whole(m),), lambda m, x: m.triple(x, x, x)),
    "negative": (lambda m: (whole(m),), lambda m, x: m.negative(x)),
    "negative of 36 bits": (lambda m: (whole(m),), lambda m, x: m.negative(x, functions.WHOLE_BITS)),
    "negative of 25 bits": (lambda m: (whole(m),), lambda m, x: m.negative(x, functions.WHOLE_BITS, 6)),
    "sines": (lambda m: (whole(m),), lambda m, x: m.sines(x, 6, [1.0, 2.0**-9])),
    "value": (lambda m: (bit(m),), lambda m, x: m.value(x)),
    "gate": (lambda m: (bit(m), whole(m)), lambda m, x, y: m.gate(x, y)),
    "hidden_graph": (lambda m: (), graph),
    "hop": (lambda m: (graph(m), whole(m, 32)), lambda m, g, x: m.hop([g], x)),
    "hop of 64 bits": (lambda m: (graph(m), whole(m)), lambda m, g, x: m.hop([g], x)),
    "hidden_graph with weights": (lambda m: (), weighted),
    "hop with weights": (lambda m: (weighted(m), whole(m)), lambda m, g, x: m.hop([g], x)),
    "pick": (lambda m: (whole(m),), lambda m, x: m.pick("A", of(m, "A", torch.arange(T)), T, x)),
    "pick of 32 bits": (lambda m: (whole(m, 32),), lambda m, x: m.pick("A", of(m, "A", torch.arange(T)), T, x)),
    "reveal": (lambda m: (whole(m),), lambda m, x: m.reveal(x, "A")),
    "reveal 32 bits": (lambda m: (whole(m, 32),), lambda m, x: m.reveal(x, "A")),
}
OWNED, TO_ONE = ("put", "hidden_graph", "pick"), ("hop", "reveal")
"""What A alone sends to all others; what all others send to A."""


Sent = dict[PartyId, tuple[int, int]]
"""Party → messages and bytes."""


def measured(
    before: Before, operation: Callable[..., object], holders: int, dealer: PartyId = SERVER
) -> tuple[Sent, int]:
    """What all parties send, and the rounds of the operation."""
    links: dict[PartyId, RecordedLink] = {}
    clock = Clock(dealer)

    def program(machine: Machine) -> None:
        values = before(machine)
        clock.at[machine.party] = 0
        operation(machine, *values)

    run(program, holders, links, wrapped=clock.link, dealer=dealer)
    totals = {}
    for party, link in links.items():
        sent = [each for each in link.traffic() if each.direction == "sent"]
        totals[party] = sum(each.messages for each in sent), sum(each.bytes for each in sent)
    return totals, max(clock.at.values())


def costs(before: Before, operation: Callable[..., object], holders: int, dealer: PartyId = SERVER) -> tuple[Sent, int]:
    """What all parties send in an operation, and its rounds."""
    without, _ = measured(before, lambda machine, *values: None, holders, dealer)
    sent, rounds = measured(before, operation, holders, dealer)
    return {party: (sent[party][0] - without[party][0], sent[party][1] - without[party][1]) for party in sent}, rounds


def counted(
    before: Before, operation: Callable[..., object], holders: int, dealer: PartyId = SERVER
) -> tuple[dict[PartyId, int], int]:
    """The same as the counting machine says: bytes alone."""
    machine = CountingMachine(NAMES[:holders], dealer)
    values = before(machine)
    machine.at("operation")
    operation(machine, *values)
    cost = machine.costs["operation"]
    return {party: cost.sent[party] for party in dict.fromkeys((*NAMES[:holders], dealer))}, cost.rounds


def stated() -> dict[str, tuple[int, int, str, str]]:
    """Operation → rounds, messages to each holder, their bytes, the dealer's bytes (docs/explanation/sealed.md)."""
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \| (\d+) \| `([^`]+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    return {name: (int(rounds), int(messages), sent, dealt) for name, rounds, messages, sent, dealt in rows}


TWO = ", two holders"
"""Behind the name of an operation that costs two holders something else than more of them."""


def value(formula: str, holders: int) -> int:
    """Of a formula of the page."""
    assert re.fullmatch(r"(up|[0-9nNdSPTW+·() -])+", formula), formula
    names = {
        "P": holders,
        "n": n,
        "N": N,
        "d": D,
        "S": S,
        "T": T,
        "W": -(-n // 64),
        "up": lambda size: -(-size // 8) * 8,
    }
    return int(eval(formula.replace("·", "*"), {"__builtins__": {}}, names))


@pytest.mark.cases(43)
@pytest.mark.parametrize("holders", [2, 3, 5])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_costs_what_is_said_and_counted(name: str, holders: int) -> None:
    before, operation = OPERATIONS[name]
    sent, rounds = costs(before, operation, holders)
    bytes_counted, rounds_counted = counted(before, operation, holders)
    assert ({party: size for party, (_, size) in sent.items()}, rounds) == (bytes_counted, rounds_counted)
    said = stated()
    said_rounds, messages, formula, dealt = said.get(name + TWO, said[name]) if holders == 2 else said[name]
    assert rounds == said_rounds
    size = value(dealt, holders)
    assert sent[SERVER] == ((1, HEADER_BYTES + size) if size else (0, 0))
    each = (messages * HEADER_BYTES + value(formula, holders)) if messages else 0
    kind = name.split(maxsplit=1)[0]
    for party in NAMES[:holders]:
        silent = (kind in OWNED and party != "A") or (kind in TO_ONE and party == "A")
        receivers = 0 if silent else 1 if kind in TO_ONE else holders - 1
        assert sent[party] == (messages * receivers, each * receivers), party


HOLDERS_SUMMANDS: dict[str, tuple[Before, Callable[..., object], str]] = {
    "a value": (lambda m: (m.value(bit(m)),), lambda m, x: m.open(x), "0"),
    "a gate": (lambda m: (m.gate(bit(m), whole(m)),), lambda m, x: m.open(x), "0"),
    "sums of a hop": (lambda m: (m.hop([graph(m)], whole(m)),), lambda m, x: m.open(x), "0"),
    "sums of a hop, lifted": (lambda m: (m.hop([graph(m)], whole(m, 32)),), lambda m, x: m.open(x), "up(4·n)"),
    "a gate, cut": (lambda m: (m.gate(bit(m), whole(m)),), lambda m, x: m.open(x, 16), "up(6·n) + up(2·n)"),
    "with a wire": (lambda m: (m.gate(bit(m), whole(m)) + m.split(whole(m)),), lambda m, x: m.open(x), "8·n"),
}
"""What is opened, and what the dealer sends of it to two holders: of what is cut, shares must be uniform."""


@pytest.mark.parametrize("name", HOLDERS_SUMMANDS)
def test_two_holders_open_what_the_dealer_has_no_part_in_by_themselves(name: str) -> None:
    before, operation, dealt = HOLDERS_SUMMANDS[name]
    sent, rounds = costs(before, operation, 2)
    size = value(dealt, 2)
    assert sent[SERVER] == ((1, HEADER_BYTES + size) if size else (0, 0))
    assert ({party: size for party, (_, size) in sent.items()}, rounds) == counted(before, operation, 2)
    assert costs(before, operation, 3)[0][SERVER][1] > HEADER_BYTES  # of three, each would show its own


@pytest.mark.cases(50)
@pytest.mark.parametrize(("holders", "dealer"), [(3, "A"), (4, "B")])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_costs_what_is_counted_where_a_holder_deals(name: str, holders: int, dealer: PartyId) -> None:
    """A, who has the edges and rows, or another."""
    sent, rounds = costs(*OPERATIONS[name], holders, dealer)
    assert ({party: size for party, (_, size) in sent.items()}, rounds) == counted(*OPERATIONS[name], holders, dealer)


@pytest.mark.parametrize("dealer", ["A", "B", "C"])
def test_all_that_is_sent_is_counted_from_the_seeds_on(dealer: PartyId, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilgraph.mpc.sealed.correlations.STRIDE_BYTES", 256)

    def program(machine: Machine) -> None:
        for before, operation in OPERATIONS.values():
            operation(machine, *before(machine))

    links: dict[PartyId, RecordedLink] = {}
    run(program, 3, links, dealer=dealer)
    counting = CountingMachine(NAMES[:3], dealer)
    program(counting)
    expected = {party: sum(cost.sent[party] for cost in counting.costs.values()) for party in NAMES[:3]}
    assert {
        party: sum(each.bytes for each in link.traffic() if each.direction == "sent") for party, link in links.items()
    } == expected


@pytest.mark.cases(15)
@pytest.mark.parametrize(("holders", "dealer"), [(2, SERVER), (3, SERVER), (3, "A"), (4, "B")])
@pytest.mark.parametrize("name", ["open and cut", "open 32 bits to 64", "negative", "pick", "pick of 32 bits"])
def test_what_is_done_in_slices_costs_what_is_counted_and_no_message_is_longer(
    name: str, holders: int, dealer: PartyId, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, operation = OPERATIONS[name]
    whole_messages, whole_rounds = costs(before, operation, holders, dealer)
    at_once, rows = {"AT_ONCE": 2 * D, "COMPARED_AT_ONCE": 2 * D}, 2
    if name.startswith("pick"):
        at_once["AT_ONCE"] = rows = N
    monkeypatch.setattr("veilgraph.mpc.sealed.wire.AT_ONCE", at_once["AT_ONCE"])
    monkeypatch.setattr("veilgraph.mpc.sealed.machine.COMPARED_AT_ONCE", at_once["COMPARED_AT_ONCE"])
    sent, rounds = costs(before, operation, holders, dealer)
    assert ({party: size for party, (_, size) in sent.items()}, rounds) == counted(before, operation, holders, dealer)
    times = D if name.startswith("pick") else -(-N // rows)
    assert times == 3
    if not name.startswith("pick"):
        assert rounds == times * whole_rounds
        assert all(sent[party][0] == times * messages for party, (messages, _) in whole_messages.items())
    elif dealer == SERVER:
        assert rounds == whole_rounds
        assert sent[SERVER] == (times, whole_messages[SERVER][1] + (times - 1) * HEADER_BYTES + padding(name))


@pytest.mark.parametrize(("few", "rounds"), [(N * D, 2), (N * D - 1, 3)])
def test_many_bounded_numbers_are_compared_in_three_rounds(
    few: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are many, a round takes less than what two rounds deal and compute beyond three."""
    monkeypatch.setattr("veilgraph.mpc.sealed.machine.FEW_COMPARED", few)
    before, operation = OPERATIONS["negative of 36 bits"]
    assert costs(before, operation, 2, SERVER)[1] == counted(before, operation, 2, SERVER)[1] == rounds


def padding(name: str) -> int:
    """Bytes by which columns apart, of 32 bits, are filled up to whole words."""
    return D * (-4 * N % 8) - (-4 * n % 8) if name == "pick of 32 bits" else 0


@pytest.mark.cases(4)
@pytest.mark.parametrize(("holders", "dealer"), [(2, SERVER), (3, SERVER), (3, "A"), (4, "B")])
def test_operations_side_by_side_are_sent_as_counted_and_take_the_rounds_of_the_longest(
    holders: int, dealer: PartyId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each beside all others, and two of them beside the rest; the dealer may hardly be ahead, and nobody is stuck."""
    monkeypatch.setattr("veilgraph.mpc.sealed.correlations.STRIDE_BYTES", 256)

    def alone(machine: Machine, names: str) -> None:
        for name in names.split(", "):
            before, operation = OPERATIONS[name]
            operation(machine, *before(machine))

    def all_abreast(machine: Machine) -> None:
        first, second, *others = OPERATIONS

        def inner() -> None:
            machine.both(partial(alone, machine, f"{first}, {second}"), partial(alone, machine, second))

        parts: list[Callable[[], object]] = [inner, *(partial(alone, machine, name) for name in others)]
        machine.abreast(parts)
        alone(machine, first)

    sent, rounds = costs(lambda m: (), all_abreast, holders, dealer)
    expected = counted(lambda m: (), all_abreast, holders, dealer)
    assert ({party: size for party, (_, size) in sent.items()}, rounds) == expected
    each = {name: counted(lambda m: (), partial(alone, names=name), holders, dealer)[1] for name in OPERATIONS}
    first, second, *_ = OPERATIONS
    assert rounds == max(each.values()) + each[first]
    assert max(each.values()) > each[first] + each[second]


def test_all_operations_are_on_the_page_and_no_others() -> None:
    named = [name for name in stated() if not name.endswith(TWO)]
    assert named == list(OPERATIONS)
    assert {name.removesuffix(TWO) for name in stated()} == set(OPERATIONS)


FUNCTIONS: dict[str, Callable[[Machine, Wire], object]] = {
    "multiply_open": lambda m, x: functions.multiply_open(m, x, x),
    "relu": functions.relu,
    "row_max": functions.row_max,
    "argmax": functions.argmax,
    "logistic": functions.logistic,
    "class_probabilities": functions.class_probabilities,
    "inverse_root": lambda m, x: functions.inverse_root(m, m.split(x[:, 0]), 4096),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_rounds_that_are_said_and_counted(name: str) -> None:
    function = FUNCTIONS[name]
    sent, rounds = costs(lambda m: (whole(m),), function, 3)
    assert ({party: size for party, (_, size) in sent.items()}, rounds) == counted(lambda m: (whole(m),), function, 3)
    said = re.findall(rf"^\| `{name}` \| [^|]+ \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert said == [str(rounds)]


def test_holders_say_that_they_used_what_was_dealt_and_nothing_else_reaches_the_dealer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("veilgraph.mpc.sealed.correlations.STRIDE_BYTES", 256)
    links: dict[PartyId, RecordedLink] = {}

    def program(machine: Machine) -> None:
        for before, operation in OPERATIONS.values():
            operation(machine, *before(machine))

    run(program, 3, links, keeps=True)
    got = [message for message in links[SERVER].transcript() if message.receiver == SERVER]
    assert len(got) > 20
    assert {(m.tag.kind, m.tensor.dtype, tuple(m.tensor.tolist())) for m in got} == {(Kind.READY, torch.uint8, (1,))}
    run(program, 3, links, keeps=True, dealer="C")  # which has neither edges nor rows to pick, and learns nothing
    got = [message for message in links["C"].transcript() if message.receiver == "C"]
    assert len(got) > 20
    assert {(m.tag.kind, m.tensor.dtype, tuple(m.tensor.tolist())) for m in got} == {(Kind.READY, torch.uint8, (1,))}
