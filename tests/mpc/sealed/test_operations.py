"""Every operation against its twin."""

import os
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from tests import nightly
from tests.errors import refused
from tests.mpc.sealed.faults import bits_unmasked, pair_unmasked
from tests.mpc.sealed.parties import NAMES, TWIN, dealers, of, run, secret, wire
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ConfigError, ProtocolError, RangeOverflow
from veilgraph.core.types import NOBODY, Kind, PartyId, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc import bits as planes
from veilgraph.mpc.ring import column_products, matmul, transposed_matmul
from veilgraph.mpc.sealed import functions, hops
from veilgraph.mpc.sealed.correlations import Holder
from veilgraph.mpc.sealed.functions import BITS, ERROR_BITS, FINE_BITS, WHOLE_BITS
from veilgraph.mpc.sealed.linked import DealerMachine, HolderMachine
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.mpc.sealed.opening import GUARD, Open
from veilgraph.mpc.sealed.row_keys import expand_rows
from veilgraph.mpc.sealed.sines import FACTOR_BITS, TABLE_BITS, UNIT_BITS, circle, odd_multiples
from veilgraph.mpc.sealed.wire import Summands, Wire, concatenate, joined

HOLDERS = st.integers(2, 6)
SIZE = st.integers(1, 5)
SEED = st.integers(0, 2**32)
RING = st.sampled_from([32, 64])
few = settings(max_examples=12)
UNIT = 2.0**-BITS
ERROR = 2.0**-ERROR_BITS
"""A unit of probabilities."""


def whole(seed: int, *shape: int, bits: int = BITS, most: float = 8.0) -> Tensor:
    """Numbers that are exact with so many fractional bits."""
    numbers = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ((2 * numbers - 1) * most * 2.0**bits).round() * 2.0**-bits


def agree(program: Any, holders: int, units: float = 0.0, unit: float = UNIT) -> None:
    """The program gives a wire, which is that of the twin up to so many units, whoever deals."""
    for dealer in dealers(holders):
        results = run(program, holders, dealer=dealer)
        expected, found = wire(results, TWIN), wire(results)
        assert found.bits == expected.bits
        assert found.shape == expected.shape == wire(results, dealer or "B").shape
        assert {wire(results, name).bits for name in NAMES[:holders]} == {found.bits}
        assert expected.public is not None
        error = (secret(results).to(torch.float64) * 2.0**-found.bits - expected.public).abs()
        assert error.max() <= units * unit, dealer


@few
@given(HOLDERS, SIZE, SEED)
def test_a_constant_and_summands_of_all_or_of_one(holders: int, size: int, seed: int) -> None:
    own = {name: whole(seed + place, size) for place, name in enumerate(NAMES[:holders])}
    last = NAMES[holders - 1]

    def program(machine: Machine) -> Wire:
        values = torch.stack(list(own.values())).sum(0) if machine.party == TWIN else own.get(machine.party)
        everybodys = machine.summands(values, (size,), BITS)
        lasts = machine.summands(own[last] if machine.party in (last, TWIN) else None, (size,), BITS, of=last)
        constant = machine.constant(torch.arange(size) << BITS, BITS)
        return machine.open(everybodys + lasts.times(2) - (-machine.split(constant))[:size])

    agree(program, holders)


@few
@given(HOLDERS, SIZE, SEED, RING)
def test_shares_add_up_and_are_opened_again(holders: int, size: int, seed: int, ring: Any) -> None:
    x = whole(seed, size)

    def program(machine: Machine) -> tuple[Wire, Tensor]:
        put = machine.put("B", of(machine, "B", x), (size,), BITS)
        kept = machine.open(machine.split(put), 0, ring)
        return kept, machine.share(kept)

    for dealer in dealers(holders):
        found: Any = run(program, holders, dealer=dealer)
        shares = [share for name, (_, share) in found.items() if name != TWIN]
        assert torch.equal(sum(shares[1:], start=shares[0]).to(torch.float64) * UNIT, x)
        assert dealer == NOBODY or not found[dealer][1].any()


