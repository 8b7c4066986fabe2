"""The door of a holder that learns from perturbed labels: paid for in the ledger, and only then learned from."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime.sent import SentRows
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.privacy.local.publish import LABELS
from veilgraph.privacy.publisher import Publisher, Spent, account_of
from veilgraph.privacy.single import SentRelease, is_paid, release_once


class LabelPublisher(Publisher):
    """Embeddings and gradients go through as they are: of labels they tell what the perturbed ones do.

    Args:
        response: for the holder's labels.
        labels: Tensor[n] int64, of the nodes of whose labels others are told anything (``learned_from``).
        ledger: of the holder, open; None in a plaintext simulation.
        source: of the randomness.
        kept: what the holder has released of its labels as they are now; None where nothing is kept by run.
        sent: of a party with tables, label by label, in all its jobs; None where it has none.
    """

    def __init__(
        self,
        response: LabelResponse,
        labels: Tensor,
        ledger: Ledger | None,
        source: SecretSource,
        kept: SentRelease | None = None,
        sent: SentRows | None = None,
    ) -> None:
        self.response = response
        self._labels = labels
        self._ledger, self._source, self._kept, self._sent = ledger, source, kept, sent
        self._event = response.event()
        self.label_door = self

    def perturbed(self) -> Tensor:
        """The labels under randomised response: Tensor[n] int64, the same for as long as they have not changed.

        Raises:
            BudgetSpent: a budget does not allow them; nothing may be learned from them.
            DataError: a label is none of the classes.
            RunError: they could not be kept or paid for.
        """
        if self._sent is None:
            return release_once(self._kept, self._ledger, self._event, LABELS, lambda: self._anew(self._labels))
        rows = self._sent.release(LABELS, self._rows, self._event, repr(self.response), self._anew_rows, self._pay)
        return rows.squeeze(1).to(torch.int64)

    @override
    def refusal(self) -> str:
        if self._ledger is None or not self._lacks_room(self._ledger):
            return ""
        return (
            f"label_privacy.epsilon={self.response.epsilon:g} of labels that were never perturbed so, or have changed, "
            "does not fit what limits.max_epsilon leaves; lower it, or raise the limit"
        )

    @property
    @override
    def budget(self) -> float:
        """The largest total ε of a label that the party accepts."""
        return math.inf if self._ledger is None or self._ledger.budget is None else self._ledger.budget

    @override
    def spent(self) -> Spent:
        """What the run has paid for: of one label."""
        if self._ledger is None:
            return Spent(Counter(), math.inf, math.inf)
        counts = Counter({channel.channel: channel.releases for channel in self._ledger.summary()})
        total = max(self._ledger.totals().values(), default=0.0)
        return Spent(counts, self.response.epsilon if counts else 0.0, total)

    @override
    def account(self) -> dict[str, Any]:
        event = self._event
        return account_of(self.spent(), self.budget, delta=0.0, unit=event.unit, neighbours=event.neighbours)

    @property
    def _rows(self) -> Tensor:
        return self._labels.to(torch.float64).unsqueeze(1)

    def _anew(self, labels: Tensor) -> Tensor:
        return self.response.release(labels, self._source)

    def _anew_rows(self, rows: Tensor) -> Tensor:
        return self._anew(rows.squeeze(1).to(torch.int64)).to(rows.dtype).unsqueeze(1)

    def _pay(self, content: str) -> None:
        """From the ledger of the run, unless it has paid for these very draws."""
        if self._ledger is not None and not self._ledger.has_paid(LABELS, content):
            self._ledger.spend(self._event, LABELS, 0, content=content, by_rows=True)

    def _lacks_room(self, ledger: Ledger) -> bool:
        if self._sent is None:
            return not is_paid(self._kept, ledger, LABELS) and ledger.room(self._event) == 0
        return not self._sent.fits(LABELS, self._rows, self._event, repr(self.response))


def learned_from(labels: Tensor | None, *splits: Tensor | None) -> Tensor:
    """The nodes whose labels are perturbed: Tensor[n] int64, ascending.

    Args:
        labels: Tensor[C] int64, of the common nodes.
        splits: masks as long, of nodes of whose labels others are told anything; None where there are no such nodes.

    Raises:
        DataError: there are no labels, or no masks.
    """
    given = [split for split in splits if split is not None]
    if labels is None or not given:
        raise DataError("labels: label_privacy perturbs those of training and validation nodes, and there are none")
    return torch.stack(given).any(dim=0).nonzero().squeeze(1)
