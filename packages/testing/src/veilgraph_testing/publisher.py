"""What every publisher promises: what passes it is paid for first, and nothing passes that is not."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

from veilgraph.core.errors import BudgetSpent
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.publisher import Publisher

DELTA: Final = 1e-4


class PublisherConformance(ABC):
    """Inherit it and make the publisher."""

    @abstractmethod
    def make(self, ledger: Ledger) -> Publisher:
        """One that pays into a ledger whose budget allows some releases, if what it does has a price."""

    @abstractmethod
    def pass_through(self, publisher: Publisher, step: int) -> object:
        """One release of anything that has a price at this publisher."""

    def rows(self) -> Tensor:
        """Of some nodes."""
        generator = torch.Generator().manual_seed(2)
        return torch.randn(30, 6, generator=generator)

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Iterator[Ledger]:
        """With a budget."""
        with Ledger.open(tmp_path / "ledger.jsonl", DELTA, 20.0, job="0" * 64) as opened:
            yield opened

    @pytest.fixture
    def publisher(self, ledger: Ledger) -> Publisher:
        """The one under test."""
        return self.make(ledger)

    def test_what_has_a_price_is_on_the_disk_before_it_is_out(self, publisher: Publisher, ledger: Ledger) -> None:
        before = _lines(ledger)
        self.pass_through(publisher, 0)
        spent, account = publisher.spent(), publisher.account()
        if spent is None:
            assert account is None
            assert _lines(ledger) == before, "it pays for what it says is free"
            return
        assert _lines(ledger) == before + 1
        assert sum(spent.releases.values()) >= 1
        assert 0 < spent.epsilon_release <= spent.epsilon_total
        assert spent.epsilon_total == pytest.approx(max(ledger.totals().values()))
        assert account is not None
        assert json.loads(json.dumps(account))["epsilon_total"] == spent.epsilon_total
        assert {"delta", "unit", "neighbours", "budget"} <= set(account)

    def test_nothing_passes_that_the_budget_does_not_allow(self, publisher: Publisher, ledger: Ledger) -> None:
        self.pass_through(publisher, 0)
        spent = publisher.spent()
        if spent is None:
            return
        assert math.isfinite(publisher.budget)
        with pytest.raises(BudgetSpent):
            self._use_up(publisher)
        lines, after = _lines(ledger), publisher.spent()
        assert after is not None
        assert spent.epsilon_total <= after.epsilon_total <= publisher.budget
        with pytest.raises(BudgetSpent):
            self.pass_through(publisher, 0)
        assert _lines(ledger) == lines

    def _use_up(self, publisher: Publisher) -> None:
        for step in range(1, 10_000):
            self.pass_through(publisher, step)

    def test_steps_to_come_are_paid_for_once(self, publisher: Publisher, ledger: Ledger) -> None:
        steps = publisher.affordable_steps()
        assert steps is None or steps >= 0
        if steps is None or steps < 2:
            publisher.expect(2, 0)
            return
        publisher.expect(2, 0)
        assert publisher.affordable_steps() == steps - 2
        lines = _lines(ledger)
        for step in range(2):
            self.pass_through(publisher, step)
        assert _lines(ledger) == lines
        assert publisher.refusal() == "", "the inference has its room"


def _lines(ledger: Ledger) -> int:
    return len(ledger.path.read_text(encoding="utf-8").splitlines())
