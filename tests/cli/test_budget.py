import json
from pathlib import Path

import numpy as np
import pytest

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from tests.faults.runs import LABEL_HOLDER, table_job
from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import LaplaceEvent
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job import write_job
from veilgraph.protocol.job_file import read_job
from veilgraph.report.page import page_html
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

PRIVATE = """
name: private
paradigm: node-dp
data: {dataset: synthetic, holders: 2, split: [0.5, 0.25, 0.25]}
release: {features: {epsilon: 1.5, low: -10, high: 10}}
train: {epochs: 4, patience: null, checkpoint_every: 2}
privacy: {unit: edge, epsilon_total: 3}
"""

PRIVATE_TRAINING = """
paradigm: averaging
preset: auto
data: {dataset: synthetic, split: [0.5, 0.25, 0.25]}
averaging: {privacy: {epsilon_total: 4, batch: 100}}
"""


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("private") / "job.yaml"
    path.write_text(PRIVATE, encoding="utf-8")
    return path


def words(text: str) -> str:
    return " ".join(text.split())


def test_it_shows_costs_and_noise_and_reads_and_writes_nothing(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("veilgraph.graph.dataset.DATASETS", {})
    result = veilgraph("budget", private, "--total", "2,8")
    assert result.exit_code == 0, result.output
    text = words(result.stdout)
    for part in ("A (label holder)", "per-release ε", "total ε", "edge", "replacement", "docs/explanation/privacy.md"):
        assert part in text
    needed = cells(result.stdout[result.stdout.index("Noise that a total needs") :])
    assert [row[0] for row in needed if row[1].startswith("A")] == ["2", "8"]
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_one_line(private: Path, tmp_path: Path) -> None:
    averaging = tmp_path / "averaging.yaml"
    averaging.write_text(PRIVATE_TRAINING, encoding="utf-8")
    calls: dict[tuple[str | Path, ...], str] = {
        ("budget", tmp_path / "none.yaml"): "give the path of a job file",
        **{("budget", averaging, option, "2"): "leave them out" for option in ("--jobs", "--predictions", "--nodes")},
        ("check", private, "--set", "privacy.delta=0.5"): "every holder refuses the job: privacy.delta=0.5 with",
        (
            "check",
            private,
            "--set",
            "privacy.delta=0.0024",
        ): "A refuses the job: privacy.delta=0.0024 is too much",
    }
    for words, said in calls.items():
        assert said in one_error(veilgraph(*words)), words
    assert veilgraph("check", private).exit_code == 0


def test_training_resuming_and_reporting_tell_what_was_spent(private: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    calls: list[list[str | Path]] = [["train", private, "--out", run], ["resume", run], ["report", run]]
    for arguments in calls:
        result = veilgraph(*arguments)
        assert result.exit_code == 0, result.output
        lines = result.stdout[result.stdout.index("Differential privacy") :].splitlines()
        spent = {row[0]: row[1:] for row in ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines) if row}
        assert spent["A"] == ["sums 1", "3", "3"]
        assert spent["B"] == ["features 1", "1.5", "1.5"]


LOCAL = """
name: local
paradigm: node-dp
data: {dataset: synthetic, holders: 3, split: [0.5, 0.25, 0.25]}
release: {features: {epsilon: 1.5, low: -10, high: 10}}
train: {epochs: 3, patience: null}
"""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("local") / "job.yaml"
    path.write_text(LOCAL, encoding="utf-8")
    return path


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]


