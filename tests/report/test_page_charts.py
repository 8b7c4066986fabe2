import math

import pytest

from veilgraph.report.tables import Axis, line_chart


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


def test_lines_leave_out_what_is_not_finite_and_series_without_points() -> None:
    series = [("a", [(1.0, 0.0), (2.0, math.nan), (3.0, 10.0)]), ("b", [(1.0, math.inf)]), ("c", [])]
    chart = line_chart("t", "d", series, x_label="x", x_range=(1, 3), y_range=(0, 10), mark=(2, "m"))
    (line,) = chart.lines
    assert line.points == f"{chart.left:g},{chart.bottom:g} {chart.right:g},{chart.top:g}"
    assert line.end == (chart.right, chart.top)
    assert chart.mark.place == (chart.left + chart.right) / 2
