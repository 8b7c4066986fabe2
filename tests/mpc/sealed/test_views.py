"""What anybody but the receiver of the output sees is noise: the same, whatever the private inputs are.

One program uses every operation. It is run many times on either of two very different inputs of the same public sizes.
A view is all that a coalition gets from outside it, and what it can add it up to. Statistics over the runs:

    uniform     chi-square of the bytes of each number, and of the places of each order
    alone       correlations of bits of all numbers with each other, of orders with each other
    alike       Kolmogorov-Smirnov between the two inputs

Secrets are fixed, so that nothing here depends on chance. Mutants show that each fault is found.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, ks_2samp
from torch import Tensor

from tests import nightly
from tests.mpc.sealed.faults import (
    Forms,
    bits_unmasked,
    compared,
    cuts_alike,
    left_out,
    pair_unmasked,
    repeated,
    unshuffled,
    weights_unmasked,
)
from tests.mpc.sealed.parties import NAMES, of, run
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Message, RecordedLink
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed import hidden_graph
from veilgraph.mpc.sealed.correlations import Holder, Stream
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.permutations import orders
from veilgraph.mpc.sealed.row_keys import expand_rows, key_form
from veilgraph.mpc.sealed.wire import Wire

Array = np.ndarray[Any, np.dtype[Any]]
N, D, PADDED, PICKED, WEIGHT_BITS = 4, 2, 6, 2, 8
RUNS = 100 if "VEILGRAPH_NIGHTLY" in os.environ else 64
LIMIT = 6.5
"""Standard deviations: millions of correlations are looked at."""
RARE = 1e-8
"""Of p-values: thousands are looked at."""


@dataclass(frozen=True)
class Private:
    """What the holders have."""

    first: Tensor
    second: Tensor
    other: Tensor
    edges: tuple[Tensor, Tensor, Tensor]
    rows: Tensor
    weights: Tensor


def edges(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()


NOTHING = Private(
    torch.zeros(N, D),
    torch.zeros(N, D),
    torch.zeros(N, D),
    (edges(), edges(), edges()),
    torch.tensor([0, 1]),
    torch.zeros(0),
)
MUCH = Private(
    torch.full((N, D), -3.75),
    torch.full((N, D), 10.0),
    torch.tensor([[1.5, -2], [0.25, 7], [-8, 8], [4, 4]]),
    (edges(*[(node, 2) for node in (0, 1, 2, 3, 3, 3)]), edges((1, 0), (1, 2)), edges(*[(0, 1)] * 6)),
    torch.tensor([3, 0]),
    torch.tensor([1.0, 2, 3, -4, 0.5, 0]),
)


def entering(machine: Machine, data: Private) -> tuple[Wire, Wire, Wire]:
    """What holders put in, hops over their edges, and rows that one of them picks."""
    first, second = (machine.put("A", of(machine, "A", own), (N, D), 16) for own in (data.first, data.second))
    other = machine.put("B", of(machine, "B", data.other), (N, D), 16)
    graphs = [
        machine.hidden_graph(owner, of(machine, owner, own), N, PADDED)
        for owner, own in zip("AAB", data.edges, strict=True)
    ]
    rows = machine.open(machine.hop([*graphs, graphs[0]], machine.open(machine.split(second), 4, 32)))
    weighted = machine.hidden_graph(
        "A", of(machine, "A", data.edges[0]), N, PADDED, of(machine, "A", data.weights), WEIGHT_BITS
    )
    hop = machine.open(machine.hop([weighted], second), WEIGHT_BITS)
    picked = machine.pick("A", of(machine, "A", data.rows), PICKED, rows.times(16).halved(4) + hop)
    machine.reveal(machine.open(picked), "A")
    return first, second, other


def computing(machine: Machine, first: Wire, second: Wire, other: Wire) -> None:
    """Products, comparisons and gates of it."""
    product = machine.open(machine.product(torch.mul, first, other), 16)
    square = machine.open(machine.product(matmul, second, other.T), 20)[:, :D]
    cubed = machine.open(machine.triple(product, product, square), 32)
    negative, again = machine.both(lambda: machine.negative(cubed), lambda: machine.open(machine.split(product)))
    short, shortest = machine.negative(again, 20), machine.negative(again, 18, 7)
    machine.open(machine.value(short) + machine.value(shortest))
    gated = machine.open(machine.gate(negative, product) + machine.value(negative).scaled(0.5, 16))
    waves = machine.sines(gated, 5, [0.75, -0.25])
    opened, _ = machine.abreast([lambda: machine.open(waves, waves.bits - 20)] * 2)
    machine.reveal(opened, "A")


Slot = tuple[PartyId, PartyId, Kind, int, int]


def session(
    data: Private, holders: int, number: int, *, whole: bool, dealer: PartyId = SERVER
) -> dict[PartyId, tuple[Message, ...]]:
    """Every party's transcript, of both parts or of the first."""
    links: dict[PartyId, RecordedLink] = {}

    def program(machine: Machine) -> None:
        entered = entering(machine, data)
        if whole:
            computing(machine, *entered)

    secrets, pair = (fixed_secrets(what, holders, number) for what in ("views", "pair"))
    run(program, holders, links, secrets=secrets, keeps=True, dealer=dealer, pair_secrets=pair)
    return {party: link.transcript() for party, link in links.items()}


