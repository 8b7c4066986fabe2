import pytest

from veilgraph.report.tables import human_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9949, "9.9 kB"),
        (9950, "10 kB"),
        (999_500_000, "1.0 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_bytes_read_well(count: int, text: str) -> None:
    assert human_bytes(count) == text