@few
@given(HOLDERS, SIZE, SIZE, SIZE, SEED, st.data())
def test_products(holders: int, rows: int, inner: int, columns: int, seed: int, data: st.DataObject) -> None:
    owners = [data.draw(st.sampled_from([None, *NAMES[:holders]])) for _ in range(2)]
    kind: Any = data.draw(st.sampled_from([torch.mul, column_products, matmul, transposed_matmul]))
    shapes = {
        torch.mul: ((rows, columns), data.draw(st.sampled_from([(rows, columns), (rows, 1), (1, columns)]))),
        column_products: ((rows, columns), (rows, columns)),
        matmul: ((rows, inner), (inner, columns)),
        transposed_matmul: ((inner, rows), (inner, columns)),
    }[kind]
    values = [whole(seed + place, *shape, bits=8) for place, shape in enumerate(shapes)]

    def program(machine: Machine) -> Wire:
        wires = []
        for owner, value in zip(owners, values, strict=True):
            put = machine.put(owner or "A", of(machine, owner or "A", value), value.shape, 8)
            wires.append(put if owner else machine.open(machine.split(put)))
        return machine.open(machine.product(kind, wires[0], wires[1]))

    agree(program, holders)


@pytest.mark.parametrize("kind", [torch.mul, column_products])
@pytest.mark.parametrize("owner", [None, "A"])
def test_products_of_a_wire_with_itself(kind: Any, owner: str | None) -> None:
    value = whole(0, 70, 3, bits=8)

    def program(machine: Machine) -> Wire:
        put = machine.put("A", of(machine, "A", value), value.shape, 8)
        number = put if owner else machine.open(machine.split(put).scaled(1.0, 1), 1)  # under shares of both
        return machine.open(machine.product(kind, number, number))

    agree(program, 2)


@pytest.mark.parametrize("owners", [(one, other) for one in (None, "A", "B") for other in (None, "A", "B")])
def test_products_of_what_holders_put_in_and_a_constant_was_added_to(owners: tuple[str | None, str | None]) -> None:
    """The constant is known to all; who owns a wire has all of it, or a product would lack a part."""
    values = [whole(place, 2, 2, bits=8) for place in range(2)]

    def program(machine: Machine) -> Wire:
        wires = []
        for owner, value in zip(owners, values, strict=True):
            put = machine.put(owner or "B", of(machine, owner or "B", value), (2, 2), 8).plus(1.5)
            wires.append(put if owner else machine.open(machine.split(put)))
        return machine.open(machine.product(matmul, wires[0], wires[1]))

    agree(program, 2)


@few
@given(HOLDERS, st.integers(1, 130), SEED)
def test_signs_and_gates(holders: int, size: int, seed: int) -> None:
    x = whole(seed, size, bits=0, most=2.0**61).to(torch.int64)
    x[:7] = torch.tensor([0, -1, 1, 2**63 - 1, -(2**63), 2**62, -(2**62) - 1])[:size]
    y = whole(seed + 1, size)

    def program(machine: Machine) -> Wire:
        number = machine.summands(of(machine, "B", x), (size,), 0, of="B")
        bit = machine.negative(machine.open(number))
        gated = machine.put("A", of(machine, "A", y), (size,), BITS)
        bits = machine.open(machine.value(bit) + machine.value(~bit).times(2))
        both = machine.open(machine.gate(bit, gated) + machine.gate(~bit, gated).times(2))
        flipped = machine.open(machine.value(bit.map(lambda part: part.flip(0))))
        return concatenate(
            [wire.times(1 << (BITS - wire.bits)).halved(BITS - wire.bits) for wire in (bits, both, flipped)]
        )

    agree(program, holders)


@few
@given(HOLDERS, st.integers(1, 130), st.integers(-8, 8), SEED)
def test_signs_of_numbers_below_a_bound(holders: int, size: int, finer: int, seed: int) -> None:
    """Up to the bound and of all units where 36 bits are enough, else of units of 2^(n − 36)."""
    bits, most = BITS + finer, 2.0**WHOLE_BITS
    unit = 2.0 ** -min(BITS, bits)
    x = whole(seed, size, bits=min(BITS, bits), most=most)
    x[:5] = torch.tensor([0, -unit, unit, most - unit, unit - most], dtype=torch.float64)[:size]

    def program(machine: Machine) -> Wire:
        number = machine.summands(of(machine, "B", x), (size,), bits, of="B")
        return machine.open(machine.value(machine.negative(machine.open(number), WHOLE_BITS)))

    agree(program, holders)


def test_a_number_between_zero_and_what_is_compared_may_count_as_not_below_zero() -> None:
    """Of 38 bits the two lowest are left out: of −3 and −1 by chance, of −4 and 0 for sure.

    −3 counts as below zero three times of four, −1 once: half of 256 are on the wrong side once in 10^16 runs.
    """
    x = torch.tensor([-4, -3, -1, 0]).repeat(256)
    for dealer in dealers(2):
        results = run(
            lambda machine: machine.open(
                # what is cut is shared by new shares, also where nobody deals
                machine.value(machine.negative(machine.open(machine.summands(of(machine, "B", x), (1024,), 1), 1), 38))
            ),
            dealer=dealer,
        )
        rate = secret(results).reshape(256, 4).to(torch.float64).mean(0)
        assert rate[0] == 1
        assert 0.5 < rate[1] < 1
        assert 0 < rate[2] < 0.5
        assert rate[3] == 0


