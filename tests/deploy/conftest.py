from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.deploy.consortium import Consortium


@pytest.fixture(scope="module")
def consortium(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    """Whose dealer is ``DEALER`` of the test's module; without one the server deals."""
    from tests.deploy.consortium import started  # noqa: PLC0415  (seconds to import)

    with started(tmp_path_factory.mktemp("consortium"), getattr(request.module, "DEALER", None)) as found:
        yield found