def outside(transcripts: Mapping[PartyId, Sequence[Message]], coalition: str) -> dict[Slot, Tensor]:
    """What a coalition gets from outside, but for the output, and what it makes of it: the values that all open."""
    got: dict[Slot, Tensor] = {}
    opened: dict[tuple[Kind, int, int], dict[PartyId, Tensor]] = {}
    for member in coalition:
        for message in transcripts[member]:
            tag, sender = message.tag, message.sender
            if tag.kind in (Kind.MASKED_WIRE, Kind.MASKED_BITS):
                opened.setdefault((tag.kind, tag.step, tag.round), {})[sender] = message.tensor
            if sender in coalition or tag.kind in (Kind.MASK_SHARE, Kind.SEED):
                continue
            to = member if tag.kind in (Kind.CORRELATION, Kind.MASKED_ROWS) else "all"
            got[sender, to, tag.kind, tag.step, tag.round] = message.tensor
    for (kind, step, round_), parts in opened.items():
        if len(parts) > 1:
            pieces = list(parts.values())
            both = sum(pieces[1:], start=pieces[0])
            if kind == Kind.MASKED_BITS:
                both = pieces[0]
                for piece in pieces[1:]:
                    both = both ^ piece
            got["", "all", kind, step, round_] = both
    return got


@dataclass(frozen=True)
class View:
    """Over runs.

    Attributes:
        numbers: slot → [runs, elements] bytes of each number: uint8 [runs, elements, 4 or 8].
        orders: slot → [runs, places].
    """

    numbers: dict[Slot, Array]
    orders: dict[Slot, Array]


def viewed(got: list[dict[Slot, Tensor]]) -> View:
    numbers, orders = {}, {}
    for slot in got[0]:
        together = np.stack([each[slot].numpy().reshape(-1) for each in got])
        if slot[2] == Kind.PLACEMENT:
            orders[slot], masked = np.split(together, [2 * (N + PADDED) + N], 1)
            if masked.size:  # weights, behind the orders of their graph
                numbers[slot] = np.ascontiguousarray(masked).view(np.uint8).reshape(len(got), -1, 8)
        else:
            width = 4 if together.dtype == np.int32 else 8
            numbers[slot] = together.view(np.uint8).reshape(len(got), -1, width)
    return View(numbers, orders)


