"""The notebooks: what their cells show is stored and agrees with their text, and the cells run one after another."""

import ast
import base64
import json
import os
import re
import socket
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

import veilgraph as vg
from docs import notebooks
from docs.prose import plain, sentences
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


def code(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in cells(path) if cell["cell_type"] == "code"]


def texts(path: Path) -> list[str]:
    """All that cells show but pictures, each kind of an output by itself."""
    outputs = [output for cell in code(path) for output in cell["outputs"]]
    kinds = [kind for output in outputs for kind in output.get("data", {"text": output.get("text")}).items()]
    return ["".join(lines) for kind, lines in kinds if kind != "image/png"]


def shown(name: str, cell_id: str, kind: str = "text/plain") -> str:
    """What a cell of a notebook shows."""
    (cell,) = (each for each in cells(ROOT / "notebooks" / f"{name}.ipynb") if each["id"] == cell_id)
    return "".join(cell["outputs"][-1]["data"][kind])


def table(name: str, cell_id: str) -> list[dict[str, str]]:
    """The rows of a DataFrame that a cell shows, as column → text; the index is the column without a name."""
    grid = [[cell.text or "" for cell in row] for row in ET.fromstring(shown(name, cell_id, "text/html")).iter("tr")]
    return [dict(zip(grid[0], row, strict=True)) for row in grid[1:] if any(row[1:])]


@BY_NAME
def test_every_cell_has_been_run_in_order(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert content["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    assert content["cells"][0]["source"][0].startswith("# ")
    assert all(cell["metadata"] == {} for cell in content["cells"])
    assert [cell["execution_count"] for cell in code(path)] == list(range(1, len(code(path)) + 1))
    for cell in code(path):
        assert {each["output_type"] for each in cell["outputs"]} <= {"execute_result", "display_data", "stream"}
        assert "stderr" not in {each.get("name") for each in cell["outputs"]}
        if isinstance(ast.parse("".join(cell["source"])).body[-1], ast.Expr):
            assert cell["outputs"], f"make notebooks: {cell['id']} shows nothing"


@BY_NAME
def test_outputs_hold_nothing_of_the_machine_that_made_them(path: Path) -> None:
    own = set(re.findall(r"\w+", "".join("".join(cell["source"]) for cell in cells(path))))
    names = (
        {Path(os.environ.get("HOME", "")).name, os.environ.get("USER", ""), socket.gethostname().partition(".")[0]}
        - own
        - {""}
    )
    for text in texts(path):
        assert notebooks.clean(text) == text
        assert not re.search(r"(?<![\w<…./])(/[A-Za-z]|[A-Za-z]:\\|~/)|\w@\w|site-packages|localhost", text)
        assert not names & set(re.findall(r"[\w-]+", text))


def test_outputs_are_short() -> None:
    for path in NOTEBOOKS:
        assert all(sum(str(each).count("\\n") for each in cell["outputs"]) < 200 for cell in code(path))
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 400_000


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a 3 %\ra 9 %\rdone\n", "done\n"),
        ("\x1b[31mred\x1b[0m\r\n", "red\r\n"),
        ("Run('/home/someone/x-1/runs/a'), 1/2 and A/B", "Run('…'), 1/2 and A/B"),
        ("in:/opt/a, /run/it/runs/a.html, runs/a.html", "in:…, …/runs/a.html, runs/a.html"),
        ("<td>/opt</td><br/> https://e.org/a", "<td>…</td><br/> https://e.org/a"),
        ("2025-03-01 12:30:05.123 and 09:15, 1:2, 2025-03-01", "… and …, 1:2, 2025-03-01"),
        ("<object at 0x7f12ab34cd56>, 0xff", "<object at 0x…>, 0xff"),
        ("<style scoped>\n a {}\n</style>\n<tr>\n  <td>1</td>\n  <td>2</td>\n</tr>", "<tr><td>1</td><td>2</td></tr>"),
    ],
)  # fmt: skip
def test_what_differs_between_machines_is_not_stored(text: str, stored: str) -> None:
    assert notebooks.clean(text, "/run/it") == stored


