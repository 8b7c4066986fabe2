"""A program run by all parties in threads, and by the twin."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from tests.mpc.sealed.ideal import Ideal
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import NOBODY, SERVER, Link, PartyId
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.linked import DealerMachine, HolderMachine
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.mpc.sealed.wire import Wire

Program = Callable[[Machine], object]
NAMES = ("A", "B", "C", "D", "E", "F")
TWIN = ""
Value = TypeVar("Value")


def dealers(holders: int) -> list[PartyId]:
    """Who may deal: a server, for two holders nobody and, for more, the first, the second, or the last of them."""
    names = NAMES[:holders]
    return [SERVER, *(dict.fromkeys([*names[:2], names[-1]]) if holders > 2 else [NOBODY])]


def run(
    program: Program,
    holders: int = 2,
    links: dict[PartyId, RecordedLink] | None = None,
    *,
    secrets: SecretSource = os.urandom,
    wrapped: Callable[[Link], Link] = lambda link: link,
    keeps: bool = False,
    noise: SecretSource = os.urandom,
    dealer: PartyId = SERVER,
    pair_secrets: SecretSource = os.urandom,
    foresee: Callable[[], Sequence[int]] = tuple,
    ideal: Ideal | None = None,
) -> dict[PartyId, object]:
    """What the program gives each party, the dealer and the twin ("") included.

    Args:
        program: that all run.
        holders: how many.
        links: gets every party's.
        secrets: of the dealer; all that is random comes of them, but for ``pair_secrets``.
        wrapped: what the recorded links are put on.
        keeps: whether they keep transcripts.
        noise: the twin's source of it.
        dealer: who deals: a server, or one of the holders.
        pair_secrets: of the first holder that computes, where another holder deals; of both to whom nobody deals.
        foresee: the columns that two holders without a dealer multiply by each factor.
        ideal: what such two compute together.
    """
    names: Sequence[PartyId] = NAMES[:holders]
    parties = names if dealer in (*names, NOBODY) else [*names, dealer]
    hub, together = MemoryHub(parties, 60), ideal or Ideal()

    def one(party: PartyId) -> object:
        link = RecordedLink(wrapped(hub.link(party)), keep_transcript=keeps)
        if links is not None:
            links[party] = link
        try:
            if party == dealer:
                return program(DealerMachine(link, names, secrets))
            if dealer == NOBODY:
                end = together.end(leads=party == names[0])
                return program(PairMachine(link, names, end, pair_secrets, foresee))
            return program(HolderMachine(link, names, dealer, pair_secrets))
        except BaseException as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(len(parties)) as pool:
        futures = {party: pool.submit(one, party) for party in parties}
        errors = [future.exception() for future in futures.values()]
        for error in errors:
            if error is not None and type(error).__name__ != "PeerFailed":
                raise error
        found = {party: future.result() for party, future in futures.items()}
    return {**found, TWIN: program(PlainMachine(names, noise))}


def of(machine: Machine, owner: PartyId, value: Value) -> Value | None:
    """What one holder, and the twin, knows."""
    return value if machine.party in (owner, TWIN) else None


def wire(results: dict[PartyId, object], party: PartyId = "A") -> Wire:
    """The wire that a program gave a party."""
    found = results[party]
    assert isinstance(found, Wire)
    return found


def secret(results: dict[PartyId, object]) -> Tensor:
    """The whole number that a wire of the program is, as a number with a sign: int64."""
    dealer = [name for name in results if name != TWIN and wire(results, name).public is None]
    holders = [name for name in results if name not in (*dealer, TWIN)]
    public = wire(results, holders[0]).public
    assert public is not None
    assert all(torch.equal(wire(results, holder).known, public) for holder in holders), "Λ is not the same everywhere"
    masks = [wire(results, holder).mask for holder in holders]
    assert all(torch.equal(wire(results, name).mask, sum(masks[1:], start=masks[0])) for name in dealer), "other masks"
    return (public - sum(masks[1:], start=masks[0])).to(torch.int64)
