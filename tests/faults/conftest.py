from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.host import Host


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    started = Host()
    yield started
    started.close()
