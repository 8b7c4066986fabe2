"""The notebooks: stored without outputs, and their cells run one after another."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import veilgraph as vg
from tests import nightly

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BY_NAME = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def executed(name: str) -> dict[str, Any]:
    """What the names of a notebook are after its last cell."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    namespace: dict[str, Any] = {"__name__": name}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for cell in cells(path):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}.ipynb, {cell['id']}", "exec"), namespace)
    finally:
        torch.set_num_threads(threads)
    return namespace


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own-tables", "pyg-researchers", "reading-an-audit"]


@BY_NAME
def test_nothing_is_stored_but_cells(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    assert content["cells"][0]["source"][0].startswith("# ")
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@BY_NAME
def test_links_lead_to_pages(path: Path) -> None:
    text = "".join(line for cell in cells(path) if cell["cell_type"] == "markdown" for line in cell["source"])
    targets = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert targets
    assert all((path.parent / target).is_file() for target in targets)


@nightly
def test_own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    monkeypatch.chdir(tmp_path)
    found = executed("own-tables")
    assert found["run"].predictions.probabilities.shape == (170, 2)
    assert found["run"].metrics["test_auc"] > found["run"].comparison["test_auc"]["bank alone"]


@nightly
def test_pyg_researchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = executed("pyg-researchers")
    assert [party.labels is None for party in found["parties"]] == [False, True]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"custom", "built-in"}


@nightly
def test_reading_an_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its sentences say of the findings is so."""
    monkeypatch.chdir(tmp_path)
    found = executed("reading-an-audit")
    findings = found["findings"]
    assert findings[findings["attack"] == "uniformity"]["passed"].all()
    told = findings[findings["found"]]
    assert {"server", "B"} <= set(told[told["attack"] == "label-gradient"]["adversary"])
    assert "server" in set(told[told["attack"] == "link-similarity"]["adversary"])
    assert all(each.passed == (each.value.high <= 0.9) for each in found["limited"].findings)
    assert (vg.load_run("runs/audited").path / "report.html").is_file()
