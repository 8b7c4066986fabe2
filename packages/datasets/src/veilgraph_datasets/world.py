"""A world of payments with known truth: ordinary transfers, and laundering that crosses banks.

The patterns are six of AMLworld's (Altman et al., *Realistic Synthetic Financial Transactions for Anti-Money Laundering
Models*, 2023, figure 2). The world around them is simpler than theirs, and promises two things that theirs does not:

- no bank sees all transfers of a pattern;
- every member has ``lookalikes``, lawful customers with as many transfers in and out, of the same amounts and as far
  apart in time, but with customers at large. An account's own transfers are then no evidence, unless one sees whose
  they are at the other end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import MASKS
from veilgraph.graph.settings import holder_names
from veilgraph_datasets.laundering import draw_patterns, lookalike_transfers
from veilgraph_datasets.settings import PATTERN_KINDS, PatternKind, PaymentsSettings
from veilgraph_datasets.transfers import (
    BANK_FACTS,
    LAWFUL,
    SHOP_FACTS,
    TELECOM_FACTS,
    Column,
    Columns,
    Communities,
    Customers,
    Transfers,
    Whole,
    draw_customers,
    draw_facts,
    in_order,
    ordinary_transfers,
)

with deferred():  # seconds to import
    from torch_geometric.data import Data

SHOP: Final = "shop"
TELECOM: Final = "telecom"

UNKNOWN: Final = -1
"""A label or a part of the split that a customer has not, or that is another's to know."""
BANK_COLUMNS: Final = (
    *("company", "age", "log_income"),
    *BANK_FACTS,
    *("log_received", "log_sent", "log_euros_in", "log_euros_out", "passed_on", "other_banks"),
)
"""A bank's columns, the last six from the transfers over its own accounts."""
SHOP_COLUMNS: Final = (*SHOP_FACTS, "orders")
TELECOM_COLUMNS: Final = (*TELECOM_FACTS, "calls")


@dataclass(frozen=True, eq=False)
class View:
    """What one organisation sees.

    Attributes:
        name: of the organisation.
        nodes: int64 [n], ascending: customers that it knows, be it as another's counterparty.
        columns: column → float32 [n], NaN where a customer is not its own.
        ends: int64 [2, E], customers, the lower first: pairs that it sees joined, each once.
        labels: int8 [n], 1 launders, 0 does not; ``UNKNOWN`` but for those whose first bank it is. None: not a bank.
        splits: int8 [n], place in ``SPLITS`` where there is a label. None: not a bank.
    """

    name: str
    nodes: Whole
    columns: Columns
    ends: Whole
    labels: Whole | None = None
    splits: Whole | None = None

    @property
    def rows(self) -> Whole:
        """The ends as places in ``nodes``, [2, E]."""
        return np.searchsorted(self.nodes, self.ends)

    def features(self) -> NDArray[np.float32]:
        """The columns as they are, the mean of a column where there is no value: [n, columns]."""
        found = [np.where(np.isnan(each), np.nanmean(each), each) for each in self.columns.values()]
        return np.stack(found, axis=1).astype(np.float32)

    def data(self) -> Data:
        """All that as one graph, the pairs in both directions.

        Returns:
            ``Data`` with ``x`` [n, columns] float32, the features; ``edge_index`` [2, 2E]; ``n_id`` [n], the nodes; of
            a bank also ``y`` [n], the labels, and three masks.
        """
        rows = torch.from_numpy(self.rows)
        found = Data(x=torch.from_numpy(self.features()), edge_index=torch.cat([rows, rows.flip(0)], dim=1))
        found.n_id = torch.from_numpy(self.nodes)
        if self.labels is not None and self.splits is not None:
            found.y = torch.from_numpy(self.labels.astype(np.int64))
            found.update({mask: torch.from_numpy(self.splits == place) for place, mask in enumerate(MASKS)})
        return found


def pairs_of(one: Whole, other: Whole, customers: int) -> Whole:
    """The pairs that there are, in whichever direction, each once and ascending: int64 [2, E], the lower first."""
    codes = np.minimum(one, other).astype(np.int64)
    codes *= customers
    codes += np.maximum(one, other)
    codes.sort()  # np.unique hashes, which takes several times as long
    first = np.ones(len(codes), np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=first[1:])
    return np.stack(np.divmod(codes[first], customers))


SPLITS: Final = ("train", "val", "test")
_CASES: Final = (0.5, 0.2)
"""Shares of the members that are for training and for validation."""
_LAWFUL_PER_CASE: Final = 1
_LAWFUL_VALIDATION: Final = 0.4
_TIES: Final = 0.3
"""Share of all pairs that pay each other, lawful or not, that the telecom joins too; likewise the shop."""