def test_a_number_nearer_to_zero_than_fine_bits_tell_may_count_as_not_below_zero() -> None:
    bits = 8
    x = torch.tensor([-1, -1 / 4, -(2.0**-bits), 0, 2.0**-bits, 2.0**40, -(2.0**40)], dtype=torch.float64)
    for dealer in dealers(2):

        def program(machine: Machine) -> Wire:
            number = machine.summands(of(machine, "B", x.repeat(64)), (448,), bits + 1, of="B")
            return machine.open(machine.value(machine.negative(machine.open(number, 1), fine_bits=2)))

        rate = secret(run(program, dealer=dealer)).reshape(64, 7).to(torch.float64).mean(0)
        assert rate[[0, 1, 6]].tolist() == [1, 1, 1]
        assert rate[[3, 4, 5]].tolist() == [0, 0, 0]
        assert rate[2] < 0.2 if dealer == NOBODY else rate[2] == 1


@few
@given(HOLDERS, st.integers(1, 130), st.integers(6, 9), SEED)
def test_signs_of_numbers_below_a_bound_and_of_few_bits(holders: int, size: int, fine_bits: int, seed: int) -> None:
    """Up to the bound and of all units, whether or not 25 bits are enough."""
    whole_bits = 18
    unit, most = 2.0**-fine_bits, 2.0**whole_bits
    x = whole(seed, size, bits=fine_bits, most=most)
    x[:5] = torch.tensor([0, -unit, unit, most - unit, unit - most], dtype=torch.float64)[:size]

    def program(machine: Machine) -> Wire:
        number = machine.summands(of(machine, "B", x), (size,), fine_bits, of="B")
        return machine.open(machine.value(machine.negative(machine.open(number), whole_bits, fine_bits)))

    agree(program, holders)


def test_of_25_bits_a_number_nearer_to_zero_may_count_as_not_below_zero() -> None:
    """Units of 2^−9 of numbers below 2^18: 27 bits, of which the two lowest are left out."""
    x = torch.tensor([-4, -3, -1, 0]).repeat(64)

    def program(machine: Machine) -> Wire:
        number = machine.summands(of(machine, "B", x << 1), (256,), 0, of="B")
        return machine.open(machine.value(machine.negative(machine.open(number, 1, bits=9), 18, 7)))

    rate = secret(run(program)).reshape(64, 4).to(torch.float64).mean(0)
    assert rate[[0, 3]].tolist() == [1, 0]
    assert 0.5 < rate[1] < 1
    assert 0 < rate[2] < 0.5


def test_argmax_is_the_first_of_the_largest() -> None:
    x = torch.tensor([[1.0, 1, 1, 1, 1], [0, 2, -1, 2, 2], [-3, -4, 5, 5, 4], [0, 0, 0, 0, 1]])
    for dealer in dealers(2):
        found = run(
            lambda machine: functions.argmax(machine, machine.put("A", of(machine, "A", x), (4, 5), BITS)),
            dealer=dealer,
        )
        assert secret(found)[:, 0].tolist() == wire(found, TWIN).known[:, 0].tolist() == [0, 1, 2, 4]


@few
@given(HOLDERS, SIZE, st.integers(1, 70), SEED)
def test_an_opening_and_a_comparison_in_the_same_rounds(holders: int, size: int, other: int, seed: int) -> None:
    x, y = whole(seed, size), whole(seed + 1, other)

    def program(machine: Machine) -> Wire:
        first = machine.summands(of(machine, "A", x), (size,), BITS + 20, of="A")
        second = machine.open(machine.summands(of(machine, "B", y), (other,), BITS, of="B"))
        opened, bit = machine.both(lambda: machine.open(first, 20), lambda: machine.negative(second, WHOLE_BITS))
        (again, _), _ = machine.both(
            lambda: machine.both(lambda: machine.open(machine.split(opened)), lambda: machine.negative(second)),
            lambda: machine.open(first),
        )
        return concatenate([again, machine.open(machine.value(bit)).times(1 << BITS).halved(BITS)])

    agree(program, holders, 1)


