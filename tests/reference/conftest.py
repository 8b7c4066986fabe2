"""Parties in threads are polled often: they are done in milliseconds."""

import pytest

from veilgraph.runtime.launch import processes as launch


@pytest.fixture(autouse=True)
def _no_idle_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "POLL_S", 0.002)