def bits(found: View) -> Array:
    """Rows of ±1, a row for each bit of a few numbers of every message: [bits, runs]."""
    rows = []
    for part in found.numbers.values():
        chosen = part[:, np.linspace(0, part.shape[1] - 1, min(6, part.shape[1])).astype(int)]
        flat = np.unpackbits(chosen, axis=2, bitorder="little")
        rows.append(flat[:, :, [0, 1, 2, 15, -2, -1]].reshape(len(part), -1).T)
    return np.concatenate(rows).astype(np.float32) * 2 - 1


def least_uniform(found: View) -> float:
    """The smallest p-value of a chi-square: of sixteenths of a byte of a number, or of places of an order."""
    counted: dict[int, list[Array]] = {16: [], N: [], N + PADDED: []}
    for part in found.numbers.values():
        for nibbles in (part & 15, part >> 4):
            for column in np.moveaxis(nibbles, 2, 0):
                counted[16] += [np.bincount(each.reshape(-1), minlength=16) for each in (*column.T[:4], column)]
    for part in found.orders.values():
        size = N if part.shape[1] == PICKED else N + PADDED
        counted[size] += [np.bincount(place, minlength=size) for order in order_parts(part, size) for place in order.T]
    return min(float(chi_square(np.stack(each)).min()) for each in counted.values() if each)


def chi_square(counted: Array) -> Array:
    """p-values of rows of counts."""
    expected = counted.sum(1, keepdims=True) / counted.shape[1]
    return np.asarray(chi2.sf(((counted - expected) ** 2 / expected).sum(1), counted.shape[1] - 1))


def order_parts(part: Array, size: int) -> Iterator[Array]:
    """The orders in a message: one of picked rows, or spread, turn and pick of a graph."""
    yield from [part] if part.shape[1] == PICKED else np.split(part, [size, 2 * size], 1)


def worst_pair(found: View) -> float:
    """The largest correlation of two bits, or that two orders have a place or a value in common, in deviations."""
    rows = bits(found)
    among = np.abs(rows @ rows.T) / rows.shape[1] ** 0.5
    np.fill_diagonal(among, 0)
    worst = float(among.max())
    for one, two in itertools.combinations(found.orders.values(), 2):
        if one.shape != two.shape or one.shape[1] == PICKED:
            continue
        size = N + PADDED
        for first, second in zip(order_parts(one, size), order_parts(two, size), strict=True):
            pairs = [(first, second)]
            if first.shape[1] == size:
                pairs.append((np.argsort(first, 1), np.argsort(second, 1)))
            for left, right in pairs:
                equal = (left[:, :, None] == right[:, None, :]).sum(0)
                mean, runs = len(left) / size, len(left)
                worst = max(worst, float(np.abs(equal - mean).max() / (runs / size * (1 - 1 / size)) ** 0.5))
    return worst


def least_alike(one: View, two: View) -> float:
    """The smallest p-value that what two inputs give is of one distribution."""
    p_values = []
    for slot, part in one.numbers.items():
        for column in (0, -1):  # the lowest byte, and the highest
            for element in range(min(3, part.shape[1])):
                p_values.append(alike(part[:, element, column], two.numbers[slot][:, element, column]))
    for slot, part in one.orders.items():
        p_values += [alike(*both) for both in zip(part.T, two.orders[slot].T, strict=True)]
    return min(p_values)


def alike(one: Array, two: Array) -> float:
    return float(ks_2samp(one, two, method="asymp").pvalue)


OF_A_DAY = [(3, SERVER, "AB"), (3, SERVER, "BC"), (3, "A", "A"), (3, "A", "B"), (3, "A", "C")]
"""Where A deals, it has all edges and rows but one graph, B has the random orders and C the relative ones."""
OF_NIGHTS = [
    *((2, SERVER, "A"), (2, SERVER, "B"), (3, SERVER, "AC"), (3, SERVER, "A"), (3, SERVER, "C")),
    *((3, "B", "A"), (3, "B", "B"), (3, "B", "C"), (3, "C", "A"), (3, "C", "B")),
    *((4, "A", "BD"), (4, "A", "CD"), (4, "B", "AD")),
]
COALITIONS = [*OF_A_DAY, *(pytest.param(*each, marks=nightly) for each in OF_NIGHTS)]


