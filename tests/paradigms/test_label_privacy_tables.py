"""Labels of tables: perturbed once for all jobs of the same ε, label by label, within a budget about labels."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests import about
from tests.errors import refused
from tests.faults.runs import LABEL_HOLDER, OTHER, table_job
from tests.paradigms.exported import edited
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.tensor_file import load_tensors
from veilgraph.privacy.ledger_files import FILE
from veilgraph.privacy.lifetime_ledger import Account, Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.report.ledgers import outlook_facts
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.lifetime import lifetime_of
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

ABOUT_LABELS: dict[str, Any] = {**about.LABELS, "leakage": ["training-nodes"]}


def job(folder: Path, epsilon: float = 2.0, **limits: Any) -> JobSettings:
    made = table_job(folder, {"label_privacy": {"epsilon": epsilon}, "train": {"epochs": 2}})
    write_limits(folder, ABOUT_LABELS | {"max_epsilon": 2.0} | limits)
    return made


def write_limits(folder: Path, limits: dict[str, Any]) -> None:
    path = folder / LABEL_HOLDER / "party.yaml"
    said = yaml.safe_load(path.read_text())
    limits["leakage"] = ["initial-embeddings", "embedding-sums", "single-embeddings", *limits["leakage"]]
    path.write_text(yaml.safe_dump(said | {"limits": limits}))


def ledger(settings: JobSettings) -> Lifetime:
    return lifetime_of(Organisation.read((settings.data.parties or {})[LABEL_HOLDER], LABEL_HOLDER))


def told(settings: JobSettings) -> dict[int, int]:
    """Key of a node → its label as it was perturbed."""
    (path, *_) = sorted((ledger(settings).path.parent / "released").glob("*.safetensors"), key=_made_at)
    kept = load_tensors(path)[0]
    return dict(zip(kept["keys"].tolist(), kept["rows"].reshape(-1).int().tolist(), strict=True))


def _made_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def lines(folder: Path, party: str = LABEL_HOLDER) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / party / "ledger" / FILE).read_text().splitlines()[1:]]


def flipped(folder: Path, split: str) -> str:
    """One node of that split, which both holders have, has the other label; which node."""
    with edited(folder / LABEL_HOLDER / "nodes.csv") as table:
        row = next(row for row in table if row["split"] == split and 20 < int(row["id"][1:]) < 60)
        row["class"] = str(1 - int(row["class"]))
    return row["id"]


def test_other_jobs_of_the_same_tables_learn_from_the_same_labels(tmp_path: Path) -> None:
    settings = job(tmp_path / "data")
    train(settings, tmp_path / "first")
    first = told(settings)
    assert ledger(settings).total() == pytest.approx(2.0)
    assert ledger(settings).nodes == len(first)
    second = train(with_overrides(settings, {"name": "second", "seed": 7, "model.dim": 6}), tmp_path / "second")
    predict(second.path)
    assert told(settings) == first
    assert len(lines(tmp_path / "data")) == 1
    assert ledger(settings).total() == pytest.approx(2.0)
    assert not lines(tmp_path / "data", OTHER)
    with (tmp_path / "data" / LABEL_HOLDER / "nodes.csv").open() as file:
        mine = {row["id"] for row in csv.DictReader(file) if row["split"] in ("train", "val")}
    with (tmp_path / "data" / OTHER / "nodes.csv").open() as file:
        both = mine & {row["id"] for row in csv.DictReader(file)}
    assert set(first) == set(ledger(settings).keys(both).view(np.int64).tolist()), "training and validation nodes pay"


def messages(run: Path) -> list[str]:
    """What the other holder is sent, by whom, and how long it is."""
    found = load_view(RunDirectory.open(run), OTHER).messages
    return sorted(f"{each.sender} {each.tag} {each.shape}" for each in found)


def test_other_parties_do_not_see_whether_labels_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second job, and a prediction, go on as if nothing had; the owner alone is told."""
    settings = job(tmp_path / "data", max_epsilon=4.0)
    run = train(settings, tmp_path / "first", record_views=True)
    first, seen = told(settings), messages(run.path)
    for number in range(2):
        caplog.clear()
        later = train(with_overrides(settings, {"name": "later"}), tmp_path / f"{number}", record_views=True)
        assert told(settings) == first
        assert messages(later.path) == seen
        assert len(lines(tmp_path / "data")) == 1
        assert ("labels: of 1 nodes the data have changed" in caplog.text) == bool(number)
        flipped(tmp_path / "data", "train")
    flipped(tmp_path / "data", "test")
    predict(run.path)
    assert len(lines(tmp_path / "data")) == 1
    train(with_overrides(settings, {"name": "new", "snapshot": "february"}), tmp_path / "new")
    assert len({line["cohort"] for line in lines(tmp_path / "data")}) == 1, "all pay"
    assert ledger(settings).total() == pytest.approx(4.0)
    with refused(ConfigError, code="refused"):
        train(with_overrides(settings, {"name": "newer", "snapshot": "march"}), tmp_path / "newer")
    assert len(lines(tmp_path / "data")) == 2


