"""Accuracy against leakage: a page from real runs and audits, kept so that nothing is done twice."""

from pathlib import Path

import pytest

from research import audit_views as module
from research.audit_views import audit_views
from research.paper_tables import reproduce
from tests import nightly

SMALL = {"data.dataset": "synthetic", "train.epochs": 2, "train.patience": None, "model.dim": 8}


def test_every_variant_is_a_job() -> None:
    for dataset in module.DATASETS:
        for name in module.VARIANTS:
            assert module._job(dataset, name, 3).seed == 3


@nightly
def test_a_page_is_made_and_its_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VARIANTS", {"tiny": ("", SMALL)})
    monkeypatch.setattr(module, "ATTACKS", ("uniformity", "membership-gradient", "attribute"))
    said: list[tuple[str, int, int]] = []
    text = reproduce(
        "audit-views", seeds=1, datasets=["cora"], out=tmp_path, progress=lambda *words: said.append(words)
    )
    assert said[-1][1:] == (1, 1)
    row = next(line for line in text.splitlines() if line.startswith("| cora | tiny |"))
    heading = text.splitlines()[0].split(" | ")
    cells = dict(zip(heading, row.split(" | "), strict=True))
    assert float(cells["server: training nodes"].split()[0]) > 0.9
    together = [line for line in text.splitlines() if line.startswith("| cora | tiny |")][1]
    assert 0.5 < float(together.split(" | ")[3].split()[0]) <= 1, "the server and a holder: features"
    assert "[" in together
    assert cells["server: edges"] == "–"
    assert (tmp_path / "audit-views.md").read_text() == text
    assert [path.suffix for path in (tmp_path / "audit-views").iterdir()] == [".json"]
    monkeypatch.setattr(module, "train", None)  # what is kept is not done again
    again = audit_views(seeds=1, datasets=["cora"], rows=None, out=tmp_path, command="x", progress=lambda *words: None)
    assert again.splitlines()[:3] == text.splitlines()[:3]
