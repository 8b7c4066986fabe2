"""A package of somebody else's, with a paradigm and what the audit makes of it: found by entry points alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import veilgraph
from tests.cli.commands import one_error
from tests.cli.commands import veilgraph as command_line
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job_file import parse_job

MODULE = """
from typing import Literal

from veilgraph.audit.sources.vertical import VerticalSource
from veilgraph.core.types import Kind
from veilgraph.paradigms.vertical.paradigm import Vertical
from veilgraph.paradigms.vertical.rows import ROWS
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.revelations import Told
from veilgraph.protocol.rows import TO_SERVER, Exposed, Row

HUMMED = Told(
    "toy-hum",
    "The server hears that a toy hums.",
    lambda job: f"model.dim={job.model.dim}",
    lambda job: [job.data.label_party],
)
HUM = Exposed("embedding", "what {sender} hums in round {round}")


class ToyJob(VerticalJob):
    paradigm: Literal["toy"] = "toy"


class Toy(Vertical):
    title = "toy: a paradigm of another package"
    rows = (*ROWS, Row(Kind.MASKED, TO_SERVER, "a hum", "mask", "It hums.", (HUMMED,), exposed=HUM))

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
SCRIPT = r"""
import pytest
from typer.testing import CliRunner

from veilgraph.audit.source import SOURCES
from veilgraph.cli import app
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.paradigm import PARADIGMS

assert list(PARADIGMS) == ["vertical", "horizontal", "local", "toy"]
assert type(PARADIGMS["vertical"]).__name__ == "Vertical", "ours cannot be replaced"
assert type(SOURCES["toy"]).__name__ == "VerticalSource"
job, accepted = parse_job({"paradigm": "toy"}), ("initial-embeddings", "embedding-sums", "training-rows")
said = "limits.may_reveal=[initial-embeddings, embedding-sums, training-rows]: change the job, or add what your "
said += "organisation accepts of what else the job reveals: toy-hum (model.dim=64)"
assert refusal(LimitSettings(may_reveal=accepted), job, "A") == said
assert refusal(LimitSettings(), job, "B") is None, "it is about the label holder's data"
assert refusal(LimitSettings(may_reveal=(*accepted, "toy-hum")), job, "A") is None
with pytest.raises(ValueError, match="may_reveal.1\n.*no paradigm that is installed reveals .* training-rows.*toy-hum"):
    LimitSettings(may_reveal=("toy-hum", "toy-humm"))
for command in (
    ["check", "job.yaml"],
    ["train", "job.yaml", "--out", "run", "--record-views"],
    ["audit", "run", "--attack", "link-similarity", "--attack", "uniformity", "--adversary", "server"],
    ["report", "run"],
):
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Where the package is installed."""
    folder = tmp_path / "site"
    installed = folder / "toy_paradigm-1.0.dist-info"
    installed.mkdir(parents=True)
    (folder / "toy_paradigm.py").write_text(MODULE, encoding="utf-8")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-paradigm\nVersion: 1.0\n", encoding="utf-8")
    (installed / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    return folder


def test_a_paradigm_of_another_package_trains_audits_and_reports(site: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: toy\nparadigm: toy\ndata: {dataset: synthetic}\nmodel: {dim: 4}\ntrain: {epochs: 2, patience: null}\n",
        encoding="utf-8",
    )
    path = os.pathsep.join([str(site), str(Path(veilgraph.__file__).parents[1])])
    command = [sys.executable, "-c", SCRIPT]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "audit.json").read_text(encoding="utf-8"))
    assert found["paradigm"] == "toy"
    attacked = {each["evidence"] for each in found["findings"] if each["attack"] == "link-similarity"}
    assert attacked == {"what A hums in round 1", "what B hums in round 1", "the sum of all embeddings of round 1"}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "toy: a paradigm of another package" in page
    assert "Somebody else says how this works." in page
    assert "The server hears that a toy hums." in page
    (sent,) = {
        (line["what"], tuple(line["reveals"]))
        for line in map(json.loads, (tmp_path / "run/parties/A/disclosures.jsonl").read_text("utf-8").splitlines())
        if line["kind"] == "masked"
    }
    assert sent == ("masked embeddings; a hum", ("embedding-sums", "toy-hum"))


def test_a_package_that_cannot_be_loaded_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "toy_paradigm.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(ConfigError, match=r"veilgraph\.jobs: 'toy' .* toy_paradigm:ToyJob, which cannot be loaded"):
        parse_job({"paradigm": "toy"})


def test_without_the_package_its_jobs_are_refused_with_what_there_is(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("paradigm: toy\n", encoding="utf-8")
    assert "paradigm='toy': choose one of 'vertical', 'horizontal', 'local'" in one_error(command_line("check", job))