def test_another_epsilon_is_another_release(tmp_path: Path) -> None:
    settings = job(tmp_path / "data", 1.0)
    train(settings, tmp_path / "first")
    foreseen = {"total": pytest.approx(2.0), "jobs": 1, "about": None}
    assert outlook_facts(ledger(settings), settings, LABEL_HOLDER) == foreseen
    assert outlook_facts(ledger(settings), settings, OTHER)["total"] == pytest.approx(1.0)
    train(with_overrides(settings, {"label_privacy.epsilon": 0.75}), tmp_path / "second")
    assert ledger(settings).total() == pytest.approx(1.75)
    with refused(ConfigError, code="refused"):
        train(with_overrides(settings, {"label_privacy.epsilon": 0.5}), tmp_path / "third")
    train(settings, tmp_path / "fourth")
    assert ledger(settings).total() == pytest.approx(1.75), "what was paid for is used again, whatever came between"


def test_what_was_kept_and_never_paid_for_is_paid_for_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = job(tmp_path / "data", 2.0, max_epsilon=2.5)

    def cut(*_: object, **__: object) -> None:
        raise RunError("the disk is full; make room", code="disk")

    with monkeypatch.context() as patch:
        patch.setattr(Account, "charge", cut)
        with refused(RunError, code="disk"):
            train(settings, tmp_path / "first")
    assert told(settings)
    assert not lines(tmp_path / "data")
    train(with_overrides(settings, {"label_privacy.epsilon": 1.0}), tmp_path / "second")
    with refused(ConfigError, code="refused"):
        train(settings, tmp_path / "third")


@pytest.mark.parametrize(
    ("changes", "limits", "says"),
    [
        ({}, {"leakage": []}, "training-nodes"),
        ({}, {"max_epsilon": 1.5}, "can cost A a total ε of 2"),
        ({}, {"epsilon_unit": "node"}, "set limits.epsilon_unit to label"),
        ({"label_privacy": None}, {"leakage": ["training-rows"]}, "label_privacy.epsilon"),
    ],
)
def test_a_party_refuses_what_its_limits_do_not_allow(
    tmp_path: Path, changes: dict[str, Any], limits: dict[str, Any], says: str
) -> None:
    settings = with_overrides(job(tmp_path / "data", **limits), changes)
    with refused(ConfigError, code="refused", party=LABEL_HOLDER) as caught:
        train(settings, tmp_path / "run")
    assert says in str(caught.value)


def test_a_split_by_classes_is_refused(tmp_path: Path) -> None:
    settings = job(tmp_path / "data")
    path = tmp_path / "data" / LABEL_HOLDER / "party.yaml"
    said = yaml.safe_load(path.read_text())
    for stratify in (True, False):
        said["nodes"]["split"] = {"train": 0.4, "val": 0.3, "test": 0.3, "stratify": stratify}
        path.write_text(yaml.safe_dump(said))
        if stratify:
            with refused(ConfigError, code="refused"):
                train(settings, tmp_path / "run")
            assert not lines(tmp_path / "data")
        else:
            train(settings, tmp_path / "again")