@dataclass(frozen=True, eq=False)
class PaymentsWorld:
    """N customers, T transfers in the order of time, P patterns.

    Attributes:
        settings: what was asked.
        seed: of everything.
        customers: who they are.
        communities: who deals with whom.
        transfers: all banks' together.
        pattern: int32 [N], number of the pattern that a customer belongs to, or −1.
        mule: bool [N], members whose columns lean.
        kind: int8 [P], place in ``PATTERN_KINDS``.
        split: int8 [N], place in ``SPLITS``.
        bank_facts: column → float32 [N], what each of its banks knows of a customer.
        shop_facts: likewise the shop.
        telecom_facts: likewise the telecom.
    """

    settings: PaymentsSettings
    seed: int
    customers: Customers
    communities: Communities
    transfers: Transfers
    pattern: Whole
    mule: NDArray[np.bool_]
    kind: Whole
    split: Whole
    bank_facts: Columns
    shop_facts: Columns
    telecom_facts: Columns

    @property
    def launders(self) -> NDArray[np.bool_]:
        """Who belongs to a pattern, [N]: the label."""
        return np.asarray(self.pattern != LAWFUL)

    @property
    def banks(self) -> tuple[str, ...]:
        """Their names."""
        return holder_names(self.settings.banks)

    def view(self, name: str) -> View:
        """What a bank of that name, or ``shop`` or ``telecom``, sees.

        Raises:
            ConfigError: the world has no such organisation.
        """
        if name in self.banks:
            return _bank(self, self.banks.index(name))
        if name == SHOP:
            return _partner(self, name, self.customers.at_shop, self.shop_facts, SHOP_COLUMNS, 0)
        if name == TELECOM:
            return _partner(self, name, self.customers.at_telecom, self.telecom_facts, TELECOM_COLUMNS, 1)
        named = ", ".join((*self.banks, SHOP, TELECOM))
        raise ConfigError(f"name={name!r} is no organisation of this world; choose {named}")

    def together(self) -> View:
        """What the banks see together, as one bank with all customers: columns from all transfers, all labels."""
        return View(
            name="all",
            nodes=np.arange(len(self.customers)),
            columns=_bank_columns(self, None),
            ends=pairs_of(self.transfers.payer, self.transfers.payee, len(self.customers)),
            labels=self.launders.astype(np.int8),
            splits=self.split,
        )

    def accounts(self) -> tuple[Data, Tensor]:
        """Every account as a node, a customer of two banks being two, and the bank of each, Tensor[n] places.

        ``Data`` has ``x``, what an account's bank knows of it; ``edge_index``, from payer to payee, each pair once;
        ``edge_weight``, the sum of what was paid, in the currencies that it was paid in; ``y``, −1 but at a customer's
        first bank; and three masks.
        """
        customers, transfers, banks = self.customers, self.transfers, len(self.banks)
        rows = [np.flatnonzero(customers.of_bank(bank)) for bank in range(banks)]
        sizes = [len(own) for own in rows]
        place = np.full((banks, len(customers)), UNKNOWN, np.int64)
        for bank, own in enumerate(rows):
            place[bank, own] = sum(sizes[:bank]) + np.arange(len(own))
        columns = [
            np.stack([each[own] for each in _bank_columns(self, bank).values()], 1) for bank, own in enumerate(rows)
        ]
        customer, bank_of = np.concatenate(rows), np.repeat(np.arange(banks), sizes)
        payer, payee = place[transfers.payer_bank, transfers.payer], place[transfers.payee_bank, transfers.payee]
        codes, place = np.unique(payer * len(customer) + payee, return_inverse=True)
        amounts = np.bincount(place, weights=transfers.amount / 100, minlength=len(codes))
        told = customers.first[customer] == bank_of
        pairs = torch.from_numpy(np.stack(np.divmod(codes, len(customer))))
        found = Data(x=torch.from_numpy(np.concatenate(columns)), edge_index=pairs)
        found.edge_weight = torch.from_numpy(amounts.astype(np.float32))
        found.y = torch.from_numpy(np.where(told, self.launders[customer], UNKNOWN).astype(np.int64))
        splits = np.where(told, self.split[customer], UNKNOWN)
        found.update({mask: torch.from_numpy(splits == at) for at, mask in enumerate(MASKS)})
        return found, torch.from_numpy(bank_of)

    def kind_of(self, pattern: int) -> PatternKind:
        """What a pattern is."""
        return PATTERN_KINDS[int(self.kind[pattern])]


def payments_world(settings: PaymentsSettings, seed: int) -> PaymentsWorld:
    """Makes a world; time is linear in customers and, but for a sort, in transfers.

    Raises:
        DataError: a bank has too few customers for the patterns.
    """
    streams = np.random.default_rng(seed).spawn(9)  # 6 and 7 are of _partner
    customers = draw_customers(settings, streams[0])
    patterns = draw_patterns(settings, customers, streams[1])
    parts = [patterns.transfers]
    parts += lookalike_transfers(patterns, customers, settings.lookalikes, settings.days, streams[2])
    rest = settings.transfers - sum(map(len, parts))
    pattern = np.full(len(customers), LAWFUL, np.int32)
    pattern[patterns.member] = patterns.shapes.pattern
    launders = pattern != LAWFUL
    others = streams[8].permutation(np.flatnonzero(~launders)).astype(np.int32)
    communities = Communities(np.concatenate([patterns.member, others]), settings.communities)
    parts.append(ordinary_transfers(customers, communities, rest, settings.days, streams[3]))
    mule = launders & (streams[8].random(len(customers)) < settings.mules)
    bank, shop, telecom = draw_facts(mule, settings.signal, streams[4])
    return PaymentsWorld(
        settings=settings,
        seed=seed,
        customers=customers,
        communities=communities,
        transfers=in_order(parts),
        pattern=pattern,
        mule=mule,
        kind=patterns.shapes.kind,
        split=_split(launders, customers, settings.banks, streams[5]),
        bank_facts=bank,
        shop_facts=shop,
        telecom_facts=telecom,
    )


