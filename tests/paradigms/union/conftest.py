"""What runs in this room leave out."""

from collections.abc import Iterator

import pytest

from veilgraph.paradigms.union.roles import UnionHolder


@pytest.fixture(autouse=True, scope="package")
def _no_bank_trains_alone() -> Iterator[None]:
    """A third of a small run's time goes into what its banks reach alone; `tests/datasets` holds that they say it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnionHolder, "alone", lambda _: None)
        yield
