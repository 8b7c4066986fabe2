"""The order of rows: that of the first holder's seed and of the common ids, told to holders alone."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.mpc.sessions import simulate
from veilgraph.core.errors import ProtocolError
from veilgraph.core.randomness import LearningStreams, private_seed
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.intersect import agree_on_order, order_of

HOLDERS = ("C", "A", "B")
IDS = [f"customer {number:03}" for number in range(200)]


def test_the_first_holders_seed_gives_it_and_nobody_elses() -> None:
    def run(seeds: Mapping[PartyId, int]) -> list[str]:
        def holder(link: Link) -> list[str]:
            order = agree_on_order(link, HOLDERS, IDS, LearningStreams(seeds[link.party], link.party))
            return [IDS[row] for row in order.tolist()]

        found: dict[PartyId, list[str]] = simulate(dict.fromkeys(HOLDERS, holder))
        return found["B"]

    seeds = {name: private_seed() for name in HOLDERS}
    first = run(seeds)
    assert first == run({**seeds, "A": 1, "B": 2})
    assert first != run({**seeds, "C": private_seed()})


def test_who_knows_the_seed_but_not_every_id_cannot_place_one() -> None:
    """A guess of all ids but one gives places that have nothing to do with the true ones."""
    streams = LearningStreams(5, "A")
    place = {name: row for row, name in enumerate(IDS[number] for number in order_of(IDS, streams))}
    known = IDS[:-1]
    guess = {name: row for row, name in enumerate(known[number] for number in order_of(known, streams))}
    assert abs(correlation([place[name] for name in known], [guess[name] for name in known])) < 0.25
    alone = {name: row for row, name in enumerate(IDS[number] for number in streams.order("rows", IDS))}
    fewer = {name: row for row, name in enumerate(known[number] for number in streams.order("rows", known))}
    assert correlation([alone[name] for name in known], [fewer[name] for name in known]) > 0.99, "by the seed alone"


def correlation(one: Sequence[int], other: Sequence[int]) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def test_it_tells_no_ranks() -> None:
    rows = [IDS.index(IDS[number]) for number in order_of(IDS, LearningStreams(private_seed(), "A"))]
    assert abs(correlation(range(len(rows)), rows)) < 0.25
    assert rows != sorted(rows)


def test_the_server_gets_nothing_and_the_others_four_bytes_a_row() -> None:
    def holder(link: Link) -> list[Any]:
        recorded = RecordedLink(link, keep_transcript=True)
        agree_on_order(recorded, HOLDERS, IDS, LearningStreams(5, link.party))
        return [(message.receiver, message.tag, message.tensor) for message in recorded.transcript()]

    sent = simulate({**dict.fromkeys(HOLDERS, holder), SERVER: lambda link: []})
    assert [(to, tag) for to, tag, _ in sent["C"]] == [(name, Tag(Kind.ROW_ORDER)) for name in HOLDERS[1:]]
    assert all(tensor.numel() * tensor.element_size() == 4 * len(IDS) for *_, tensor in sent["C"])
    assert sent[SERVER] == []


class Cheat:
    """A link whose owner sends another order."""

    def __init__(self, link: Link, change: Callable[[Tensor], Tensor]) -> None:
        self._link, self._change = link, change
        self.party = link.party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self._link.send(to, tag, self._change(tensor))


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("order", lambda order: torch.cat([order[:1], order[:-1]])),
        ("order", lambda order: order - 1),
        ("order", lambda order: order + 1),
        ("shape", lambda order: order[1:]),
        ("shape", lambda order: order.long()),
        ("shape", lambda order: order[None]),
    ],
    ids=["one twice", "below 0", "beyond", "too few", "type", "shape"],
)
def test_what_is_no_order_is_refused(code: str, change: Callable[[Tensor], Tensor]) -> None:
    def holder(link: Link) -> Tensor:
        end: Any = Cheat(link, change) if link.party == "C" else link
        return agree_on_order(end, HOLDERS, IDS, LearningStreams(5, link.party))

    with refused(ProtocolError, code=code, key=str(Tag(Kind.ROW_ORDER)), party="C"):
        simulate(dict.fromkeys(HOLDERS, holder))


def test_every_order_of_few_rows_is_possible() -> None:
    found = {tuple(order_of(["1", "2", "3"], LearningStreams(seed, "A"))) for seed in range(60)}
    assert found == set(permutations(range(3)))