def test_what_nodes_release_is_shown_before_anything_is_read(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilgraph.graph.dataset.DATASETS", {})
    result = veilgraph("budget", local, "--set", "release.labels={holder: C, epsilon: 2}")
    assert result.exit_code == 0, result.output
    rows = cells(result.stdout)
    assert [row[0] for row in rows] == ["A (learns)", "B", "C", ""]
    assert [row[-2:] for row in rows] == [["0", "0"], ["1.5", "1.5"], ["1.5", "3.5"], ["2", ""]]
    text = words(result.stdout)
    assert "the node's own values, or any others from -10 to 10" in text
    assert "at all of these has a total ε of 5" in text
    assert "docs/explanation/privacy.md" in text
    assert "Noise that a total needs" not in text
    assert "are about noise on edges" in one_error(veilgraph("budget", local, "--total", "4"))


@nightly
def test_a_local_job_is_checked_trained_reported_and_predicted(local: Path, tmp_path: Path) -> None:
    checked = veilgraph("check", local)
    assert checked.exit_code == 0, checked.output
    assert "train it with: veilgraph train" in words(checked.stdout)
    (trained,) = [row[1:] for row in cells(checked.stdout) if row[0] == "train labels"]
    assert abs(int(trained[0].split()[0]) - 200) < 3, "half of each class"
    assert trained[1:] == ["–", "–"]
    narrow = veilgraph("check", local, "--set", "release.features.high=0.5")
    assert "party 'B': x: the value" in one_error(narrow)
    run = tmp_path / "run"
    calls: list[list[str | Path]] = [["train", local, "--out", run], ["report", run]]
    for arguments in calls:
        result = veilgraph(*arguments)
        assert result.exit_code == 0, result.output
        rows = cells(result.stdout[result.stdout.index("Differential privacy") :])
        assert [row for row in rows if row[0] in "ABC"] == [[holder, "features 1", "1.5", "1.5"] for holder in "BC"]
        assert "what one node releases at one holder, replacement, against everybody." in words(result.stdout)
    predicted = veilgraph("predict", run, "--nodes", "3,5").stdout.splitlines()
    assert [line.split(",")[0] for line in predicted] == ["node", "3", "5"]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job over tables with a limit on what is ever released, as if it had been written by hand."""
    folder = tmp_path_factory.mktemp("bank")
    settings = table_job(folder, {"label_privacy": {"epsilon": 2.0}}, {"train": {"epochs": 2}})
    party = folder / LABEL_HOLDER / "party.yaml"
    party.write_text(party.read_text() + LIMITS)
    write_job(settings, folder / "job.yaml")
    return folder


LIMITS = (
    "limits: {max_epsilon: 4, epsilon_unit: label, epsilon_neighbours: replacement, "
    "leakage: [initial-embeddings, embedding-sums, training-nodes]}\n"
)


def test_a_partys_budget_is_one_for_all_of_its_jobs(bank: Path) -> None:
    job, party = bank / "job.yaml", bank / LABEL_HOLDER / "party.yaml"
    before = veilgraph("budget", "--party", party)
    assert before.exit_code == 0
    assert "nothing was ever released" in before.stdout
    assert not (party.parent / "ledger").exists()
    train(read_job(job), bank / "one")
    shown = veilgraph("budget", job, "--party", party)
    assert shown.exit_code == 0
    assert "this job would take it to" in words(shown.stdout)
    assert "less where what it releases was released before" in words(shown.stdout)
    told = json.loads(veilgraph("budget", job, "--party", party, "--json").stdout)["lifetime"]
    assert (told["budget"], told["unit"], told["delta"]) == (4, "label", 1e-4)
    assert told["total"] == pytest.approx(2.0, rel=1e-6)
    assert told["after"]["jobs"] > 0
    assert [row["releases"] for row in told["released"]] == [1]
    assert told["nodes"] == told["released"][0]["nodes"] > 30
    again = train(read_job(job), bank / "two")  # the same labels of the same nodes
    assert again.summary["privacy"][LABEL_HOLDER]["releases"] == {"labels": 1}
    assert json.loads(veilgraph("budget", "--party", party, "--json").stdout)["lifetime"]["total"] == told["total"]
    for number in range(told["after"]["jobs"]):
        train(with_overrides(read_job(job), {"snapshot": f"more{number}"}), bank / f"more{number}")
    with refused(ConfigError, code="refused", party=LABEL_HOLDER):  # before any label is drawn
        train(with_overrides(read_job(job), {"snapshot": "last"}), bank / "last")
    assert json.loads(veilgraph("budget", job, "--party", party, "--json").stdout)["lifetime"]["after"]["jobs"] == 0
    assert "beyond limits.max_epsilon=4: it would be refused, unless" in words(
        veilgraph("budget", job, "--party", party).stdout
    )
    edges = bank / "edges.yaml"
    apart = PRIVATE.replace("dataset: synthetic, holders: 2, split: [0.5, 0.25, 0.25]", "holders: [A, B]")
    edges.write_text(apart, encoding="utf-8")
    other = words(veilgraph("budget", edges, "--party", party).stdout)
    assert "this job's ε is not about label, replacement, as this ledger's total is: it would be refused" in other
    gone = (party.parent / "ledger").rename(bank / "gone")
    assert "it is gone" in one_error(veilgraph("budget", "--party", party))
    assert not (party.parent / "ledger").exists()
    gone.rename(party.parent / "ledger")


def test_a_budget_of_nothing_or_of_another_party_is_refused(bank: Path, tmp_path: Path) -> None:
    party = bank / LABEL_HOLDER / "party.yaml"
    assert "JOB.yaml" in usage_error(veilgraph("budget"))
    assert "JOB.yaml" in usage_error(veilgraph("budget", "--party", party, "--nodes", "5"))
    assert "JOB.yaml" in usage_error(veilgraph("budget", "--party", party, "--jobs", "5"))
    stranger = tmp_path / "party.yaml"
    stranger.write_text(party.read_text().replace(f"party: {LABEL_HOLDER}", "party: stranger"))
    assert "party='stranger' is not in the job" in one_error(
        veilgraph("budget", bank / "job.yaml", "--party", stranger)
    )
    assert "--ledger" in one_error(veilgraph("budget", bank / "job.yaml", "--ledger", tmp_path / "nowhere"))
    folder = tmp_path / "ledger"
    ledger = Lifetime(folder, "stranger", Budget(4.0), Marks(tmp_path / "marks"))
    ledger.charge(LaplaceEvent(9.0), "embeddings", 1, np.arange(3, dtype=np.uint64), delta=1e-4, run="ab" * 32, job="j")
    assert "--ledger: it is of 'stranger'" in one_error(veilgraph("budget", bank / "job.yaml", "--ledger", folder))


LABELS = """
name: labels
data: {dataset: synthetic, split: [0.5, 0.25, 0.25], stratify: false}
model: {dim: 4}
train: {epochs: 2}
label_privacy: {epsilon: 1.5}
"""


@nightly
def test_perturbed_labels_are_said_by_every_command(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(LABELS, encoding="utf-8")
    budget = veilgraph("budget", job)
    assert budget.exit_code == 0, budget.output
    text = words(budget.stdout)
    for part in (
        "randomised response",
        "1.5",
        "B │ nothing",
        "features and edges are not noised",
        "before has changed, is not hidden",
        "What to expect",
        "digits",
    ):
        assert part in text
    for option in ("--total", "--jobs", "--predictions", "--nodes"):
        assert "are about noise on edges" in one_error(veilgraph("budget", job, option, "2"))
    assert "A learns from perturbed labels: ε 1.5 of one label" in words(veilgraph("check", job).stdout)
    trained = veilgraph("train", job, "--out", tmp_path / "run")
    assert trained.exit_code == 0, trained.output
    assert "Of one label, replacement" in words(trained.stdout)
    assert "figures compare with perturbed labels" in words(trained.stdout)
    page = page_html(RunDirectory.open(tmp_path / "run"))
    for part in ("one label, at one holder, of a training or validation node", "total ε 1.5", "are no accuracies"):
        assert part in page
    facts = json.loads(veilgraph("budget", job, "--json").stdout)
    assert facts["holders"]["A"] == [{"what": "label", "mechanism": "randomised response", "epsilon": 1.5}]
    assert facts["holders"]["B"] == []


VOTES = """
paradigm: sealed
data: {dataset: synthetic, holders: 3}
model: {edge_slots: 400}
train: {epochs: 2}
privacy: {unit: edge, epsilon_total: 0.5}
"""


def test_check_and_budget_say_beforehand_what_noise_leaves(tmp_path: Path) -> None:
    """Of sizes that all parties know: as many votes as ``edge_slots`` has room for, and more by training nodes."""
    job = tmp_path / "job.yaml"
    job.write_text(VOTES, encoding="utf-8")

    def said(*arguments: str) -> list[str]:
        result = veilgraph(*arguments[:1], job, *arguments[1:], "--json")
        assert result.exit_code == 0, result.output
        return [note for note in json.loads(result.stdout)["notes"] if "noise leaves" in note]

    assert said("budget") == [
        "how much noise leaves of what votes add follows from the number of common nodes: give --nodes"
    ]
    sizes = ["--costs", "--nodes", "400", "--training", "200", "--classes", "2"]
    for holder in "ABC":
        sizes += ["--columns", f"{holder}=4", "--edges", f"{holder}=100"]
    (warned,) = said("check", *sizes)
    assert warned == (
        "noise leaves at most 6% of what votes add without it (1.5 votes a node by model.edge_slots; "
        "docs/explanation/sealed.md), too little to show: raise privacy.epsilon_total to 1, or leave privacy out"
    )
    (enough,) = said("check", *sizes, "--set", "privacy.epsilon_total=1")
    assert enough == warned.partition(", too little")[0].replace("6%", "21%")
    assert "(2 votes a node" in said("budget", "--nodes", "400")[0]  # who trains is not known
    here = ("--set", "model.edge_slots=1024")
    assert "raise privacy.epsilon_total" in said("check", *here, "--set", "privacy.epsilon_total=0.1")[0]
    assert said("check", *here, "--set", "privacy=null") == []
