"""Classes that a label holder's tables name are called so wherever the page and a comparison speak of one."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import veilgraph as vg
from tests import nightly
from tests.cli.commands import veilgraph
from tests.report.markup import Page

ROWS = 200
GOOD, BAD = "sound <i>", "[/bad]"
"""Names that would be markup, of the page and of the terminal; class 1 is the one that pays not."""
NUMBERED = re.compile(r"class(es)? [01]\b")


def customers() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    paid = rng.integers(0, 2, ROWS)
    return pd.DataFrame(
        {
            "id": [f"C{row}" for row in range(ROWS)],
            "income": paid + rng.normal(size=ROWS),
            "state": np.where(paid == 1, GOOD, BAD),
            "region": rng.choice(["north", "south"], ROWS),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank's tables and party file, and a shop's table."""
    folder = tmp_path_factory.mktemp("names")
    customers().to_csv(folder / "nodes.csv", index=False)
    said = {
        "party": "bank",
        "nodes": {
            "file": "nodes.csv",
            "id": "id",
            "features": [{"columns": "income"}],
            "label": {"column": "state", "classes": [GOOD, BAD]},
            "split": {"train": 0.4, "val": 0.3, "test": 0.3},
        },
        "limits": {"leakage": []},
    }
    (folder / "party.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    return folder


def page(job: dict[str, Any], out: Path) -> Page:
    bank = vg.Tables(customers(), features=["income"], label="state")
    shop = vg.Tables(pd.DataFrame({"id": [f"C{row}" for row in range(10, ROWS)], "spent": np.arange(10, ROWS) / ROWS}))
    vg.fit(job, {"bank": bank, "shop": shop}, out)
    told = veilgraph("report", out, "--by", "region")
    assert told.exit_code == 0, told.output
    return Page((out / "report.html").read_text(encoding="utf-8"))


def test_every_part_of_the_page_calls_them_so(tmp_path: Path) -> None:
    told = page({"preset": "paper", "model": {"dim": 4}, "train": {"epochs": 8, "patience": None}}, tmp_path / "run")
    text = told.text
    assert NUMBERED.findall(text) == []
    for words in (
        f"over all of {GOOD}, the highest",
        f"of {GOOD}, found in that share",
        f"Precision over recall, of {GOOD}",
        f"highest probability of {GOOD}",
        f"Alarms of {GOOD} at",
        f"On average the model gives {GOOD}",
    ):
        assert words in text
    cells = [*told.within["th"], *told.within["td"]]
    assert cells.count(GOOD) == cells.count(BAD) == 3  # at the threshold, and both sides of the confusion matrix
    assert f"of {GOOD}" in cells  # by region


@nightly
def test_where_classes_alone_were_opened_the_page_says_so(tmp_path: Path) -> None:
    job = {"paradigm": "sealed", "preset": "paper", "train": {"epochs": 1, "patience": None}}
    text = (told := page(job, tmp_path / "run")).text
    assert "Classes alone were opened, so nodes cannot be ranked: there is no AUC, no precision over recall" in text
    assert "If an alarm is raised" not in text
    cells = [*told.within["th"], *told.within["td"]]
    assert cells.count(GOOD) == cells.count(BAD) == 2  # a confusion matrix there is


def test_a_comparison_calls_them_so(folder: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    settings = {"preset": "paper", "data": {"holders": ["bank", "shop"]}, "train": {"epochs": 2}, "model": {"dim": 4}}
    job.write_text(yaml.safe_dump(settings), encoding="utf-8")
    out = tmp_path / "out"
    told = veilgraph("compare", job, "--party", folder / "party.yaml", "--out", out)
    assert told.exit_code == 0, told.output
    assert f"Recall: of {BAD}, among" in told.stdout
    text = Page((out / "comparison.html").read_text(encoding="utf-8")).text
    assert f"Recall is of {BAD}, among" in text
    assert NUMBERED.findall(text) == []
