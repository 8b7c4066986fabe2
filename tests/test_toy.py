"""Packages of somebody else's with a part of every kind: they train, audit and report, found by entry points alone."""

import json
from pathlib import Path

import pytest

from tests import nightly
from tests.cli.commands import one_error
from tests.cli.commands import veilgraph as command_line
from tests.toys.installed import install, run_with
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job_file import parse_job

POINTS = {
    "paradigm": {
        "veilgraph.paradigms": {"toy": "TOY", "vertical": "TOY"},
        "veilgraph.jobs": {"toy": "ToyJob"},
        "veilgraph.evidence": {"toy": "SOURCE"},
    },
    "mechanism": {
        "veilgraph.feature_mechanisms": {"logistic": "Logistic"},
        "veilgraph.events": {"logistic": "LogisticEvent"},
    },
    "attack": {"veilgraph.attacks": {"link-cosine": "COSINES"}},
    "link": {"veilgraph.links": {"bytes": "BYTES"}},
    "dataset": {"veilgraph.datasets": {"ring": "RING"}},
}
JOB = {
    "name": "toy",
    "paradigm": "toy",
    "data": {"dataset": "ring"},
    "model": {"dim": 4},
    "train": {"epochs": 2, "patience": None, "select_by": "last"},
    "audit_limits": {"link-cosine": 1.0},
}
NOISY = {
    "name": "noisy",
    "paradigm": "node-dp",
    "data": {"dataset": "ring", "split": [0.5, 0.25, 0.25], "stratify": False},
    "release": {"features": {"mechanism": "logistic", "epsilon": 3.0, "low": -50, "high": 50}},
    "train": {"epochs": 2, "patience": None},
}
SUITE = """
from veilgraph.link.factory import LINKS
from veilgraph_testing.attack import AttackConformance
from veilgraph_testing.dataset import DataSetConformance
from veilgraph_testing.link import LinkConformance
from veilgraph_testing.paradigm import ParadigmConformance
from veilgraph_node_dp.conformance import FeatureMechanismConformance


class TestLogistic(FeatureMechanismConformance):
    name = "logistic"


class TestCosines(AttackConformance):
    name, sort = "link-cosine", "embedding"


class TestBytes(LinkConformance):
    factory = LINKS["bytes"]


class TestRing(DataSetConformance):
    name = "ring"


class TestToy(ParadigmConformance):
    job = {
        "paradigm": "toy",
        "data": {"dataset": "ring"},
        "model": {"dim": 4},
        "train": {"epochs": 3, "patience": None, "checkpoint_every": 1, "select_by": "last"},
    }
    processes = False
"""
SCRIPT = r"""
from pathlib import Path

import pytest
from typer.testing import CliRunner

from veilgraph.protocol.evidence import SOURCES
from veilgraph.cli import app
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.paradigm import PARADIGMS

assert list(PARADIGMS) == ["vertical", "horizontal", "sealed", "union", "averaging", "node-dp", "toy"]
assert PARADIGMS["vertical"].title.startswith("vertical:"), "ours cannot be replaced"
assert type(SOURCES["toy"]).__name__ == "VerticalSource"
job, accepted = parse_job({"paradigm": "toy"}), ("initial-embeddings", "embedding-sums", "training-rows")
said = "limits.leakage=[initial-embeddings, embedding-sums, training-rows]: change the job, or add what your "
said += "organisation accepts of what else the job reveals: toy-hum (model.dim=64)"
assert refusal(LimitSettings(leakage=accepted), job, "A") == said
assert refusal(LimitSettings(), job, "B") is None, "it is about the label holder's data"
assert refusal(LimitSettings(leakage=(*accepted, "toy-hum")), job, "A") is None
with pytest.raises(ValueError, match="leakage.1\n.*no paradigm that is installed reveals .* training-rows.*toy-hum"):
    LimitSettings(leakage=("toy-hum", "toy-humm"))
for command in (
    ["check", "job.yaml"],
    ["train", "job.yaml", "--out", "run", "--record-views", "--link", "bytes"],
    ["predict", "run", "--link", "bytes"],
    ["audit", "run", "--attack", "link-cosine", "--attack", "uniformity", "--adversary", "server"],
    ["report", "run"],
    ["budget", "noisy.yaml"],
    ["train", "noisy.yaml", "--out", "noisy", "--record-views"],
    ["audit", "noisy", "--attack", "attribute-release", "--adversary", "A"],
    ["report", "noisy"],
):
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
done = CliRunner().invoke(app, ["train", "job.yaml", "--out", "apart", "--processes", "--link", "bytes"])
assert done.exit_code == 1, done.output
assert "link: BytesFactory joins no processes; choose one of sockets" in done.output
assert not Path("apart").exists()
"""
SUITES = """
import pytest

assert pytest.main(["-q", "-p", "no:cacheprovider", "suite.py"]) == 0
"""


