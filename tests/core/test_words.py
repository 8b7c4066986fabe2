"""Small pieces of English."""

import pytest

from veilgraph.core.text import human_bytes


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (999, "999 B"),
        (1_500_000, "1.5 MB"),
        (999_400_000, "999 MB"),
        (999_960_000, "1.0 GB"),
        (1_953_200_000, "2.0 GB"),
    ],
)
def test_sizes_from_1000_of_a_unit_on_are_of_the_next(count: int, said: str) -> None:
    assert human_bytes(count) == said
