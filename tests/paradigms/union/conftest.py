"""What runs in this room leave out."""

from collections.abc import Iterator

import pytest

from veilgraph.paradigms.union.roles import UnionHolder


@pytest.fixture(autouse=True, scope="package")
def _no_bank_trains_alone() -> Iterator[None]:
    """What banks reach alone takes a third of a small run's time; `packages/datasets/tests` hold that it is said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnionHolder, "alone", lambda _: None)
        yield
