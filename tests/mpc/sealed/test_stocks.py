"""Products by what stays are made ahead: exact whatever was foreseen, counted to the byte, and no mask used twice."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba", reason="what both compute together is compiled by numba: veilgraph[nobody]")

from tests.mpc.sealed.ideal import Ideal
from tests.mpc.sealed.parties import NAMES, TWIN, of, run, secret, wire
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import NOBODY, PartyId
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.pair.exchange import Exchange
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed import pair_stocks
from veilgraph.mpc.sealed.correlations import Holder
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.mpc.sealed.pair_counting import PairCountingMachine
from veilgraph.mpc.sealed.wire import Wire, concatenate

N, STEPS, D = 5, 3, 2
EDGES = torch.tensor([[0, 1, 1, 4, 3, 3], [2, 2, 2, 2, 2, 4]])
NUMBERS = torch.arange(24 * N).reshape(N, 24) * 5 % 7 - 3
USES = [4, *[STEPS * columns for columns in (D, D, D, D, D, D, D, D, N, N)]]
"""Columns that ``program`` multiplies by each factor. Of what both have shares of, each one's share is a factor."""


def put(machine: Machine, owner: PartyId, columns: Tensor) -> Wire:
    return machine.put(owner, of(machine, owner, columns), tuple(columns.shape), 0)


def program(machine: Machine) -> Wire:
    """Other columns at each step, times all that stays: a graph in both rings, a holder's columns, shares, factors."""
    graph = machine.hidden_graph("B", of(machine, "B", EDGES), N, EDGES.shape[1])
    columns = put(machine, "B", NUMBERS[:, :4])
    shared = machine.open(
        machine.product(matmul, put(machine, "A", NUMBERS[:, 4:8]), put(machine, "B", NUMBERS[:4, :4]))
    )
    of_rows, of_columns, found = shared[:, :1], shared[:1], list[Wire]()
    owned = put(machine, "B", NUMBERS[:, 4:5])
    for step in range(STEPS):
        own = put(machine, "A", NUMBERS[:, 8 + D * step :][:, :D])
        wide = machine.open(machine.hop([graph], own))
        narrow = machine.open(machine.hop([graph], machine.open(machine.split(own), ring=32)), ring=64)
        made = machine.open(machine.product(matmul, columns, wide[:4]))
        back = machine.open(machine.product(transposed_matmul, shared, made))
        scaled = machine.open(machine.product(torch.mul, narrow, of_rows))
        alone = machine.open(machine.product(torch.mul, owned, narrow))
        across = machine.open(machine.product(torch.mul, of_columns, concatenate([wide, narrow], 1)))
        found += [
            concatenate([wide, narrow, made, scaled, alone, across], 1),
            concatenate([back] * 7, 1),
        ]
    return concatenate(found)


def asked() -> list[int]:
    machine = PairCountingMachine(NAMES[:2])
    program(machine)
    return machine.asked


FORECASTS: dict[str, Callable[[], Sequence[int]]] = {
    "exact": asked,
    "none": tuple,
    "fewer": lambda: [max(0, uses - 3) for uses in asked()],
    "more": lambda: [uses + 5 for uses in asked()] + [7],
    "of other factors": lambda: asked()[::-1],
}


def test_what_is_foreseen_is_what_is_multiplied() -> None:
    assert asked() == USES


@pytest.mark.parametrize("name", FORECASTS)
def test_products_are_exact_whatever_was_foreseen(name: str) -> None:
    found = run(program, dealer=NOBODY, foresee=FORECASTS[name])
    assert torch.equal(secret(found), wire(found, TWIN).known.to(torch.int64))


def test_a_factor_is_multiplied_once_for_all_columns() -> None:
    once, anew = Ideal(), Ideal()
    run(program, dealer=NOBODY, foresee=asked, ideal=once)
    run(program, dealer=NOBODY, ideal=anew)
    names = ("hop", "matmul", "scale")
    assert [once.calls[name] for name in names] == [2, 4, 5]  # matmul: the first product, which comes once, among them
    assert [anew.calls[name] for name in names] == [2 * STEPS, 1 + 3 * STEPS, 5 * STEPS]
    assert len(once.shown) == (STEPS - 1) * 10  # of the first columns nothing is shown
    assert not anew.shown


def test_a_stock_has_no_more_columns_than_memory_is_set_aside_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_stocks, "MOST_ENTRIES", 2 * N)
    ideal = Ideal()
    found = run(program, dealer=NOBODY, foresee=asked, ideal=ideal)
    assert torch.equal(secret(found), wire(found, TWIN).known.to(torch.int64))
    assert ideal.hops == [4, 4, 2, 2]  # in either ring two columns and two ahead, and the two that are left


def sent(foreseen: Sequence[int]) -> tuple[dict[PartyId, int], Tensor]:
    """Bytes that both holders send by the real protocols, and the result."""
    names = NAMES[:2]
    hub, links = MemoryHub(names, 60), dict[PartyId, RecordedLink]()

    def one(party: PartyId) -> Wire:
        links[party] = link = RecordedLink(hub.link(party))
        return program(PairMachine(link, names, Exchange(link, names, os.urandom), foresee=lambda: foreseen))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one, names)
    whole = first.known - first.mask - second.mask
    return {
        party: sum(row.bytes for row in link.traffic() if row.direction == "sent") for party, link in links.items()
    }, whole


