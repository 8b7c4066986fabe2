"""Worlds of payments for tests, and what a pattern of each kind must look like, from its transfers alone."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
from veilgraph_datasets.settings import PaymentsSettings
from veilgraph_datasets.transfers import Transfers
from veilgraph_datasets.world import PaymentsWorld, payments_world

SMALL: dict[str, Any] = {
    "customers": 600,
    "transfers": 6_000,
    "banks": 3,
    "overlap": 0.3,
    "laundering": 0.15,
    "lookalikes": 2,
}


def small_world(seed: int = 0, **changes: object) -> PaymentsWorld:
    return payments_world(PaymentsSettings(**SMALL | changes), seed)


def is_fan_in(pairs: list[tuple[int, int]]) -> bool:
    payers, payees = zip(*pairs, strict=True)
    return len(set(payees)) == 1 and len(set(payers)) == len(pairs) >= 4


def is_fan_out(pairs: list[tuple[int, int]]) -> bool:
    return is_fan_in([(payee, payer) for payer, payee in pairs])


def is_cycle(pairs: list[tuple[int, int]]) -> bool:
    """In the order of time each pays the next, and the last the first."""
    payers = [payer for payer, _ in pairs]
    return len(set(payers)) == len(pairs) >= 4 and [payee for _, payee in pairs] == payers[1:] + payers[:1]


def layers(pairs: list[tuple[int, int]]) -> tuple[set[int], set[int], set[int]]:
    """Who only pays, who does both, and who is only paid."""
    payers, payees = ({each for each, _ in pairs}, {each for _, each in pairs})
    return payers - payees, payers & payees, payees - payers


def is_scatter_gather(pairs: list[tuple[int, int]]) -> bool:
    first, middle, last = layers(pairs)
    return len(first) == len(last) == 1 and len(middle) >= 4 and is_complete(pairs, first, middle, last)


def is_bipartite(pairs: list[tuple[int, int]]) -> bool:
    first, middle, last = layers(pairs)
    return not middle and len(first) >= 2 and len(last) >= 2 and is_complete(pairs, first, last)


def is_stack(pairs: list[tuple[int, int]]) -> bool:
    three = layers(pairs)
    return min(map(len, three)) >= 2 and is_complete(pairs, *three)


def is_complete(pairs: list[tuple[int, int]], *several: set[int]) -> bool:
    """Every one of a layer pays every one of the next, once, and nobody else."""
    wanted = [(one, other) for here, there in pairwise(several) for one in here for other in there]
    return sorted(pairs) == sorted(wanted)


SHAPES = {
    "fan-in": is_fan_in,
    "fan-out": is_fan_out,
    "cycle": is_cycle,
    "scatter-gather": is_scatter_gather,
    "bipartite": is_bipartite,
    "stack": is_stack,
}


def pairs_of(transfers: Transfers) -> list[tuple[int, int]]:
    return list(zip(transfers.payer.tolist(), transfers.payee.tolist(), strict=True))


def check_money(transfers: Transfers, fee: float, kind: str) -> None:
    """Who is paid and pays does so afterwards, and pays all of it but a fee; in a cycle all but the first do."""
    came: dict[int, int] = defaultdict(int)
    went: dict[int, int] = defaultdict(int)
    begins = int(transfers.payer[0]) if kind == "cycle" else None
    latest: dict[int, int] = {}
    for payer, payee, amount, time in zip(
        *(column.tolist() for column in (transfers.payer, transfers.payee, transfers.amount, transfers.time)),
        strict=True,
    ):
        assert payer not in latest or latest[payer] < time or payer == begins, "money goes on after it came"
        if payer != begins and payer in came:
            went[payer] += amount
        if payee != begins:
            assert payee not in went, "money comes before any goes on"
            came[payee] += amount
            latest[payee] = time
    for customer, amount in went.items():
        kept = came[customer] - amount
        assert max(0, fee / 5 * came[customer] - 1) <= kept <= fee * came[customer]
    passing = {"cycle": len(transfers) - 1, "scatter-gather": len(transfers) // 2, "stack": None}.get(kind, 0)
    assert passing is None or len(went) == passing
    assert transfers.amount.min() >= 1
    assert len(np.unique(transfers.currency)) == 1