def test_warnings_and_widgets_are_not_stored() -> None:
    picture = {"image/png": "iVBOR", "text/plain": "<Figure at 0x7f12ab34cd56>", "application/pdf": "…"}
    found = notebooks.stored(
        [
            {"output_type": "stream", "name": "stderr", "text": "UserWarning"},
            {"output_type": "stream", "name": "stdout", "text": "/run/it/runs"},
            {"output_type": "display_data", "data": {"application/vnd.jupyter.widget-view+json": {}}, "metadata": {}},
            {"output_type": "display_data", "data": picture, "metadata": {"image/png": {"width": 9}}},
        ],
        "/run/it",
    )
    assert found == [
        {"output_type": "stream", "name": "stdout", "text": "…/runs"},
        {
            "output_type": "display_data",
            "data": {"text/plain": "<Figure at 0x…>", "image/png": "iVBOR"},
            "metadata": {},
        },
    ]


@BY_NAME
def test_no_sentence_is_longer_than_thirty_five_words(path: Path) -> None:
    text = "\n\n".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown")
    assert [each for each in map(plain, sentences(text)) if len(re.findall(r"\w\S*", each)) > 35] == []


# What the text says of figures is true of those that are stored.


def test_stored_figures_of_own_tables() -> None:
    assert shown("own-tables", "own-tabl-5") == "170"
    auc = {row[""]: float(row["test_auc"]) for row in table("own-tables", "own-tabl-10")}
    assert list(auc) == ["bank alone", "shop alone", "federated", "pooled"]
    assert auc["federated"] > max(auc["bank alone"], auc["shop alone"])
    assert f"test AUC {auc['federated']:.3f}" in shown("own-tables", "own-tabl-7")
    chances = {row[""]: float(row["yes"]) for row in table("own-tables", "own-tabl-11")}
    assert chances["C0004"] > 0.5 > chances["C0005"]
    assert "".join(texts(ROOT / "notebooks" / "own-tables.ipynb")).count("NaN") == 0


def test_stored_figures_for_users_of_pyg() -> None:
    (columns,) = re.findall(r"x=\[400, (\d+)\]", shown("pyg-researchers", "pyg-rese-1"))
    (edges,) = re.findall(r"edge_index=\[2, (\d+)\]", shown("pyg-researchers", "pyg-rese-1"))
    (bank, shop) = ast.literal_eval(shown("pyg-researchers", "pyg-rese-3"))
    assert (bank[1], shop[1]) == ((400, int(columns) // 2),) * 2
    assert bank[2] + shop[2] == int(edges)
    assert abs(bank[2] - shop[2]) < 10
    assert (bank[3], shop[3]) == (True, False)
    for figure in ("test_accuracy", "test_auc"):
        reached = {row[""]: float(row[figure]) for row in table("pyg-researchers", "pyg-rese-7")}
        assert reached["pooled"] > reached["federated"] > max(reached["bank alone"], reached["shop alone"])
    assert base64.b64decode(shown("pyg-researchers", "pyg-rese-9", "image/png")).startswith(b"\x89PNG")


def test_stored_findings_of_an_audit() -> None:
    findings = table("reading-an-audit", "reading-3")
    assert {row["measure"] for row in findings} == {"auc"}
    by_found = {(row["attack"], row["adversary"]) for row in table("reading-an-audit", "reading-5")}
    assert by_found == {(row["attack"], row["adversary"]) for row in findings if row["found"] == "True"}
    assert by_found > {("label-gradient", "server"), ("label-gradient", "B"), ("link-similarity", "server")}
    uniform = table("reading-an-audit", "reading-7")
    assert uniform == [row for row in findings if row["attack"] == "uniformity"]
    assert {row["passed"] for row in uniform} == {"True"}
    limited = ast.literal_eval(shown("reading-an-audit", "reading-9"))
    assert [passed for *_, passed in limited] == [high <= 0.9 for *_, high, _ in limited] != []
    assert all(why for *_, why in ast.literal_eval(shown("reading-an-audit", "reading-11")))


@BY_NAME
def test_links_lead_to_pages(path: Path) -> None:
    text = "".join(line for cell in cells(path) if cell["cell_type"] == "markdown" for line in cell["source"])
    targets = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert targets
    assert all((path.parent / target).is_file() for target in targets)


@nightly
def test_own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
