"""Holders of own nodes hear whether they are better off alone."""

from veilgraph.paradigms.horizontal.tally import VALUE_MEASURES
from veilgraph.protocol.figures import CLASS_MEASURES
from veilgraph.report.training import alone_words


def found(together: float | None, alone: float | None, figure: str = "accuracy") -> dict[str, dict[str, float | None]]:
    ways = {"together": together, "alone": alone}
    return {way: {f"val_{figure}": value, f"test_{figure}": value} for way, value in ways.items()}


def test_who_is_better_off_alone_is_named_with_figures_and_the_rest_together() -> None:
    told = {"A": found(0.8, 0.83), "B": found(0.9, 0.9), "C": found(0.9, 0.7)}
    words = alone_words({"alone": told}, CLASS_MEASURES)
    assert len(words) == 2
    assert words[0].startswith("A is better off alone")
    assert "83.0 % alone and 80.0 % with this model" in words[0]
    assert words[1].startswith("B and C are no worse off with this model than with the same network trained alone")


def test_less_error_is_better() -> None:
    words = alone_words({"alone": {"A": found(2.0, 1.0, "rmse"), "B": found(1.0, 2.0, "rmse")}}, VALUE_MEASURES)
    assert [text.split(" is ")[0] for text in words] == ["A", "B"]
    assert "better off alone" in words[0]


def test_what_is_not_known_is_said_to_be_so() -> None:
    (said,) = alone_words({"alone": {"A": found(None, 0.5)}}, CLASS_MEASURES)
    assert said.startswith("Whether A is better off alone is not known: its own validation nodes have no accuracy")
    assert alone_words({}, CLASS_MEASURES) == []
