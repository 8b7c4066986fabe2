"""The door through which noised embeddings leave: every ledger is paid before their noise is drawn.

Where the data have a ledger of all that was ever released of them, it is paid first, by every node in them, for any row
may depend on any node and edge; without ids, by everybody. A release has a cost about each of several units, each whole
by itself; the ledger is about one of them, and is charged the cost about that one. Where it is about none of them, the
release is refused.

What was released is kept there, by the job's settings and the nodes' ids: the same job sends the same bytes again for
nothing, whatever has changed in the data. Noise that is drawn anew for the same data averages out, and noise that is
drawn anew where something changed tells that it did. Another `name` or `seed` is another release, which all pay for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from torch import Tensor

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import private_folder
from veilgraph.core.secrets import SecretSource, derive_key, system_secrets
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.privacy.event import Event
from veilgraph.privacy.ledger import Ledger, LedgerSummary
from veilgraph.privacy.lifetime_ledger import Account
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.privacy.release_cache import FOLDER, fingerprint, locked_releases

CHANNEL: Final = "embeddings to the public"
_KEPT: Final = "embeddings"
_NONCE_BYTES: Final = 32

log = logging.getLogger("veilgraph")


@dataclass(frozen=True, eq=False)
class Released:
    """What may be published.

    Attributes:
        rows: Tensor[N, d], as noised.
        paid: what the release costs, by the ledger of the run.
        again: whether it was released before, so that the ledger for life was not charged.
    """

    rows: Tensor
    paid: tuple[LedgerSummary, ...]
    again: bool


@dataclass(frozen=True)
class Door:
    """The only way from rows to what is published of them.

    Attributes:
        ledger: opens the ledger of the run, with a δ and a budget.
        account: what the party pays from for life, whatever its δ; None where the data have the run's ledger alone.
        ids: of all rows, where there is such an account.
        source: of the noise; ``system_secrets`` outside tests.
    """

    ledger: Callable[[float, float], Ledger]
    account: Account | None = None
    ids: Sequence[str] = ()
    source: SecretSource = system_secrets

    def release(
        self, rows: Tensor, mechanism: Mechanism, costs: Sequence[Event], delta: float, budget: float
    ) -> Released:
        """Pays, and adds noise; or gives what the same job released of these nodes before.

        Args:
            rows: Tensor[N, d] float64, without noise.
            mechanism: makes the noise.
            costs: what the release does, about each unit that it says anything of; at least one.
            delta: δ of each.
            budget: largest ε of each at δ.

        Raises:
            ConfigError: δ is 1/N or more, or above the party's limit.
            BudgetSpent: a ledger does not allow it; no noise was drawn.
            RunError: a ledger, or what was released before, is damaged or cannot be written.
        """
        self._check_delta(delta, len(rows))
        with self.ledger(delta, budget) as ledger:

            def noised() -> Tensor:
                for cost in costs:
                    ledger.spend(cost, CHANNEL, 0)
                return mechanism.release(rows, self.source)

            if self.account is None:
                return Released(noised(), tuple(ledger.summary()), again=False)
            account = replace(self.account, delta=delta)
            whose = account.lifetime.each_key(self.ids).tobytes().hex()
            what = f"{CHANNEL} {mechanism!r} {costs!r} {delta!r} {whose} {account.run}"
            with locked_releases(account):
                released, again = _once(account, what, rows, costs, noised)
            if again:
                for cost in costs:
                    ledger.spend(cost, CHANNEL, 0)
            return Released(released, tuple(ledger.summary()), again)

    def _check_delta(self, delta: float, nodes: int) -> None:
        if delta * nodes >= 1:
            raise ConfigError(
                f"method.delta={delta:g} with {nodes} nodes: where δ is 1/N or more, a node can be published as it is "
                f"within any ε; set it well below {1 / nodes:.3g}, or leave it out",
                key="method.delta",
                value=delta,
            )
        limit = None if self.account is None else self.account.lifetime.budget
        if limit is None or math.isinf(limit.epsilon):
            return
        if limit.delta * nodes >= 1:
            raise ConfigError(
                f"limits.max_delta={limit.delta:g} with {nodes} nodes: it is 1/N or more, and protects none of them; "
                f"set it well below {1 / nodes:.3g}",
                key="limits.max_delta",
                value=limit.delta,
            )
        if delta > limit.delta:
            raise ConfigError(
                f"limits.max_delta={limit.delta:g} and the embeddings have δ={delta:g}: set method.delta to no more, "
                "or raise the limit",
                key="limits.max_delta",
                value=limit.delta,
            )


def _once(
    account: Account, what: str, rows: Tensor, costs: Sequence[Event], noised: Callable[[], Tensor]
) -> tuple[Tensor, bool]:
    """What was kept and paid for under that name, and whether that was before.

    A nonce names the payment, which is older than the noise: what is kept without a payment is made anew. A kill leaves
    a payment too many, never one too few.
    """
    folder = account.lifetime.lines.folder / FOLDER / sha256(what.encode()).hexdigest()
    keeper = FolderKeeper(private_folder(folder))
    of = derive_key(account.lifetime.secret("rows"), fingerprint(rows)).hex()
    if (kept := keeper.get(_KEPT)) is not None:
        try:
            released, nonce = kept.tensors["rows"], str(kept.facts["paid"])
        except KeyError as error:
            raise RunError(
                f"{keeper.place(_KEPT)}: damaged (it lacks {error}); restore it, or delete it, and the embeddings are "
                "released anew and paid for"
            ) from error
        if account.has_paid(CHANNEL, nonce):
            if kept.facts.get("of") != of:
                log.warning(
                    "the data have changed since these embeddings were released, and what was released is published "
                    "again; another `name` in the job releases all of them anew, for which every node pays"
                )
            return released, True
    nonce = system_secrets(_NONCE_BYTES).hex()
    account.charge(account.lifetime.booked(costs), CHANNEL, content=nonce)
    released = noised()
    keeper.put(_KEPT, {"rows": released}, {"paid": nonce, "of": of})
    return released, False
