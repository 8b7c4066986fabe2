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
from veilgraph.privacy.single import SentRelease, is_sent_again, release_rows, room_for


class LabelPublisher(Publisher):
    """Embeddings and gradients go through as they are: of labels they tell what the perturbed ones do.

    Args:
        response: for the holder's labels.
        labels: Tensor[n] int64, of the nodes of whose labels others are told anything (``learned_from``).
        ledger: of the holder, open; None in a plaintext simulation.
        source: of the randomness.
        kept: what the holder has released in the run; None where nothing is kept by run.
        sent: of a holder with a ledger for life, label by label, in all its jobs; None without one.
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

    def perturbed(self) -> Tensor:
        """The labels under randomised response: Tensor[n] int64, the same in every session and job.

        Raises:
            BudgetSpent: a budget does not allow them; nothing may be learned from them.
            DataError: a label is none of the classes.
            RunError: they could not be kept or paid for.
        """
        rows = self._labels if self._sent is None else self._labels.to(torch.float64).unsqueeze(1)
        about = LABELS, rows, self._event, repr(self.response)
        released = release_rows(self._sent, self._kept, self._ledger, *about, self._anew)
        return released.reshape(-1).to(torch.int64)

    @override
    def refusal(self) -> str:
        if self._ledger is None or not self._lacks_room(self._ledger):
            return ""
        return (
            f"label_privacy.epsilon={self.response.epsilon:g} of labels that were never perturbed so does not fit what "
            "limits.max_epsilon leaves; lower it, or raise the limit"
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

    def _anew(self, rows: Tensor) -> Tensor:
        labels = self.response.release(rows.reshape(-1).to(torch.int64), self._source)
        return labels.to(rows.dtype).reshape(rows.shape)

    def _lacks_room(self, ledger: Ledger) -> bool:
        about = LABELS, self._event, repr(self.response)
        return not is_sent_again(self._sent, self._kept, ledger, *about) and room_for(self._sent, ledger, *about) == 0


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
