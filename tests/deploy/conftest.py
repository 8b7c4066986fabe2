from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.deploy.consortium import Consortium


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    from tests.deploy.consortium import started  # noqa: PLC0415  (seconds to import)

    with started(tmp_path_factory.mktemp("consortium")) as found:
        yield found
