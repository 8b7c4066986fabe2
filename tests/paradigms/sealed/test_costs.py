"""What ``check --costs`` says of the time that a sealed job computes: by what the measured jobs of the docs took."""

import json
import re
from pathlib import Path

import pytest

from docs.pages import find_page
from tests.cli.commands import veilgraph
from veilgraph.paradigms.sealed.costs import CORE_S_A_GB

CORES = 2
"""Of the machine that the page's figures are of."""
SIZES = {
    "nodes": ["3000"],
    "training": ["150"],
    "classes": ["7"],
    "validation": ["500"],
    "columns": ["A=700", "B=700"],
    "edges": ["A=5000", "B=5000"],
}


def measured() -> list[tuple[float, float]]:
    """The least and the most seconds of a core that a measured job can have taken for a GB that all parties sent."""
    page = find_page("sealed-benchmarks.md").read_text(encoding="utf-8")
    found = []
    for job in re.findall(r"\| ([\d., ]+) s \| ([\d,]+) MB \|", page):  # of a core, and all parties send
        found += [(float(each) / _number(job[1]) * 1e3,) * 2 for each in job[0].split(", ")]
    for seconds, sent in re.findall(r"(\d+) s(?: of a core)? and ([\d.]+) GB", page):
        found.append((float(seconds) / float(sent),) * 2)
    for whole, sent in re.findall(r"^\| \w+ \| ([\d.]+) s \|.*\| (A [^|]*) \| [\d.]+ \|$", page, flags=re.MULTILINE):
        of_all = sum(map(_number, re.findall(r"([\d,]+) MB", sent))) / 1e3
        found.append((float(whole) / of_all, CORES * float(whole) / of_all))
    for whole, holder, dealer in re.findall(
        r"^\| [\d,]+ \| (\d+) \|.*\| ([\d.]+) GB \| ([\d.]+) GB \|", page, re.MULTILINE
    ):
        of_all = 2 * float(holder) + float(dealer)
        found.append((float(whole) / of_all, CORES * float(whole) / of_all))
    return found


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def test_every_measured_job_took_as_much_as_is_said() -> None:
    jobs, (least, most) = measured(), CORE_S_A_GB
    assert len(jobs) > 12
    assert all(job[0] <= most and least <= job[1] for job in jobs), jobs
    assert max(job[0] for job in jobs) > 0.7 * most, "no wider than need be"


@pytest.mark.parametrize(("more", "says"), [("", True), ("dealer_checks: 0.5\n", False)])
def test_check_says_about_what_computing_takes(more: str, says: bool, tmp_path: Path) -> None:
    """Of jobs as were measured alone, in terms of what all parties send."""
    file = tmp_path / "job.yaml"
    train = "train: {epochs: 4, select_by: last}\n"
    file.write_text(f"paradigm: sealed\ndata: {{holders: [A, B], label_holder: A}}\n{train}{more}", encoding="utf-8")
    sizes = [word for name, given in SIZES.items() for each in given for word in (f"--{name}", each)]
    result = veilgraph("check", "--costs", file, *sizes, "--json")
    assert result.exit_code == 0, result.output
    costs = json.loads(result.stdout)["costs"]
    said = re.findall(r"about ([\d.]+) to ([\d.]+) s of a core", " ".join(costs["notes"]))
    assert bool(said) == says
    for words in said:
        least, most = (each * sum(costs["sent"].values()) / 1e9 for each in CORE_S_A_GB)
        assert list(map(float, words)) == pytest.approx([least, most], abs=0.06)
