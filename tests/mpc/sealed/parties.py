"""A program run by all parties in threads, and by the twin."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.memory import MemoryHub
from veilgraph.link.recorded import RecordedLink
from veilgraph.mpc.sealed.dealer import DealerMachine
from veilgraph.mpc.sealed.holder import HolderMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.twin import PlainMachine

Program = Callable[[Machine], object]
NAMES = ("A", "B", "C", "D", "E", "F")


def run(program: Program, holders: int = 2, links: dict[PartyId, RecordedLink] | None = None) -> dict[PartyId, object]:
    """What the program gives each party, the dealer and the twin ("") included."""
    names: Sequence[PartyId] = NAMES[:holders]
    hub = MemoryHub([*names, SERVER], 60)

    def one(party: PartyId) -> object:
        link = RecordedLink(hub.link(party))
        if links is not None:
            links[party] = link
        try:
            if party == SERVER:
                return program(DealerMachine(link, names, os.urandom))
            return program(HolderMachine(link, names))
        except BaseException as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(holders + 1) as pool:
        futures = {party: pool.submit(one, party) for party in (*names, SERVER)}
        errors = [future.exception() for future in futures.values()]
        for error in errors:
            if error is not None and type(error).__name__ != "PeerFailed":
                raise error
        found = {party: future.result() for party, future in futures.items()}
    return {**found, "": program(PlainMachine(names))}
