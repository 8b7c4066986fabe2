"""A package of somebody else's, with a paradigm and what the audit makes of it: found by entry points alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest

from tests.cli.commands import one_error, veilgraph
from veilgraph.audit.source import SOURCES
from veilgraph.protocol.job_file import JOBS
from veilgraph.protocol.paradigm import PARADIGMS

MODULE = """
from typing import Literal

from veilgraph.audit.sources.vertical import VerticalSource
from veilgraph.paradigms.vertical.paradigm import Vertical
from veilgraph.paradigms.vertical.settings import VerticalJob


class ToyJob(VerticalJob):
    paradigm: Literal["toy"] = "toy"


class Toy(Vertical):
    title = "toy: a paradigm of another package"

    def describe(self, job):
        return ["Somebody else says how this works.", *super().describe(job)]


TOY = Toy()
SOURCE = VerticalSource()
"""
POINTS = """
[veilgraph.paradigms]
toy = toy_paradigm:TOY
vertical = toy_paradigm:TOY

[veilgraph.jobs]
toy = toy_paradigm:ToyJob

[veilgraph.evidence]
toy = toy_paradigm:SOURCE
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    installed = site / "toy_paradigm-1.0.dist-info"
    installed.mkdir(parents=True)
    (site / "toy_paradigm.py").write_text(MODULE, encoding="utf-8")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-paradigm\nVersion: 1.0\n", encoding="utf-8")
    (installed / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    invalidate_caches()
    yield
    for registry in (PARADIGMS, SOURCES, JOBS):
        registry.forget("toy")
    sys.modules.pop("toy_paradigm", None)


@pytest.mark.usefixtures("toy")
def test_a_paradigm_of_another_package_trains_audits_and_reports(tmp_path: Path) -> None:
    assert list(PARADIGMS) == ["vertical", "horizontal", "local", "toy"]
    assert type(PARADIGMS["vertical"]).__name__ == "Vertical", "ours cannot be replaced"
    job, run = tmp_path / "job.yaml", tmp_path / "run"
    job.write_text(
        "name: toy\nparadigm: toy\ndata: {dataset: synthetic}\nmodel: {dim: 4}\ntrain: {epochs: 2, patience: null}\n",
        encoding="utf-8",
    )
    assert "is a valid job" in veilgraph("check", job).stdout
    assert veilgraph("train", job, "--out", run, "--record-views").exit_code == 0
    audited = veilgraph("audit", run, "--attack", "link-similarity", "--attack", "uniformity", "--adversary", "server")
    assert audited.exit_code == 0
    found = json.loads((run / "audit.json").read_text(encoding="utf-8"))
    assert found["paradigm"] == "toy"
    assert {each["attack"] for each in found["findings"]} >= {"link-similarity"}
    assert veilgraph("report", run).exit_code == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "toy: a paradigm of another package" in page
    assert "Somebody else says how this works." in page


def test_without_the_package_its_jobs_are_refused_with_what_there_is(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("paradigm: toy\n", encoding="utf-8")
    assert "paradigm='toy': choose one of 'vertical', 'horizontal', 'local'" in one_error(veilgraph("check", job))