def some_edges(data: st.DataObject, nodes: int) -> Tensor:
    """None, some with duplicates and loops, or all into one hub or out of it."""
    node = st.integers(0, nodes - 1)
    hub = data.draw(node)
    pairs = data.draw(
        st.one_of(
            st.just([]),
            st.lists(st.tuples(node, node), max_size=12),
            st.lists(node.map(lambda one: (one, hub)), max_size=12),
            st.lists(node.map(lambda one: (hub, one)), max_size=12),
        )
    )
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()


@settings(max_examples=25)
@given(HOLDERS, st.integers(1, 6), SIZE, SEED, st.booleans(), RING, st.data())
def test_hops(holders: int, nodes: int, columns: int, seed: int, small: bool, ring: Any, data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.sampled_from(NAMES[:holders]), min_size=1, max_size=3))
    edges = [some_edges(data, nodes) for _ in owners]
    padded = [each.shape[1] + data.draw(st.integers(0, 3)) for each in edges]
    x = whole(seed, nodes, columns)

    def program(machine: Machine) -> Wire:
        put = machine.put("B", of(machine, "B", x), (nodes, columns), BITS)
        graphs = [
            machine.hidden_graph(owner, of(machine, owner, each), nodes, more)
            for owner, each, more in zip(owners, edges, padded, strict=True)
        ]
        once = machine.hop(graphs, machine.open(machine.split(put), 0, ring))
        return machine.open(machine.hop(graphs, machine.open(once, 0, ring)))  # lifted to Z_2^64

    with pytest.MonkeyPatch.context() as patch:
        if small:  # a column or two at a time
            patch.setattr(hops, "CHUNK_BYTES", 64)
        agree(program, holders)


@few
@given(HOLDERS, st.integers(1, 6), SIZE, SEED, st.data())
def test_hops_over_edges_with_weights(holders: int, nodes: int, columns: int, seed: int, data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.sampled_from(NAMES[:holders]), min_size=1, max_size=3))
    edges = [some_edges(data, nodes) for _ in owners]
    weights = [whole(seed + place, each.shape[1], bits=10, most=2.0) for place, each in enumerate(edges)]
    x = whole(seed, nodes, columns)

    def program(machine: Machine) -> Wire:
        put = machine.put("B", of(machine, "B", x), (nodes, columns), BITS)
        graphs = [
            machine.hidden_graph(owner, of(machine, owner, each), nodes, each.shape[1] + 1, of(machine, owner, own), 10)
            for owner, each, own in zip(owners, edges, weights, strict=True)
        ]
        return machine.open(machine.hop(graphs, machine.open(machine.split(put))))

    agree(program, holders)
    expected = x.clone()
    for each, own in zip(edges, weights, strict=True):
        expected.index_add_(0, each[1], x[each[0]] * own[:, None])
    assert torch.equal(program(PlainMachine(NAMES[:holders])).known, expected)


def test_a_hop_is_over_graphs_of_one_kind() -> None:
    def mixed(machine: Machine) -> Summands:
        edges = of(machine, "A", torch.zeros(2, 1, dtype=torch.int64))
        graphs = [machine.hidden_graph("A", edges, 2, 1, None, bits) for bits in (0, 10)]
        return machine.hop(graphs, machine.constant(torch.zeros(2, 1, dtype=torch.int64)))

    with pytest.raises(ValueError, match="take a hop for each"):
        run(mixed)