@pytest.mark.parametrize("name", ["exact", "fewer"])
def test_all_that_is_sent_is_counted(name: str) -> None:
    foreseen = FORECASTS[name]()
    bytes_sent, whole = sent(foreseen)
    counting = PairCountingMachine(NAMES[:2], foreseen)
    program(counting)
    counted = {party: sum(cost.sent[party] for cost in counting.counted.costs.values()) for party in NAMES[:2]}
    assert bytes_sent == counted
    assert torch.equal(whole, wire(run(program), TWIN).known.to(torch.int64))


class Factor:
    """Something that stays."""


def test_a_factor_at_the_address_of_one_that_is_gone_is_another() -> None:
    stocks = pair_stocks.Stocks(Ideal().end(leads=True), lambda shape, dtype: torch.zeros(shape, dtype=dtype), tuple)
    addresses = set()
    for _ in range(20):
        factor = Factor()
        addresses.add(id(factor))
        stocks.multiply(factor, "", torch.zeros(2, 3), lambda columns, count: torch.zeros(2, count), has_factor=True)
        del factor
    assert len(addresses) < 20
    assert stocks.asked == [3] * 20


COLUMNS = [torch.arange(3 * N).reshape(N, 3) * factor for factor in (1, 5, -7, 11)]


def session(columns: Sequence[Tensor], secrets: SecretSource = os.urandom) -> list[Tensor]:
    """What A, who has a graph, is shown of B's columns, a few at a time: all of a session."""

    def hops(machine: Machine) -> None:
        graph = machine.hidden_graph("A", of(machine, "A", EDGES), N, 8)
        for some in [columns[0], *columns]:  # the first are multiplied at once, so nothing is shown of them
            machine.open(machine.hop([graph], put(machine, "B", some)))

    ideal, counting = Ideal(), PairCountingMachine(NAMES[:2])
    hops(counting)
    run(hops, dealer=NOBODY, foresee=lambda: counting.asked, ideal=ideal, pair_secrets=secrets)
    assert len(ideal.shown) == len(columns)
    return ideal.shown


def differences_found(shown: Sequence[Tensor], columns: Sequence[Tensor]) -> int:
    """How many differences of two of B's columns A reads off what it was shown: those under the same mask."""
    pairs = combinations(zip(torch.cat(list(shown), 1).T, torch.cat(list(columns), 1).T, strict=True), 2)
    return sum(torch.equal(one - other, own - another) for (one, own), (other, another) in pairs)


def test_no_difference_of_columns_shows_unless_a_mask_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = session(COLUMNS)
    assert not differences_found(shown, COLUMNS)
    assert not any((one == own).any() for one, own in zip(shown, COLUMNS, strict=True))
    drawn = Holder.drawn

    def repeated(holder: Holder, forms: Sequence[Form]) -> list[Tensor]:
        """Columns of which each half is the other's."""
        return [
            torch.cat([each[:, :6], each[:, :6]], 1) if each.shape[1] == 12 else each for each in drawn(holder, forms)
        ]

    monkeypatch.setattr(Holder, "drawn", repeated)
    assert differences_found(session(COLUMNS), COLUMNS) == 6


def test_the_graphs_holder_draws_no_mask_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what both draw it would know x."""

    def in_pair(_: Holder, forms: Sequence[Form]) -> list[Tensor]:
        raise AssertionError(f"both draw {forms}")

    found, drawn = list[tuple[PartyId, Form]](), Holder.drawn

    def kept(holder: Holder, forms: Sequence[Form]) -> list[Tensor]:
        found.extend((holder.party, form) for form in forms)
        return drawn(holder, forms)

    monkeypatch.setattr(Holder, "drawn_in_pair", in_pair)
    monkeypatch.setattr(Holder, "drawn", kept)
    session(COLUMNS)
    assert found == [("B", ((N, 12), torch.int64))]


def test_sessions_have_no_mask_in_common() -> None:
    """A session that goes on from a checkpoint, or predicts, has seeds of its own: nothing is masked as it was."""
    changed = [2 * each for each in COLUMNS]
    both = [*COLUMNS, *changed]
    assert not differences_found([*session(COLUMNS), *session(changed)], both)
    again = [*session(COLUMNS, bytes), *session(changed, bytes)]  # seeds of zeros in both
    assert differences_found(again, both) == 12


def test_what_is_shown_is_uniform_whatever_the_columns_are() -> None:
    for value in (0, -1, 3 << 40):
        columns = [torch.full((N, 40), value) for _ in range(25)]
        octets = torch.cat(session(columns, bytes)).reshape(-1).view(torch.uint8).reshape(-1, 8)
        for place in range(8):
            counts = torch.bincount(octets[:, place].to(torch.int64), minlength=256)
            expected = len(octets) / 256
            assert abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 6.5 * (2 * 255) ** 0.5
