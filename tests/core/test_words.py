"""Small pieces of English."""

from __future__ import annotations

import pytest

from veilgraph.core.text import megabytes


@pytest.mark.parametrize(
    ("count", "said"),
    [(1_500_000, "1.5 MB"), (999_900_000, "999.9 MB"), (999_960_000, "1.0 GB"), (1_953_200_000, "2.0 GB")],
)
def test_sizes_from_1000_megabytes_on_are_gigabytes(count: int, said: str) -> None:
    assert megabytes(count) == said
