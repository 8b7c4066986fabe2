"""Parts of a program side by side."""

import random
import time

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from tests.mpc.sealed.parties import TWIN, dealers, of, run, secret, wire
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.types import SERVER, PartyId, Tag
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.sealed.correlations import Stream
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Wire, concatenate


class Late(Wrapper):
    """A link whose messages come after a while that nobody knows."""

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        time.sleep(random.random() * 2e-3)
        super().send(to, tag, tensor)


def several(machine: Machine) -> Wire:
    """Parts of different lengths, of which the first has two parts itself."""
    x, y = (machine.put(holder, of(machine, holder, torch.arange(4.0)), (4,), 8) for holder in machine.holders[:2])

    def opens(times: int) -> Wire:
        found = machine.open(machine.product(torch.mul, x, y), 8)
        for _ in range(times):
            found = machine.open(machine.split(found))
        return found

    def below() -> Wire:
        return machine.open(machine.value(machine.negative(x - y.plus(1.0)))).times(1 << 8).halved(8)

    def both() -> Wire:
        return concatenate(machine.both(lambda: opens(1), lambda: opens(3)))

    first, third, bit = machine.abreast([both, lambda: opens(0), below])
    return concatenate([first, third, bit, machine.open(machine.split(first[:4]))])


@pytest.mark.parametrize("holders", [2, 3])
def test_parts_side_by_side_give_what_they_give_one_after_the_other(holders: int) -> None:
    squares = torch.arange(4) ** 2
    expected = torch.cat([squares.repeat(3), torch.ones(4), squares])
    for dealer in dealers(holders):
        found = secret(run(several, holders, dealer=dealer))
        assert (found - 256 * expected).abs().max() <= 1, dealer  # what is cut is off by a unit


@pytest.mark.parametrize(("holders", "dealer"), [(2, SERVER), (3, SERVER), (3, "B")])
def test_what_each_sends_and_in_which_order_does_not_depend_on_what_is_late(holders: int, dealer: PartyId) -> None:
    orders = []
    for late in (False, True, True):
        links: dict[PartyId, RecordedLink] = {}
        wrapped = Late if late else Wrapper
        run(
            several,
            holders,
            links,
            wrapped=wrapped,
            keeps=True,
            dealer=dealer,
            secrets=fixed_secrets("late"),
            pair_secrets=fixed_secrets("pair"),
        )
        orders.append(
            {
                party: [
                    (m.receiver, str(m.tag), m.tensor.numpy().tobytes()) for m in link.transcript() if m.sender == party
                ]
                for party, link in links.items()
            }
        )
    assert orders[0] == orders[1] == orders[2]
    assert all(len({(to, tag) for to, tag, _ in sent}) == len(sent) > 3 for sent in orders[0].values())


@pytest.mark.parametrize("owners", ["A", "B", "AB", "ABC"])
@pytest.mark.parametrize(("holders", "dealer"), [(3, SERVER), (3, "A"), (3, "C"), (4, "B")])
def test_nobody_waits_forever_for_rows_that_come_portion_by_portion(
    owners: str, holders: int, dealer: PartyId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of edges and chosen rows of a dealer, too; the dealer may be ahead of nothing that is used in a later turn."""
    monkeypatch.setattr("veilgraph.mpc.sealed.hops.CHUNK_BYTES", 64)
    monkeypatch.setattr("veilgraph.mpc.sealed.wire.AT_ONCE", 14)
    monkeypatch.setattr("veilgraph.mpc.sealed.machine.COMPARED_AT_ONCE", 14)
    monkeypatch.setattr("veilgraph.mpc.sealed.correlations.STRIDE_BYTES", 16)
    nodes, edges, rows = 6, torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), torch.tensor([4, 2, 0])

    def program(machine: Machine) -> Wire:
        x = machine.put("A", of(machine, "A", torch.arange(48.0).reshape(nodes, 8)), (nodes, 8), 8)
        graphs = [machine.hidden_graph(owner, of(machine, owner, edges), nodes, 5) for owner in owners]

        def hopped() -> Wire:
            return machine.open(machine.hop(graphs, x))

        def picked() -> Wire:
            return machine.open(machine.pick(owners[0], of(machine, owners[0], rows), len(rows), x))

        def below() -> Wire:
            return machine.open(machine.value(machine.negative(x.plus(-20.0), 18)).times(1 << 8).halved(8))

        parts = [hopped, picked, below]
        return concatenate(machine.abreast([*parts, lambda: concatenate(machine.abreast(parts))]))

    found = run(program, holders, dealer=dealer)
    expected = wire(found, TWIN).known
    assert torch.equal(secret(found) * 2.0**-8, expected)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("nested", [False, True])
def test_the_first_error_of_a_part_ends_all_parts(place: int, nested: bool) -> None:
    """Others wait for their turn meanwhile, and never come to their ends."""
    ended = []

    def fails(machine: Machine) -> object:
        def part(own: int) -> Wire:
            one = machine.open(machine.split(machine.constant(torch.full((2,), own))))
            if own == place:
                raise ZeroDivisionError(f"part {place}")
            found = machine.open(machine.split(one))
            ended.append(machine.party)
            return found

        parts = [lambda own=own: part(own) for own in range(3)]
        return machine.abreast([lambda: machine.abreast(parts), lambda: part(7)] if nested else parts)

    with pytest.raises(ZeroDivisionError) as raised:
        run(fails)
    assert f"part {place}" in str(raised.value)
    assert not ended


def test_no_two_parts_draw_the_same() -> None:
    """Of two parts that do the same, and of what comes before and after them."""
    one = Stream(bytes(32))
    form = [((4,), torch.int64)]
    (before,) = one.draw(form)
    first, second = one.fork(2)
    (after,) = one.draw(form)
    drawn = [before, after, *first.draw(form), *second.draw(form), *first.draw(form), *first.fork(1)[0].draw(form)]
    assert len({part.numpy().tobytes() for part in drawn}) == len(drawn)
    other = Stream(bytes(32))
    other.draw(form)
    for forked, again in zip((first, second), other.fork(2), strict=True):
        assert not torch.equal(*forked.draw(form), *again.draw(form))  # further on in the stream

    def both(machine: Machine) -> list[Wire]:
        x = machine.put("A", of(machine, "A", torch.ones(4)), (4,), 8)
        return machine.abreast([lambda: machine.open(machine.split(x))] * 2)

    found = run(both)["B"]
    assert isinstance(found, list)
    assert not torch.equal(found[0].known, found[1].known)