@cache
def kept(
    of_much: bool, holders: int, runs: int = RUNS, dealer: PartyId = SERVER
) -> list[dict[PartyId, tuple[Message, ...]]]:
    data = MUCH if of_much else NOTHING
    return [session(data, holders, of_much * RUNS + number, whole=True, dealer=dealer) for number in range(runs)]


@pytest.mark.cases(5)
@pytest.mark.parametrize(("holders", "dealer", "coalition"), COALITIONS)
def test_all_that_a_coalition_gets_is_noise_and_the_same_for_all_inputs(
    holders: int, dealer: PartyId, coalition: str
) -> None:
    both = [viewed([outside(each, coalition) for each in kept(much, holders, dealer=dealer)]) for much in (False, True)]
    for found in both:
        kinds = {slot[2] for slot in (*found.numbers, *found.orders)}
        if coalition == dealer:  # which gets rows for its own edges and rows, and nothing that is opened
            assert kinds == {Kind.MASKED_ROWS}
        else:
            assert len(found.numbers) > 20
            assert kinds >= {Kind.MASKED_WIRE, Kind.MASKED_BITS}
        assert least_uniform(found) > RARE
        assert worst_pair(found) < LIMIT
    assert least_alike(*both) > RARE


@pytest.mark.cases(2)
@pytest.mark.parametrize(("holders", "dealer"), [(2, SERVER), (3, SERVER), (3, "A"), (3, "B")])
def test_sequence_kinds_and_sizes_of_all_messages_are_the_same_for_all_inputs(holders: int, dealer: PartyId) -> None:
    for party in dict.fromkeys((*NAMES[:holders], dealer)):
        for direction in ("sender", "receiver"):
            forms = [
                [
                    (m.sender, m.receiver, m.tag, tuple(m.tensor.shape), m.tensor.dtype)
                    for m in each[party]
                    if getattr(m, direction) == party
                ]
                for much in (False, True)
                for each in kept(much, holders, 2, dealer)
            ]
            assert len(forms[0]) > 1 or (party, direction) == (SERVER, "receiver")
            assert all(each == forms[0] for each in forms)


def test_a_dealing_holder_tells_its_orders_to_the_second_holder_and_its_columns_to_all() -> None:
    """The first holder knows the random orders that they are relative to."""
    for each in kept(True, 3, 2, "A"):
        sent = {(m.tag.kind, m.receiver) for m in each["A"] if m.sender == "A" and m.tag.kind is not Kind.CORRELATION}
        assert sent == {
            *((kind, holder) for kind in (Kind.SEED, Kind.MASKED_WIRE) for holder in "BC"),
            (Kind.PLACEMENT, "C"),
        }
        assert {m.receiver for m in each["B"] if (m.sender, m.tag.kind) == ("B", Kind.SEED)} == {"C"}


def test_the_dealer_gets_nothing() -> None:
    for much in (False, True):
        assert [m for each in kept(much, 2, 2) for m in each[SERVER] if m.receiver == SERVER] == []


PUT: Forms = [((N, D), torch.int64)]


def is_put(forms: Forms) -> bool:
    return list(forms) == PUT


def is_rows(forms: Forms) -> bool:
    return list(forms) == [((N + PADDED, D), torch.int32)]


def is_weighted_rows(forms: Forms) -> bool:
    return list(forms) == [((N + PADDED, D), torch.int64)]


def is_keys(forms: Forms) -> bool:
    return list(forms) == [key_form(N + PADDED)]


def expanded_alike(patch: pytest.MonkeyPatch) -> None:
    """Keys expand to the same rows in all hops."""
    patch.setattr(hidden_graph, "expand_rows", lambda keys, _, like: expand_rows(keys, 0, like))


