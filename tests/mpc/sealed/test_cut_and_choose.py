"""Dealers that do not deal as they should: found out where their dealing is opened, or where they deal another."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from tests.errors import refused
from tests.mpc.sealed.parties import NAMES, of
from veilgraph.core.errors import PeerFailed, ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.tensor_file import Keeper, MemoryKeeper
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.sealed import functions
from veilgraph.mpc.sealed.cut_and_choose import checked_link, dealer_of, failed_check_reason
from veilgraph.mpc.sealed.linked import HolderMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands

COLUMNS = 64
"""A wrong gate is a right one where the masks of all signs are 0: of 128 signs that is never."""
X = torch.tensor([[-1.5, 2.0], [3.25, -0.5]], dtype=torch.float64).repeat(1, COLUMNS // 2)
EDGES = torch.tensor([[0, 1, 1], [1, 0, 1]])
RESULT = torch.tensor([[3.25, 2.0], [6.5, 2.0]], dtype=torch.float64).repeat(1, COLUMNS // 2)
"""relu of X, summed over the edges and the node itself."""
RATE = 0.25


def program(machine: Machine) -> Tensor | None:
    """Something of everything: what A knows, comparisons, gates, hidden edges of B's, cuts."""
    positive, _ = functions.relu(machine, machine.put("A", of(machine, "A", X), (2, COLUMNS), functions.BITS))
    graph = machine.hidden_graph("B", of(machine, "B", EDGES), 2, 5)
    narrow = machine.open(machine.split(positive), 0, 32)
    summed = machine.open(machine.hop([graph], narrow), 0, 64)
    ones = machine.constant(torch.ones(2, COLUMNS, dtype=torch.int64))
    return machine.reveal(functions.multiply_open(machine, summed, ones, functions.BITS), "A")


def all_of(dealing: Callable[[Machine], object]) -> Callable[[Machine], None]:
    def run(machine: Machine) -> None:
        dealing(machine)

    return run


def draws(*opened: bool) -> SecretSource:
    """Draws that open a dealing or do not, as narrowly as there is."""
    edge = int(RATE * 2**64)
    numbers = iter(edge - 1 if opens else edge for opens in opened)
    return lambda length: next(numbers).to_bytes(length, "big")


def session(
    *opened: bool,
    holders: int = 3,
    spoiled: Callable[[Machine], Machine] = lambda machine: machine,
    dealers_link: Callable[[Link], Link] = lambda link: link,
    links: dict[PartyId, RecordedLink] | None = None,
    keepers: Mapping[PartyId, Keeper] | None = None,
) -> dict[PartyId, Tensor | BaseException | None]:
    """What every party has at the end, or why it has nothing.

    Args:
        opened: which dealings are.
        holders: how many.
        spoiled: makes the dealer's machine deal wrongly, in what it commits to as in what it deals.
        dealers_link: changes what it sends.
        links: gets every party's.
        keepers: of the holders; None: fresh ones.
    """
    names = NAMES[:holders]
    hub = MemoryHub([*names, SERVER], 20)

    def one(party: PartyId) -> Tensor | None:
        link = RecordedLink(hub.link(party), keep_transcript=True)
        if links is not None:
            links[party] = link
        keeper = MemoryKeeper() if keepers is None or party == SERVER else keepers[party]
        try:
            if party == SERVER:
                wrong = dealers_link(link)
                machine = dealer_of(wrong, names, os.urandom, all_of(lambda machine: program(spoiled(machine))))
                return program(spoiled(machine))
            return program(
                HolderMachine(checked_link(link, names, SERVER, all_of(program), RATE, draws(*opened), keeper), names)
            )
        except BaseException as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(holders + 1) as pool:
        futures = {party: pool.submit(one, party) for party in (*names, SERVER)}
        return {party: future.exception() or future.result() for party, future in futures.items()}


def result(found: dict[PartyId, Tensor | BaseException | None]) -> Tensor:
    assert isinstance(found["A"], Tensor), found
    return found["A"]


def raised(found: dict[PartyId, Tensor | BaseException | None]) -> None:
    """Raises what a holder found first."""
    errors = [error for error in found.values() if isinstance(error, BaseException)]
    for error in errors:
        if not isinstance(error, PeerFailed):
            raise error


def other_gates(machine: Machine) -> Machine:
    """A dealer that multiplies bits with other masks than those of the wires."""
    gate = machine.gate
    machine.gate = lambda bit, wire: gate(bit, wire.times(2))  # type: ignore[method-assign]
    return machine


class Changing(Wrapper):
    """Changes one message to one holder.

    Args:
        link: of the dealer.
        kind, at: which: so many of the kind went to that holder before.
        to: the holder.
    """

    def __init__(self, link: Link, kind: Kind, at: int, to: PartyId) -> None:
        super().__init__(link)
        self._kind, self._to, self._left = kind, to, at

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if (to, tag.kind) == (self._to, self._kind):
            if self._left == 0:
                tensor = tensor.clone()
                tensor.view(-1)[0] ^= 1
            self._left -= 1
        super().send(to, tag, tensor)