def installed(folder: Path) -> Path:
    for module, points in POINTS.items():
        install(folder / "site", module, points)
    return folder / "site"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Where the packages are installed."""
    return installed(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has what the script made."""
    folder = tmp_path_factory.mktemp("trained")
    for name, job in {"job": JOB, "noisy": NOISY}.items():
        (folder / f"{name}.yaml").write_text(json.dumps(job), encoding="utf-8")
    run_with(installed(folder), SCRIPT, folder)
    return folder


def test_parts_of_other_packages_train_are_audited_and_reported(trained: Path) -> None:
    found = json.loads((trained / "run" / "audit.json").read_text(encoding="utf-8"))
    assert found["paradigm"] == "toy"
    attacked = {each["evidence"]: each["passed"] for each in found["findings"] if each["attack"] == "link-cosine"}
    hummed = ["what A hums in round 1", "what B hums in round 1", "the sum of all embeddings of round 1"]
    assert attacked == dict.fromkeys(hummed, True), "the job's limit is held to it"
    page = (trained / "run" / "report.html").read_text(encoding="utf-8")
    assert "toy: a paradigm of another package" in page
    assert "Somebody else says how this works." in page
    assert "The server hears that a toy hums." in page
    assert "link-cosine" in page
    (sent,) = {
        (line["what"], tuple(line["reveals"]))
        for line in map(json.loads, (trained / "run/parties/A/disclosures.jsonl").read_text("utf-8").splitlines())
        if line["kind"] == "masked"
    }
    assert sent == ("masked embeddings; a hum", ("embedding-sums", "toy-hum"))


@nightly
def test_they_are_held_to_the_suites(site: Path, tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(SUITE, encoding="utf-8")
    run_with(site, SUITES, tmp_path)


def test_a_mechanism_of_another_package_pays_with_its_own_event(trained: Path) -> None:
    """Its ledger is read again, for the report."""
    lines = (trained / "noisy/parties/B/ledger.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    entries = [json.loads(line) for line in lines]
    assert {entry["event"]["kind"] for entry in entries} == {"logistic"}
    assert entries[-1]["total"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("module", "group", "job", "key"),
    [
        ("paradigm", "jobs", {"paradigm": "toy"}, "ToyJob"),
        ("mechanism", "feature_mechanisms", NOISY, "Logistic"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named(
    module: str, group: str, job: dict[str, object], key: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / f"toy_{module}.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(ConfigError, match=rf"veilgraph\.{group}: .* toy_{module}:{key}, which cannot be loaded"):
        parse_job(job).noise.feature_release  # noqa: B018 - a mechanism is loaded when it is first asked for something


def test_a_part_of_another_kind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "dataset", {"veilgraph.attacks": {"ring": "RING"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    from veilgraph.audit.attack import ATTACKS  # noqa: PLC0415

    with pytest.raises(ConfigError, match=r"veilgraph\.attacks: 'ring' .* toy_dataset:RING, which is no Attack"):
        ATTACKS["ring"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"paradigm": "toy"}, "paradigm='toy': choose one of 'vertical', 'horizontal', 'sealed'"),
        ({"data": {"dataset": "ring"}}, "data.dataset='ring': choose one of 'digits', 'synthetic'"),
        ({"audit_limits": {"link-cosine": 0.9}}, "='link-cosine': choose one of 'link-similarity', 'link-supervised'"),
        (
            {"paradigm": "node-dp", "release": {"features": {"epsilon": 1, "mechanism": "logistic"}}},
            "release.features.mechanism='logistic': choose one of 'multi-bit', 'one-bit', 'gaussian', 'laplace'",
        ),
    ],
)
def test_without_the_packages_their_jobs_are_refused_with_what_there_is(
    job: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job), encoding="utf-8")
    assert said in one_error(command_line("check", path))


def test_a_link_that_is_not_there_is_refused_with_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("data: {dataset: synthetic}\n", encoding="utf-8")
    said = one_error(command_line("train", path, "--out", tmp_path / "run", "--link", "bytes"))
    assert "link='bytes': choose one of 'memory', 'sockets'" in said
    assert not (tmp_path / "run").exists()