@few
@given(HOLDERS, SIZE, SIZE, SEED, st.integers(1, 12))
def test_slices_of_what_is_large_are_what_all_of_it_is(
    holders: int, rows: int, columns: int, seed: int, at_once: int
) -> None:
    """Opened, compared, and picked out of two wires side by side."""
    x, y = whole(seed, rows, columns), whole(seed + 1, rows, columns + 1)
    chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[: max(1, rows - 1)]

    def program(machine: Machine) -> Wire:
        puts = [machine.put(owner, of(machine, owner, part), part.shape, BITS) for owner, part in (("A", x), ("B", y))]
        left, right = (machine.open(machine.split(put).times(8).halved(3), 3) for put in puts)
        picked = machine.pick("B", of(machine, "B", chosen), len(chosen), left, right)
        signs = machine.open(machine.value(machine.negative(puts[1])))
        opened = machine.open(picked)
        assert opened.shape == (len(chosen), 2 * columns + 1)
        return concatenate([opened, signs.scaled(1.0, BITS)[: len(chosen)]], 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veilgraph.mpc.sealed.wire.AT_ONCE", at_once)
        patch.setattr("veilgraph.mpc.sealed.machine.COMPARED_AT_ONCE", at_once)
        agree(program, holders, units=1)
        found = program(PlainMachine(NAMES[:holders])).public  # the twin has the same slices
    assert found is not None
    assert torch.equal(found, torch.cat([torch.cat([x, y], 1)[chosen], (y < 0).double()[: len(chosen)]], 1))


@pytest.mark.parametrize("sizes", [(3,), (1, 2), (2, 1), (1, 1, 1), (0, 3)])
def test_parts_are_joined_to_what_was_said(sizes: tuple[int, ...]) -> None:
    wire = Wire(torch.arange(6).reshape(3, 2), torch.arange(6).reshape(3, 2) + 9, 4)
    parts = [wire[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    for dim, whole_, pieces in ((0, wire, parts), (1, wire.T, [part.T for part in parts])):
        found = joined(pieces, 3, dim)
        assert torch.equal(found.known, whole_.known)
        assert torch.equal(found.mask, whole_.mask)
        for wrong in (2, 4):
            with pytest.raises(ValueError, match=f"and {wrong} were said to"):
                joined(pieces[:-1] if wrong == 4 else pieces, wrong, dim)


def test_rows_are_picked_once_and_edges_are_no_more_than_was_said() -> None:
    def picks(machine: Machine) -> Summands:
        constant = machine.constant(torch.arange(4)[:, None])
        return machine.pick("A", of(machine, "A", torch.tensor([1, 1])), 2, constant)

    def joins(machine: Machine) -> object:
        return machine.hidden_graph("B", of(machine, "B", torch.zeros(2, 3, dtype=torch.int64)), 2, 2)

    for program, key in ((picks, "rows"), (joins, "padded")):
        for dealer in dealers(3):
            with refused(ConfigError, key=key):
                run(program, 3, dealer=dealer)


@pytest.mark.parametrize("wrong", [-1, 4])
@pytest.mark.parametrize("place", [0, -1])
def test_places_that_there_are_not_are_refused_whoever_deals(place: int, wrong: int) -> None:
    """Of rows that A picks, and of edges that it has."""

    def picks(machine: Machine) -> Summands:
        return machine.pick("A", of(machine, "A", torch.tensor([1, 2])), 2, machine.constant(torch.arange(4)[:, None]))

    def joins(machine: Machine) -> object:
        return machine.hidden_graph("A", of(machine, "A", torch.tensor([[0], [1]])), 3, 1)

    class Hostile(Wrapper):
        """Of all parties, of which A alone sends places."""

        @override
        def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
            changed = tensor.clone()
            if tag.kind is Kind.PLACEMENT:
                changed[place] = wrong
            super().send(to, tag, changed)

    for program in (picks, joins):
        for dealer in dealers(3):
            with refused(ProtocolError, code="places", party="A"):
                run(program, 3, dealer=dealer, wrapped=Hostile)


@pytest.mark.parametrize("masked", [True, False])
def test_what_the_first_two_draw_hides_a_value_from_the_holder_that_deals(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows λ, so a Λ would tell it the value: of one row, whose order is no secret, that it picks or hops over."""
    x, links = whole(3, 1, 2), dict[PartyId, RecordedLink]()
    if not masked:
        pair_unmasked(monkeypatch)

    def program(machine: Machine) -> Wire:
        value = machine.open(machine.split(machine.put("B", of(machine, "B", x), (1, 2), BITS)))
        machine.pick("A", of(machine, "A", torch.tensor([0])), 1, value)
        edges = of(machine, "A", torch.zeros(2, 1, dtype=torch.int64))
        machine.hop([machine.hidden_graph("A", edges, 1, 1)], value)
        return value

    mask = wire(run(program, 3, links, keeps=True, dealer="A"), "A").mask
    got = [each for each in links["A"].transcript() if (each.sender, each.tag.kind) == ("B", Kind.MASKED_ROWS)]
    assert [tuple(each.tensor.shape) for each in got] == [(1, 2), (1, 2), (3, 2)]  # rows, a key, a head and two slots
    picked, head = got[0].tensor, got[2].tensor[:1]
    hopped = head + expand_rows(torch.zeros_like(got[1].tensor), got[2].tag.step, head)
    found = [torch.equal((rows - mask).double() * UNIT, x) for rows in (picked, *hopped.split(1))]
    assert any(found) != masked
    assert (found[0], any(found[1:])) == (not masked, not masked)


def test_a_holder_deals_for_two_others_or_more() -> None:
    link = MemoryHub(["A", "B"], 1).link("B")
    with pytest.raises(ValueError, match="two others or more"):
        DealerMachine(link, "AB", os.urandom)
    with pytest.raises(ValueError, match="two others or more"):
        HolderMachine(link, "AB", "A")


@pytest.mark.parametrize(
    ("values", "error"), [(torch.ones(3), ConfigError), (torch.full((2,), 2.0**60), RangeOverflow)]
)
def test_a_dealer_with_data_puts_in_what_all_know_and_in_range(values: Tensor, error: type[Exception]) -> None:
    """Its input is held to the same as any other holder's."""

    def puts(machine: Machine) -> Wire:
        return machine.put("C", of(machine, "C", values), (2,), BITS)

    def adds(machine: Machine) -> Summands:
        return machine.summands(of(machine, "C", values), (2,), BITS, of="C")

    for program in (puts, adds):
        with pytest.raises(error, match="C"):
            run(program, 3, dealer="C")


@few
@given(HOLDERS, SIZE, SEED, st.data())
def test_a_number_is_revealed_to_one(holders: int, size: int, seed: int, data: st.DataObject) -> None:
    to, x = data.draw(st.sampled_from(NAMES[:holders])), whole(seed, size)

    def program(machine: Machine) -> Tensor | None:
        return machine.reveal(machine.put("B", of(machine, "B", x), (size,), BITS).plus(0.5), to)

    for dealer in dealers(holders):
        found: Any = run(program, holders, dealer=dealer)
        assert torch.equal(found[to], x + 0.5)
        assert [name for name in found if found[name] is not None and name != TWIN] == [to]


def signed_sines(machine: Machine, x: Wire) -> Wire:
    """The first and the last factor are below zero; of the last one's shares fewer bytes are dealt."""
    waves = machine.sines(x, 6, [-0.9, 1.5, -(2.0**-9)])
    return machine.open(waves, waves.bits - ERROR_BITS)


FUNCTIONS: dict[str, tuple[Any, Any, float, float]] = {
    "multiply_open": (lambda m, x: functions.multiply_open(m, x, x), whole, 1.5, ERROR),
    "relu": (lambda m, x: functions.relu(m, x)[0], whole, 0, UNIT),
    "row_max": (functions.row_max, lambda seed, *s: whole(seed, *s, bits=2), 0, UNIT),
    "argmax": (functions.argmax, lambda seed, *s: whole(seed, *s, bits=0, most=2), 0, UNIT),
    "sines": (signed_sines, lambda seed, *s: whole(seed, *s, most=40), 3, ERROR),
    # Sixteen pairs of factors of 22 bits and the result are off by half a unit, log(C − 1) by half a unit of 18 bits.
    "logistic": (lambda m, x: m.open(functions.logistic(m, x)), lambda seed, *s: whole(seed, *s, most=40), 5, ERROR),
    "class_probabilities": (
        lambda m, x: m.open(functions.class_probabilities(m, x)),
        lambda seed, *s: whole(seed, *s, most=20),
        6,
        ERROR,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=8)
@given(st.integers(2, 4), SIZE, st.integers(1, 9), SEED)
def test_functions(name: str, holders: int, rows: int, columns: int, seed: int) -> None:
    function, values, units, unit = FUNCTIONS[name]
    x = values(seed, rows, columns)
    agree(lambda m: function(m, m.put("A", of(m, "A", x), (rows, columns), BITS)), holders, units, unit)


@settings(max_examples=8)
@given(st.integers(2, 4), st.integers(1, 9), SEED)
def test_probabilities_are_of_softmax_for_two_classes_and_of_one_against_all_others_for_more(
    holders: int, classes: int, seed: int
) -> None:
    logits = whole(seed, 40, classes, most=30)
    logits[0] = 0
    results = run(
        lambda m: m.open(functions.class_probabilities(m, m.put("A", of(m, "A", logits), logits.shape, BITS))),
        holders,
    )
    found = secret(results) * ERROR
    odds = logits.exp() if classes != 2 else (logits - logits.flip(1)).exp()
    expected = odds / (odds + max(classes - 1, 1) if classes != 2 else odds + 1)
    assert (found - expected).abs().max() < 5e-5
    assert classes == 1 or (found[0] - 1 / classes).abs().max() < 5e-5


@given(st.integers(13, 61), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_angles_are_turned_as_complex_numbers_are(turn_bits: int, one: int, other: int) -> None:
    """Whatever wraps around in the ring: of a sum that does, and of each summand."""
    numbers = torch.tensor([one, other, (one + other + 2**63) % 2**64 - 2**63])
    *_, found = odd_multiples(numbers, turn_bits, 3)
    cosines, sines = found.to(torch.float64) * 2.0**-UNIT_BITS
    turns = [number % 2**turn_bits * 5 % 2**turn_bits / 2**turn_bits for number in (one, other, one + other)]
    angles = 2 * torch.pi * torch.tensor(turns, dtype=torch.float64)
    assert (cosines - angles.cos()).abs().max() < 1e-7
    assert (sines - angles.sin()).abs().max() < 1e-7


def test_no_library_of_sines_rounds_a_factor_otherwise() -> None:
    """All entries are so far from between two units that an error of 2^-52 changes none: shares are multiplied."""
    for level in range(3):
        turns = 2 * np.pi * np.arange(1 << TABLE_BITS) * 2.0 ** (-TABLE_BITS * (level + 1))
        for part, rounded in zip((np.cos, np.sin), circle(level), strict=True):
            error = np.abs(part(turns) * 2.0**UNIT_BITS - rounded.numpy())
            assert error.max() < 0.5 - 2.0 ** (UNIT_BITS - 50)
    logs = np.log(np.arange(2, functions.MOST_CLASSES)) * 2.0**BITS  # which are added to what all know
    assert np.abs(logs - logs.round()).max() < 0.5 - 2.0 ** (BITS - 40)
    factors = np.array(functions.SINES) * 2.0**FACTOR_BITS
    assert np.abs(factors - factors.round()).max() < 0.5 - 2.0 ** (FACTOR_BITS - 50)


@settings(max_examples=12)
@given(st.integers(2, 4), st.sampled_from([4, 5, 100, 16384]), st.sampled_from([1, 3, 4, 63, 64]), SEED)
def test_an_inverse_root(holders: int, most: int, least: int, seed: int) -> None:
    most = max(most, least)
    x = least + (whole(seed, 20, most=1).abs() * (most - least)).round()
    x[:2] = torch.tensor([least, most])

    def program(machine: Machine) -> Wire:
        values = machine.summands(of(machine, "A", x.to(torch.int64)), (20,), 0, of="A")
        return functions.inverse_root(machine, values, most, least=least)

    results = run(program, holders)
    relative = (secret(results) * 2.0**-FINE_BITS * x.sqrt() - 1).abs()
    assert relative.max() < 2.0**-11


def edges_of(holder: int, nodes: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(holder)
    return torch.randint(nodes, (2, count), generator=generator), torch.rand(count, generator=generator).double()


def test_what_others_are_told_of_weights_is_uniform_and_new_in_every_session() -> None:
    """Highest bits of E, over sessions: without its mask they would be those of small numbers, which are 0."""
    edges, weights = edges_of(0, 5, 8)

    def program(machine: Machine) -> object:
        own = machine.party in ("A", "")
        graph: Any = machine.hidden_graph("A", edges if own else None, 5, 10, weights if own else None, BITS)
        return getattr(graph, "weights", None)

    told = [run(program, secrets=fixed_secrets("session", number))["B"] for number in range(20)]
    highest = torch.stack([one < 0 for one in told if isinstance(one, torch.Tensor)]).double()
    assert highest.numel() == 20 * 15
    assert abs(float(highest.mean()) - 0.5) < 0.15
    assert not any(torch.equal(told[0], one) for one in told[1:])  # type: ignore[arg-type]


# ring of what is opened, bits that are cut off, ring of the result
CUTS = (
    *((64, shift, 64) for shift in (1, 16, 31, 32, 33, 48, 61)),
    *((64, shift, 32) for shift in (1, 16, 32, 33, 61)),
    *((32, shift, ring) for shift in (1, 16, 29) for ring in (32, 64)),
    (32, 0, 64),
)


def numbers(ring: int, shift: int, count: int, holders: int, seed: int) -> Tensor:
    """All that may be opened: uniform numbers, small ones, and those next to the ends and to multiples of 2^shift."""
    draw = np.random.default_rng(seed)
    most = (1 << (ring - GUARD)) - ((1 << shift) // 2 if holders == 2 else 0)
    uniform = draw.integers(1 - most, most, count // 2)
    small = draw.integers(-(4 << shift), 4 << shift, count // 4) if 4 << shift < most else uniform[: count // 4]
    steps = draw.integers(-(most >> shift), most >> shift, count - len(uniform) - len(small) - 6) << shift
    near = np.clip(steps + draw.integers(-1, 2, len(steps)), 1 - most, most - 1)
    ends = [1 - most, 2 - most, most - 1, most - 2, 0, -1]
    return torch.from_numpy(np.concatenate([uniform, small, near, ends]).astype(np.int64))


def opened(ring: int, shift: int, result: Any, x: Tensor, holders: int, seed: object) -> Tensor:
    """What the parties make of x · 2^−shift."""

    def program(machine: Machine) -> Wire:
        summands = machine.summands(of(machine, "B", x), tuple(x.shape), 0, of="B")
        if ring == 32:
            summands = machine.split(machine.open(summands, 0, 32))
        return machine.open(summands, shift, result)

    found = secret(run(program, holders, secrets=fixed_secrets("truncation", seed)))
    return found.to(torch.int32).to(torch.int64) if result == 32 else found


def check(ring: int, shift: int, result: Any, count: int, holders: int, seed: int) -> tuple[float, float]:
    """How many were rounded up beyond what is expected, and the variance of that number."""
    x = numbers(ring, shift, count, holders, seed)
    up = opened(ring, shift, result, x, holders, (ring, shift, result, seed)) - (x >> shift)
    if result == 32:  # the quotient may be more than the result's ring holds
        up = up.to(torch.int32).to(torch.int64)
    rest = (x & ((1 << shift) - 1)).to(torch.float64) * 2.0**-shift
    if holders == 2 and shift:  # half a unit is rounded off of what one of them is dealt, before the cut
        assert ((up - rest).abs() < 1.5).all()
        return float(up.sum() - rest.sum()), len(x) / 4
    assert ((up == 0) | (up == 1)).all()
    assert (up[rest == 0] == 0).all()
    return float(up.sum() - rest.sum()), float((rest * (1 - rest)).sum())


@pytest.mark.parametrize("holders", [2, 3])
@pytest.mark.parametrize(("ring", "shift", "result"), CUTS)
def test_an_opened_number_is_cut_off_to_one_unit_and_right_on_average(
    ring: int, shift: int, result: int, holders: int
) -> None:
    excess, variance = check(ring, shift, result, 70_000, holders, 0)
    assert abs(excess) <= 5 * variance**0.5


@nightly
def test_a_hundred_million() -> None:
    for ring, shift, result in CUTS:
        parts = [check(ring, shift, result, 1_000_000, 2 + seed % 2, 1 + seed) for seed in range(8)]
        excess, variance = (sum(each) for each in zip(*parts, strict=True))
        assert abs(excess) <= 5 * variance**0.5, (ring, shift, result)


@pytest.mark.parametrize("holders", [2, 3])
def test_what_is_out_of_range_is_wrong(holders: int) -> None:
    """The bound is that of the protocol: half of the numbers far beyond it come out wrong."""
    x = torch.full((64,), 3 << 61)
    up = opened(64, 16, 64, x, holders, 0) - (x >> 16)
    assert not ((up == 0) | (up == 1)).all()


CUT, VALUE = 4096, 1 << 61


def guessed(x: Tensor) -> float:
    """How many signs of values of one size B gets right, of those between which A's highest bit decides."""
    summands: dict[str, Tensor] = {}
    links: dict[PartyId, RecordedLink] = {}
    cut = Open.cut_by_bits

    def spied(self: Open, holder: Holder, tag: Any, summand: Tensor, *more: Any) -> Tensor:
        summands[holder.party] = summand
        return cut(self, holder, tag, summand, *more)

    def program(machine: Machine) -> Wire:
        return machine.open(machine.summands(of(machine, "A", x), (CUT,), 0, of="A"), 16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Open, "cut_by_bits", spied)
        run(program, links=links, secrets=fixed_secrets("signs"), keeps=True)
    (got,) = [each for each in links["B"].transcript() if (each.sender, each.tag.kind) == ("A", Kind.MASKED_BITS)]
    bit, own = planes.from_plane(got.tensor, CUT).numpy(), summands["B"].numpy().view(np.uint64)
    up, down = ((np.uint64((1 << 62) - 1 + value) - own) < np.uint64(1 << 63) for value in (VALUE, -VALUE))
    decides = up != down
    assert 500 < decides.sum() < CUT
    return float(np.mean((bit == up)[decides] == (x.numpy() > 0)[decides]))


def test_what_a_bit_tells_of_a_sign_its_mask_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """B knows its own summand, and so what A's highest bit is for each value that there may be."""
    x = torch.where(torch.arange(CUT) % 3 == 0, VALUE, -VALUE)
    assert abs(guessed(x) - 0.5) < 0.1
    bits_unmasked(CUT)(monkeypatch)
    assert guessed(x) == 1
