import io
from time import monotonic, sleep

import pytest
from rich.console import Console

from veilgraph.report import training as progress
from veilgraph.report.training import TrainingBars, heartbeat, left_words


def test_the_last_state_of_each_training_is_printed() -> None:
    text = io.StringIO()
    with TrainingBars(Console(file=text, width=120)) as bars:
        with bars.stage("one", 20) as show:
            show([])
            show([{"epoch": 9, "loss": 1.5, "val_accuracy": 0.25}])
            show([{"epoch": 10, "loss": 1.25}])
        with bars.stage("two", 5) as show:
            show([{"epoch": 5, "loss": 1.0}])
    one, two = text.getvalue().strip().splitlines()
    assert "one" in one
    assert "epoch 10/20  loss 1.250  val 25.0 %" in one
    assert "two" in two


def test_where_there_is_no_terminal_a_line_now_and_then_says_what_is_done_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    text = io.StringIO()

    def await_line(part: str) -> None:
        until = monotonic() + 20
        while part not in text.getvalue():
            assert monotonic() < until, text.getvalue()
            sleep(0.005)

    with TrainingBars(Console(file=text, width=40)) as bars:
        with bars.stage("boosting (2 of 9)", 0):
            await_line("boosting (2 of 9): working, 0 s so far\n")
        with bars.stage("pooled", 20) as show:
            show([{"epoch": 10, "loss": 1.25}])
            await_line("pooled: epoch 10/20  loss 1.250, at most 0 s left, ")
        bars.at(1, 4)
        with bars.stage("sealed (2 of 4)", 20) as show:
            show([{"epoch": 10, "loss": 1.25}])
            await_line("sealed (2 of 4): epoch 10/20  loss 1.250, at most 0 s left, about 0 s left in all, ")
        ended = len(text.getvalue())
        sleep(0.1)
        assert len(text.getvalue()) == ended  # nothing is being done
    shown = io.StringIO()
    with heartbeat(Console(file=shown, force_terminal=True), lambda: "working", 0.01):
        sleep(0.1)
    assert shown.getvalue() == ""


def test_what_is_left_in_all_follows_from_what_is_done() -> None:
    assert left_words(60.0, 1.5, 6.0) == ", about 3 min left in all"
    assert left_words(60.0, 0.0, 6.0) == ""
    assert left_words(60.0, 0.0, 0.0) == ""
