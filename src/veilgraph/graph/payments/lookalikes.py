"""Lawful customers whose own transfers look just like those of a pattern's member."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from veilgraph.graph.payments.customers import NONE, Customers
from veilgraph.graph.payments.patterns import Patterns
from veilgraph.graph.payments.transfers import LAWFUL, SECONDS_A_DAY, Transfers, Whole


def lookalike_transfers(
    patterns: Patterns, customers: Customers, copies: int, days: int, generator: np.random.Generator
) -> list[Transfers]:
    """Two transfers for each of a pattern's and each copy: one by the payer's lookalike, one to the payee's.

    A lookalike has its first account at the member's bank, and two accounts where the member uses two. It pays and is
    paid what the member is, at the same times but for a shift that is one for all of a pattern and copy. The other ends
    are customers at large of the banks where the member's counterparties are.

    Returns:
        2·copies tables of M transfers each, all lawful.
    """
    shapes, original = patterns.shapes, patterns.transfers
    lawful = np.ones(len(customers), np.bool_)
    lawful[patterns.member] = False
    like = _assigned(patterns, customers, copies, lawful, generator)
    found = []
    for own in like:
        shift = (generator.random(len(patterns.span)) * (days * SECONDS_A_DAY - patterns.span)).astype(np.int64)
        time = original.time + (shift - patterns.begin)[shapes.of]
        for pays in (True, False):
            slot, bank, other = (
                (shapes.source, original.payer_bank, original.payee_bank)
                if pays
                else (shapes.target, original.payee_bank, original.payer_bank)
            )
            mine = own[slot]
            account = np.where(
                bank == customers.first[patterns.member[slot]], customers.first[mine], customers.second[mine]
            )
            partner = _at_large(customers, other, mine, generator)
            found.append(
                Transfers(
                    time=time.astype(np.int32),
                    payer=mine if pays else partner,
                    payee=partner if pays else mine,
                    payer_bank=account if pays else other,
                    payee_bank=other if pays else account,
                    amount=original.amount,
                    currency=original.currency,
                    method=original.method,
                    pattern=np.full(len(original), LAWFUL, np.int32),
                )
            )
    return found


def _assigned(
    patterns: Patterns, customers: Customers, copies: int, lawful: NDArray[np.bool_], generator: np.random.Generator
) -> Whole:
    """Each copy's customer for each slot, [copies, S]: as few are taken twice as can be."""
    own = np.empty((copies, len(patterns.member)), np.int32)
    middle, bank = patterns.shapes.middle, customers.first[patterns.member]
    groups = [(middle, lawful & (customers.second != NONE))]
    groups += [(~middle & (bank == each), lawful & (customers.first == each)) for each in np.unique(bank)]
    for slots, candidates in groups:
        some = generator.permutation(np.flatnonzero(candidates))
        own[:, slots] = np.resize(some, (copies, int(slots.sum())))
    return own


def _at_large(customers: Customers, bank: Whole, than: Whole, generator: np.random.Generator) -> Whole:
    """A customer whose first bank is as given, another than ``than``: [len(bank)]."""
    order = np.argsort(customers.first, kind="stable").astype(np.int32)
    sizes = np.bincount(customers.first)
    starts = np.cumsum(sizes) - sizes
    place = (generator.random(len(bank)) * sizes[bank]).astype(np.int64)
    found = order[starts[bank] + place]
    following = order[starts[bank] + (place + 1) % sizes[bank]]
    return np.where(found == than, following, found)