def is_orders(forms: Forms) -> bool:
    return list(forms) == orders(N + PADDED)[:1]


compares_unmasked = compared((N, D))


def is_sines(forms: Forms) -> bool:
    return [len(shape) for shape, _ in forms] == [4]


sines_unmasked = left_out(is_sines)


def pair_is_the_dealers(patch: pytest.MonkeyPatch) -> None:
    """It is what the dealer draws as well, so that it can take it off; here it is made of one seed for all sessions."""
    one = Stream(bytes(32))
    drawn: dict[str, list[Tensor]] = {}
    patch.setattr(Holder, "drawn_in_pair", lambda self, forms: drawn.setdefault(str(forms), one.draw(forms)))


def forked_alike(patch: pytest.MonkeyPatch) -> None:
    """Parts of a program that run side by side draw from one stream's copies."""

    def copies(self: Stream, count: int) -> list[Stream]:
        seed = self.draw([((32,), torch.uint8)] * count)[0].numpy().tobytes()
        return [Stream(seed) for _ in range(count)]

    patch.setattr(Stream, "fork", copies)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "two holders cut by bits that have no masks": (bits_unmasked(N * D), "B"),
    "what is put in has no mask": (left_out(is_put), "B"),
    "two values that are put in have one mask": (repeated(is_put), "B"),
    "rows of masks have no masks": (left_out(is_rows), "A"),
    "rows of masks have no keys": (left_out(is_keys), "A"),
    "two hops expand the same rows": (expanded_alike, "A"),
    "two hops have the same masks": (repeated(is_rows), "A"),
    "two graphs have the same random orders": (repeated(is_orders), "B"),
    "edges have no random order": (left_out(is_orders), "B"),
    "weights have no mask": (weights_unmasked, "B"),
    "rows of weighted hops have no masks": (left_out(is_weighted_rows), "A"),
    "rows are picked in their order": (unshuffled(N), "B"),
    "sessions of three holders round alike": (cuts_alike, "AB"),
    "comparisons are opened without masks": (compares_unmasked, "B"),
    "sines of masks are no shares": (sines_unmasked, "B"),
    "parts side by side draw the same": (forked_alike, "B"),
}
OF_A_DEALING_HOLDER: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "the first two holders have no stream of their own": (pair_unmasked, "A"),
    "the stream of the first two is the same in all hops": (pair_is_the_dealers, "A"),
    "two hops of the dealer expand the same rows": (expanded_alike, "A"),
    "what the dealer puts in has no mask": (left_out(is_put), "C"),
    "the dealer's edges have no random order": (left_out(is_orders), "C"),
    "the dealer's weights have no mask": (weights_unmasked, "C"),
    "the dealer picks rows in their order": (unshuffled(N), "C"),
}
"""Where A deals."""


OF_A_NIGHT = (
    "two hops have the same masks",
    "two graphs have the same random orders",
    "edges have no random order",
    "weights have no mask",
    "rows of weighted hops have no masks",
    "rows are picked in their order",
)


def is_found(mutate: Callable[[pytest.MonkeyPatch], None], holders: int, coalition: str, dealer: PartyId) -> bool:
    whole = mutate in (compares_unmasked, sines_unmasked, forked_alike)
    runs = [session(MUCH, holders, number, whole=whole, dealer=dealer) for number in range(RUNS)]
    found = viewed([outside(each, coalition) for each in runs])
    return least_uniform(found) < RARE or worst_pair(found) > LIMIT


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=nightly) if name in OF_A_NIGHT else name for name in MUTANTS]
)
def test_mutants_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, coalition = MUTANTS[name]
    mutate(monkeypatch)
    assert is_found(mutate, 1 + len(coalition), coalition, SERVER)


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", OF_A_DEALING_HOLDER)
def test_mutants_of_a_dealing_holder_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, coalition = OF_A_DEALING_HOLDER[name]
    mutate(monkeypatch)
    assert is_found(mutate, 3, coalition, "A")
