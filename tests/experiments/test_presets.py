"""The measurement of presets: it goes on where it was cut off, and docs/presets.md has what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from veilgraph_tuning.trials import Trial

from research import presets
from research.presets import ALONE, AUTO, BOOSTING, FIGURES, FIRST_SEED, PAGE, PAPER, TUNED, WAYS, Figures, Set
from veilgraph.paradigms.vertical.settings import vertical

TINY = Set(
    "tiny",
    {"dataset": "block-model", "block_model": {"nodes": 64, "classes": 2, "features": 4}, "split": [0.5, 0.25, 0.25]},
    "accuracy",
    chosen_on=False,
)


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


def test_what_auto_falls_short_of_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Figures(tmp_path / "presets.json")
    monkeypatch.setattr(presets, "SETS", (TINY,))
    figures.found = {f"tiny/{way}/10": 0.8 for way in WAYS} | {f"tiny/{AUTO}/11": 0.9}
    assert presets.table(figures)[2] == (
        "| tiny (held out) | accuracy | 2/1 | 0 | 0.850 ± 0.071 | 0.800 | 0.800 | 0.800 | 0.800 | nothing |"
    )
    near = {f"tiny/{TUNED}/10": 0.859, f"tiny/{ALONE}/10": 0.854, f"tiny/{BOOSTING}/10": 0.854, f"tiny/{PAPER}/10": 1.0}
    figures.found |= near
    assert presets.table(figures)[2].endswith("| nothing |")
    figures.found |= {f"tiny/{TUNED}/10": 0.861, f"tiny/{ALONE}/10": 0.856, f"tiny/{BOOSTING}/10": 0.9}
    assert presets.table(figures)[2].endswith("| tuned by 0.011, A alone by 0.006, A: boosting by 0.050 |")


def test_the_page_has_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert presets.written(page, Figures(FIGURES)) == page, "python -m research.presets --write"


def test_a_better_trial_is_trained_with_all_seeds_itself(tmp_path: Path) -> None:
    """Its figures are not those of the trial that was best before."""
    figures = Figures(tmp_path / "presets.json")
    figures.tried("tiny", Trial(0, {}, "complete", (0.8,)))
    assert figures.key("tiny", TUNED) == f"tiny/{TUNED} 0"
    figures.found |= {f"tiny/{TUNED} 0/10": 0.7}
    figures.tried("tiny", Trial(1, {}, "pruned"))
    assert figures.of("tiny", TUNED) == {10: 0.7}
    figures.tried("tiny", Trial(2, {}, "complete", (0.9,)))
    assert figures.of("tiny", TUNED) == {}