def changing(kind: Kind, at: int, to: PartyId) -> Callable[[Link], Link]:
    return lambda link: Changing(link, kind, at, to)


def test_a_dealer_that_deals_wrongly_is_found_where_it_is_opened() -> None:
    with refused(ProtocolError, code="dealer", party=SERVER):
        raised(session(True, spoiled=other_gates))
    with refused(ProtocolError, code="dealer", party=SERVER):
        raised(session(True, dealers_link=changing(Kind.COMMITMENT, 1, "B")))  # reveals another key


def test_where_it_is_not_opened_it_is_not_found() -> None:
    """What a chance of RATE is about: the same dealer makes another result of it."""
    assert not torch.equal(result(session(False, spoiled=other_gates)), RESULT)


@pytest.mark.parametrize("to", ["B", "C"])
def test_holders_are_told_of_one_key(to: PartyId) -> None:
    with refused(ProtocolError, code="dealer", party=SERVER):
        raised(session(False, dealers_link=changing(Kind.COMMITMENT, 0, to)))


class HangsUp(Wrapper):
    """Gives no key of a dealing that is opened."""

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if (tag.kind, tag.round) == (Kind.COMMITMENT, 3):
            raise OSError("hung up")
        super().send(to, tag, tensor)


def test_a_dealer_that_hangs_up_when_it_is_opened_has_failed_the_check_in_later_sessions_too() -> None:
    keepers = {name: MemoryKeeper() for name in NAMES[:3]}
    assert [failed_check_reason(keeper) for keeper in keepers.values()] == ["", "", ""]
    with refused(ProtocolError, code="dealer", party=SERVER):
        raised({"A": session(True, spoiled=other_gates, dealers_link=HangsUp, keepers=keepers)["A"]})
    assert "deal" in failed_check_reason(keepers["A"])


@pytest.mark.parametrize("opened", [(False,), (True, False)])
def test_a_check_that_ends_well_leaves_no_record(opened: tuple[bool, ...]) -> None:
    keepers = {name: MemoryKeeper() for name in NAMES[:3]}
    result(session(*opened, keepers=keepers))
    assert not any(map(failed_check_reason, keepers.values()))


def test_a_wrong_dealing_that_is_opened_is_a_failed_check_in_later_sessions_too() -> None:
    keepers = {name: MemoryKeeper() for name in NAMES[:3]}
    session(True, spoiled=other_gates, keepers=keepers)
    assert [bool(failed_check_reason(keeper)) for keeper in keepers.values()] == [
        False,
        False,
        True,
    ]  # what C is dealt is wrong


class Kept(Wrapper):
    """Nothing goes out, and no dealing is opened."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.sent: dict[tuple[PartyId, Tag], Tensor] = {}

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self.sent[to, tag] = tensor

    @override
    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        return torch.tensor([False])


class TwoKeys(Wrapper):
    """Tells B of a dealing with another key, which it also reveals to B, and of the others' key to compare."""

    KEY = bytes(range(32))

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if to == "B" and tag == Tag(Kind.COMMITMENT, 0, 0):
            other = Kept(self._link)
            dealer_of(other, NAMES[:3], lambda length: self.KEY[:length], all_of(program))
            tensor = torch.cat([tensor[:1], other.sent[to, tag][1:]])
        if to == "B" and tag == Tag(Kind.COMMITMENT, 0, 3):
            tensor = torch.tensor(list(self.KEY), dtype=torch.uint8)
        super().send(to, tag, tensor)


def test_holders_open_one_key() -> None:
    with refused(ProtocolError, code="dealer", party=SERVER):
        raised(session(True, False, dealers_link=TwoKeys))


@pytest.mark.parametrize(
    ("kind", "at", "to"), [(Kind.SEED, 0, "A"), (Kind.CORRELATION, 0, "C"), (Kind.CORRELATION, 0, "B")]
)
def test_what_is_dealt_is_what_was_committed_to(kind: Kind, at: int, to: PartyId) -> None:
    """Found by the holder that gets it, before it computes anything of it."""
    with refused(ProtocolError, code="dealer", party=SERVER):
        raised(session(True, False, dealers_link=changing(kind, at, to)))


def test_a_dealer_can_deal_no_more_than_it_committed_to() -> None:
    def more(machine: Machine) -> None:
        program(machine)
        machine.open(Summands(torch.zeros(1, dtype=torch.int64), 0))

    names = NAMES[:2]
    hub = MemoryHub([*names, SERVER], 20)

    def holder(party: PartyId) -> None:
        link = checked_link(hub.link(party), names, SERVER, all_of(program), RATE, draws(False), MemoryKeeper())
        more(HolderMachine(link, names))

    with ThreadPoolExecutor(3) as pool:
        dealer = pool.submit(lambda: more(dealer_of(hub.link(SERVER), names, os.urandom, all_of(program))))
        ends = [pool.submit(holder, party) for party in names]
        dealer.result()
        with refused(ProtocolError, code="dealer", party=SERVER):
            ends[1].result()
        hub.fail("B", RuntimeError())
        assert isinstance(ends[0].exception(), PeerFailed)
