import io

import pytest
from rich.console import Console

from veilgraph.report.progress import TrainingBars


def test_the_last_state_of_each_training_is_printed() -> None:
    text = io.StringIO()
    with TrainingBars(Console(file=text, width=120)) as bars:
        with bars.stage("one", 20) as progress:
            progress([])
            progress([{"epoch": 9, "loss": 1.5, "val_accuracy": 0.25}])
            progress([{"epoch": 10, "loss": 1.25}])
        with bars.stage("two", 5) as progress:
            progress([{"epoch": 5, "loss": 1.0}])
    one, two = text.getvalue().strip().splitlines()
    assert "one" in one
    assert "epoch 10/20  loss 1.250  val 25.0 %" in one
    assert "two" in two


def test_a_training_that_never_began_leaves_nothing() -> None:
    text = io.StringIO()
    with pytest.raises(RuntimeError), TrainingBars(Console(file=text)) as bars, bars.stage("one", 20):
        raise RuntimeError
    assert text.getvalue() == ""
