import pytest

from veilgraph.report.tables import Axis


@pytest.mark.parametrize(
    ("low", "high", "count", "labels"),
    [
        (0, 1, 2, ["0.0", "0.5", "1.0"]),
        (0.43, 1, 6, ["0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]),
        (1, 60, 6, ["10", "20", "30", "40", "50", "60"]),
        (0, 2300, 5, ["0", "500", "1,000", "1,500", "2,000"]),
        (0, 1, 4, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        (0, 0.03, 3, ["0.00", "0.01", "0.02", "0.03"]),
        (-1, 1, 4, ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
    ],
)
def test_ticks_are_round_numbers_at_their_places(low: float, high: float, count: int, labels: list[str]) -> None:
    axis = Axis(low, high, 0.0, 1000.0)
    ticks = axis.ticks(count)
    assert [tick.label for tick in ticks] == labels
    assert [tick.place for tick in ticks] == [axis.place(float(label.replace(",", ""))) for label in labels]