def _split(launders: NDArray[np.bool_], customers: Customers, banks: int, generator: np.random.Generator) -> Whole:
    """At every bank for training half of the cases, and as many of the lawful customers; [N]."""
    split = np.full(len(customers), SPLITS.index("test"), np.int8)
    for bank in range(banks):
        cases, lawful = (
            generator.permutation(np.flatnonzero((customers.first == bank) & each)) for each in (launders, ~launders)
        )
        train, val = (round(share * len(cases)) for share in _CASES)
        split[cases[:train]], split[cases[train : train + val]] = 0, 1
        train = max(1, min(_LAWFUL_PER_CASE * train, len(lawful) // 2))
        split[lawful[:train]] = 0
        split[lawful[train : train + max(1, round(_LAWFUL_VALIDATION * (len(lawful) - train)))]] = 1
    return split


def _bank(world: PaymentsWorld, bank: int) -> View:
    transfers, customers = world.transfers, world.customers
    seen = transfers.seen_by(bank)
    ends = pairs_of(transfers.payer[seen], transfers.payee[seen], len(customers))
    own = customers.of_bank(bank)
    known = own.copy()
    known[ends] = True
    nodes = np.flatnonzero(known)
    mine, told = own[nodes], customers.first[nodes] == bank
    return View(
        name=world.banks[bank],
        nodes=nodes,
        columns={
            name: np.where(mine, values[nodes], np.float32(np.nan))
            for name, values in _bank_columns(world, bank).items()
        },
        ends=ends,
        labels=np.where(told, world.launders[nodes], UNKNOWN).astype(np.int8),
        splits=np.where(told, world.split[nodes], UNKNOWN).astype(np.int8),
    )


def _bank_columns(world: PaymentsWorld, bank: int | None) -> dict[str, Column]:
    """The columns of ``BANK_COLUMNS`` for all customers, from the transfers over a bank's accounts, or over all."""
    customers = world.customers
    found: dict[str, Column] = {
        "company": customers.company.astype(np.float32),
        "age": customers.age,
        "log_income": np.log10(1 + customers.income),
        **world.bank_facts,
        **_activity(world.transfers, len(customers), bank),
    }
    return {name: found[name].astype(np.float32) for name in BANK_COLUMNS}


def _activity(transfers: Transfers, customers: int, bank: int | None) -> dict[str, Column]:
    euros, abroad = transfers.euros(), transfers.payer_bank != transfers.payee_bank
    count, amount = {}, {}
    outside = np.zeros(customers)
    for way, ends, banks in (
        ("in", transfers.payee, transfers.payee_bank),
        ("out", transfers.payer, transfers.payer_bank),
    ):
        here: Any = slice(None) if bank is None else banks == bank
        count[way] = np.bincount(ends[here], minlength=customers)
        amount[way] = np.bincount(ends[here], weights=euros[here], minlength=customers)
        outside += np.bincount(ends[here], weights=abroad[here], minlength=customers)
    less, more = np.minimum(amount["in"], amount["out"]), np.maximum(amount["in"], amount["out"])
    return {
        "log_received": np.log2(1 + count["in"]),
        "log_sent": np.log2(1 + count["out"]),
        "log_euros_in": np.log10(1 + amount["in"]),
        "log_euros_out": np.log10(1 + amount["out"]),
        "passed_on": less / np.maximum(more, 1e-9),
        "other_banks": outside / np.maximum(count["in"] + count["out"], 1),
    }


def _partner(
    world: PaymentsWorld, name: str, known: NDArray[np.bool_], facts: Columns, columns: tuple[str, ...], place: int
) -> View:
    """The shop or the telecom: so many of the pairs that pay each other, and as many other pairs as customers."""
    count, nodes = len(world.customers), np.flatnonzero(known)
    generator = np.random.default_rng(world.seed).spawn(8)[6 + place]
    paying = pairs_of(world.transfers.payer, world.transfers.payee, count)
    paying = paying[:, generator.random(paying.shape[1]) < _TIES]
    one = generator.integers(count, size=count)
    other = (one + generator.integers(1, count, size=count)) % count
    other = world.communities.divert(one, other, generator.spawn(1)[0])
    ends = pairs_of(np.concatenate([paying[0], one]), np.concatenate([paying[1], other]), count)
    ends = ends[:, known[ends].all(axis=0)]
    return View(name, nodes, {each: facts[each][nodes] for each in columns}, ends)
