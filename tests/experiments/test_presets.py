"""The measurement of presets: it goes on where it was cut off, and docs/presets.md has what was measured."""

from pathlib import Path

import pytest

from research import presets
from research.presets import FIGURES, FIRST_SEED, PAGE, WAYS, Figures, Set
from tests import nightly
from veilgraph.paradigms.vertical.settings import vertical

TINY = Set(
    "tiny",
    {"dataset": "block-model", "block_model": {"nodes": 64, "classes": 2, "features": 4}, "split": [0.5, 0.25, 0.25]},
    "accuracy",
    chosen_on=False,
)


@nightly
def test_it_goes_on_where_it_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "presets.json"
    presets.measure(TINY, [FIRST_SEED], 2, Figures(path))
    first = Figures(path)
    assert {key.rpartition("/")[0] for key in first.found} == {first.key("tiny", way) for way in WAYS}
    assert [trial.number for trial in first.trials("tiny")] == [0, 1]
    assert dict(first.trials("tiny")[0].settings) == {}
    monkeypatch.setattr(presets, "fit", None)  # nothing is trained anew
    presets.measure(TINY, [FIRST_SEED], 2, Figures(path))
    assert Figures(path).found == first.found


def test_the_jobs_say_nothing_but_their_data() -> None:
    auto, paper = (vertical(presets.job_of(TINY, 3, preset)) for preset in ("auto", "paper"))
    assert (auto.model.local.activation, paper.model.local.activation) == ("relu", "tanh")
    assert auto.data.model_copy(update={"feature_scaling": "none"}) == paper.data


def test_the_page_has_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert presets.written(page, Figures(FIGURES)) == page, "python -m research.presets --write"
