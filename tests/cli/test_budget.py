import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from tests.faults.runs import OTHER, table_job
from veilgraph.core.errors import BudgetSpent
from veilgraph.privacy.event import LaplaceEvent
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job import write_job
from veilgraph.protocol.job_file import read_job
from veilgraph.report.ledgers import worth
from veilgraph.report.page import page_html
from veilgraph.runtime.launch.jobs import load_result, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

PRIVATE = """
name: private
data: {dataset: synthetic}
model: {dim: 8, initial: {method: individual}}
train: {epochs: 4, patience: null, select_by: last, checkpoint_every: 2}
privacy: {unit: row, schedule: every-step, noise_multiplier: 5, epsilon_total: 3}
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
    for part in ("A (label holder)", "per-release ε", "total ε", "row", "zero-out", "docs/privacy.md"):
        assert part in text
    assert "privacy.epsilon_total=3 has room for all that the job foresees" in text
    totals = [line.split("│")[1].strip() for line in result.stdout.splitlines() if "every-step" in line and "│" in line]
    assert [total for total in totals if total.isdigit()] == ["2", "8"]
    assert list(tmp_path.iterdir()) == []


OF_EDGES = ("--set", "privacy={epsilon_total: 1, unit: edge, aggregation: {}}")


def test_mistakes_are_one_line(private: Path, tmp_path: Path) -> None:
    plain, averaging = tmp_path / "plain.yaml", tmp_path / "averaging.yaml"
    plain.write_text("data: {dataset: synthetic}\n", encoding="utf-8")
    averaging.write_text(PRIVATE_TRAINING, encoding="utf-8")
    many = OF_EDGES[1].replace("unit", "delta: 0.0024, unit")
    calls: dict[tuple[str | Path, ...], str] = {
        ("budget", tmp_path / "none.yaml"): "give the path of a job file",
        ("budget", private, "--set", "privacy.noise_multiplier=0"): "noise_multiplier=0 has no finite ε",
        ("budget", private, "--total", "1e30"): "at least 1e-09",
        **{("budget", averaging, option, "2"): "leave them out" for option in ("--jobs", "--predictions", "--nodes")},
        ("check", private, "--set", "privacy.delta=0.5"): "every holder refuses the job: privacy.delta=0.5 with",
        ("check", plain, "--set", many): "B refuses the job: privacy.delta=0.0024 is too much for a table of so many",
    }
    for words, said in calls.items():
        assert said in one_error(veilgraph(*words)), words
    assert veilgraph("check", private).exit_code == 0
    assert veilgraph("check", plain, *OF_EDGES).exit_code == 0


def test_training_resuming_and_reporting_tell_what_was_spent(private: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    calls: list[list[str | Path]] = [["train", private, "--out", run], ["resume", run], ["report", run]]
    for arguments in calls:
        result = veilgraph(*arguments)
        assert result.exit_code == 0, result.output
        lines = result.stdout[result.stdout.index("Differential privacy") :].splitlines()
        spent = {row[0]: row[1:] for row in ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines) if row}
        # 9 and 5 releases of σ = 5 at δ = 1e-4, one of which has ε = 0.60157
        assert spent["A"] == ["embeddings 5, gradients 4", "0.6016", "2.094"]
        assert spent["B"] == ["embeddings 5", "0.6016", "1.495"]
        text = words(result.stdout)
        assert (
            "every holder's rows (not a person, not an edge), zero-out, at δ = 0.0001, against the server and all"
            in text
        )


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
    assert "docs/privacy.md" in text
    assert "Noise that a total needs" not in text
    assert "are about noise on embeddings" in one_error(veilgraph("budget", local, "--total", "4"))


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


def test_a_run_and_its_page_say_what_one_release_was_worth(tmp_path: Path) -> None:
    once = ("model.local.model=appnp", "privacy={unit: row, schedule: once, epsilon_total: 1.0e-4}")
    path = tmp_path / "job.yaml"
    path.write_text(PRIVATE, encoding="utf-8")
    trained = veilgraph("train", path, "--out", tmp_path / "run", *(word for each in once for word in ("--set", each)))
    assert trained.exit_code == 0, trained.output
    run = RunDirectory.open(tmp_path / "run")
    said = worth(load_result(run.path).summary, run.settings)
    assert said.startswith("The release")
    assert said in words(trained.stdout)
    assert said in page_html(run)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job over tables with a limit on what is ever released, as if it had been written by hand."""
    folder = tmp_path_factory.mktemp("bank")
    settings = table_job(
        folder,
        {"model": {"initial": {"method": "individual"}, "local": {"model": "appnp"}}},
        {"privacy": {"unit": "row", "schedule": "once", "epsilon_total": 2.0, "delta": 1e-4}},
    )
    party = folder / OTHER / "party.yaml"
    party.write_text(
        party.read_text() + "limits: {max_epsilon: 4, epsilon_unit: row, epsilon_neighbours: zero-out, leakage: []}\n"
    )
    write_job(settings, folder / "job.yaml")
    return folder


def test_a_partys_budget_is_one_for_all_of_its_jobs(bank: Path) -> None:
    job, party = bank / "job.yaml", bank / OTHER / "party.yaml"
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
    assert (told["budget"], told["unit"], told["delta"]) == (4, "row", 1e-4)
    assert told["total"] == pytest.approx(2.0, rel=1e-6)
    assert told["after"]["jobs"] > 0
    assert [row["releases"] for row in told["released"]] == [1]
    assert told["nodes"] == told["released"][0]["nodes"] > 50
    again = train(read_job(job), bank / "two")  # the same rows of the same nodes
    assert again.summary["privacy"][OTHER]["releases"] == {"embeddings": 1}
    assert json.loads(veilgraph("budget", "--party", party, "--json").stdout)["lifetime"]["total"] == told["total"]
    for number in range(told["after"]["jobs"]):
        train(with_overrides(read_job(job), {"model.dim": 5 + number}), bank / f"more{number}")
    with refused(BudgetSpent, code="no-room"):  # before any row is made
        train(with_overrides(read_job(job), {"model.dim": 20}), bank / "last")
    assert json.loads(veilgraph("budget", job, "--party", party, "--json").stdout)["lifetime"]["after"]["jobs"] == 0
    assert "beyond limits.max_epsilon=4: it would be refused, unless" in words(
        veilgraph("budget", job, "--party", party).stdout
    )
    other = words(veilgraph("budget", job, "--party", party, *OF_EDGES).stdout)
    assert "this job's ε is not about row, zero-out, as this ledger's total is: it would be refused" in other
    gone = (party.parent / "ledger").rename(bank / "gone")
    assert "it is gone" in one_error(veilgraph("budget", "--party", party))
    assert not (party.parent / "ledger").exists()
    gone.rename(party.parent / "ledger")


def test_a_budget_of_nothing_or_of_another_party_is_refused(bank: Path, tmp_path: Path) -> None:
    party = bank / OTHER / "party.yaml"
    assert "JOB.yaml" in usage_error(veilgraph("budget"))
    assert "JOB.yaml" in usage_error(veilgraph("budget", "--party", party, "--nodes", "5"))
    assert "JOB.yaml" in usage_error(veilgraph("budget", "--party", party, "--jobs", "5"))
    stranger = tmp_path / "party.yaml"
    stranger.write_text(party.read_text().replace(f"party: {OTHER}", "party: stranger"))
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
        assert "are about noise on embeddings" in one_error(veilgraph("budget", job, option, "2"))
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
