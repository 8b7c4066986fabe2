"""Jobs in threads in which nothing is by chance: what an audit finds in one, it finds in it every time."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from veilgraph_averaging.private.sampled import SampledPublisher
from veilgraph_node_dp import publisher as perturbing

from tests.mpc.sessions import fixed_secrets
from veilgraph.core import randomness
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.core.types import Link, PartyId
from veilgraph.paradigms.horizontal import paradigm as collecting
from veilgraph.privacy import ledger_files
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.role import RoleContext
from veilgraph.runtime.session import party as computing
from veilgraph.runtime.session import publishers as ledgers


class Chance:
    """What parties draw masks, shares, coins and noise from, in place of the system's randomness.

    Each party has sources of its own, whose order no other party's pace changes. A session, or a publisher, that is
    made again draws other secrets, so that nothing is used twice.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self, *seed: object) -> None:
        """From here on the same is drawn as after any other restart with this seed."""
        self._seed = seed
        self._made = Counter[tuple[str, PartyId]]()
        self._threads: dict[str, SecretSource] = {}

    @contextmanager
    def is_fixed(self) -> Iterator[None]:
        """While the block lasts."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(computing, "RoleContext", self._context)
            patch.setattr(SampledPublisher, "__init__", drawing_from(partial(self._source, "draws")))
            for module in (ledgers, perturbing, collecting, randomness):
                patch.setattr(module, "system_secrets", self._of_thread)
            patch.setattr(ledger_files, "system_secrets", self._of_ledger)
            yield

    def _source(self, what: str, party: PartyId) -> SecretSource:
        self._made[what, party] += 1
        return fixed_secrets(*self._seed, what, party, self._made[what, party])

    def _context(self, settings: JobSettings, link: Link, streams: Any, _: object, **more: Any) -> RoleContext:
        return RoleContext(settings, link, streams, self._source("session", link.party), **more)

    def _of_thread(self, length: int) -> bytes:
        """Parties are threads, with names of their own."""
        name = threading.current_thread().name
        if name not in self._threads:
            self._threads[name] = fixed_secrets(*self._seed, name)
        return self._threads[name](length)

    def _of_ledger(self, length: int) -> bytes:
        """Its salt, which orders nodes; its name and nonces stay its own, for of two with one name one is a copy."""
        return self._of_thread(length) if length == SEED_BYTES else system_secrets(length)


@contextmanager
def fixed_chance(*seed: object) -> Iterator[None]:
    """Nothing in the block is by chance."""
    chance = Chance()
    chance.restart(*seed)
    with chance.is_fixed():
        yield


def drawing_from(source: Callable[[PartyId], SecretSource]) -> Callable[..., None]:
    """How publishers of private training begin: a party's with a source of its own, a twin's with what it is given."""
    begin: Any = SampledPublisher.__init__

    def begun(of: SampledPublisher, *told: Any) -> None:
        *head, ledger, given, account = told
        begin(of, *head, ledger, given if ledger is None else source(ledger.path.parent.name), account)

    return begun
