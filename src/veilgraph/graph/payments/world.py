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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.graph.names import holder_names
from veilgraph.graph.payments.customers import Customers, draw_customers
from veilgraph.graph.payments.facts import Columns, draw_facts
from veilgraph.graph.payments.lookalikes import lookalike_transfers
from veilgraph.graph.payments.ordinary import ordinary_transfers
from veilgraph.graph.payments.patterns import draw_patterns
from veilgraph.graph.payments.transfers import LAWFUL, Transfers, Whole, in_order
from veilgraph.graph.payments.views import View, all_banks, view
from veilgraph.graph.payments_settings import PATTERN_KINDS, PatternKind, PaymentsSettings

SPLITS: Final = ("train", "val", "test")
_CASES: Final = (0.5, 0.2)
"""Shares of the members that are for training and for validation."""
_LAWFUL_PER_CASE: Final = 1
_LAWFUL_VALIDATION: Final = 0.4


@dataclass(frozen=True, eq=False)
class PaymentsWorld:
    """N customers, T transfers in the order of time, P patterns.

    Attributes:
        settings: what was asked.
        seed: of everything.
        customers: who they are.
        transfers: all banks' together.
        pattern: int32 [N], number of the pattern that a customer belongs to, or −1.
        kind: int8 [P], place in ``PATTERN_KINDS``.
        split: int8 [N], place in ``SPLITS``.
        bank_facts: column → float32 [N], what each of its banks knows of a customer.
        shop_facts: likewise the shop.
        telecom_facts: likewise the telecom.
    """

    settings: PaymentsSettings
    seed: int
    customers: Customers
    transfers: Transfers
    pattern: Whole
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
        return view(self, name)

    def together(self) -> View:
        """What the banks see together, as one bank with all customers: columns from all transfers, all labels."""
        return all_banks(self)

    def kind_of(self, pattern: int) -> PatternKind:
        """What a pattern is."""
        return PATTERN_KINDS[int(self.kind[pattern])]


def payments_world(settings: PaymentsSettings, seed: int) -> PaymentsWorld:
    """Makes a world; time is linear in customers and, but for a sort, in transfers.

    Args:
        settings: size and shape.
        seed: fixes everything.

    Raises:
        DataError: a bank has too few customers for the patterns.
    """
    streams = np.random.default_rng(seed).spawn(6)
    customers = draw_customers(settings, streams[0])
    patterns = draw_patterns(settings, customers, streams[1])
    parts = [patterns.transfers]
    parts += lookalike_transfers(patterns, customers, settings.lookalikes, settings.days, streams[2])
    rest = settings.transfers - sum(map(len, parts))
    parts.append(ordinary_transfers(customers, rest, settings.days, streams[3]))
    pattern = np.full(len(customers), LAWFUL, np.int32)
    pattern[patterns.member] = patterns.shapes.pattern
    bank, shop, telecom = draw_facts(pattern != LAWFUL, settings.signal, streams[4])
    return PaymentsWorld(
        settings=settings,
        seed=seed,
        customers=customers,
        transfers=in_order(parts),
        pattern=pattern,
        kind=patterns.shapes.kind,
        split=_split(pattern != LAWFUL, customers, settings.banks, streams[5]),
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
