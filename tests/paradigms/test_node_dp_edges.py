"""Runs of paradigm node-dp with noise on the learner's edges: paid once and for life, and never more than allowed."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from tests import about
from tests.errors import refused
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.local import DELTA, LEARNER, assert_same, disclosed, edges, saved, sent
from tests.paradigms.private import change_features, entries, graph, paid
from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.core.tensor_file import FolderKeeper, Record
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party, save_party
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.release_cache import OWN_RELEASE
from veilgraph.protocol.job import JobSettings
from veilgraph.report.ledgers import effect_of_releases
from veilgraph.report.page import page_html
from veilgraph.runtime.launch.jobs import load_result, predict, resume, train
from veilgraph.runtime.store.lifetime import LIMITS_FILE, default_ledger_of, lifetime_at
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

ONE, TWO = Counter(sums=1), Counter(sums=2)


def sums(run: Path) -> Tensor:
    """That the learner kept, in a run of graphs from memory."""
    found = FolderKeeper(run / "parties" / LEARNER).get(OWN_RELEASE)
    assert found is not None
    return found[0]["sums"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("unit", ["edge", "node-edges"])
def test_one_release_is_paid_whatever_comes_after(tmp_path: Path, unit: str) -> None:
    settings = saved(tmp_path / "data", edges(unit))
    run = train(settings, tmp_path / "run")
    before = run.predictions.probabilities
    for _ in range(2):
        assert torch.equal(predict(run.path).probabilities, before)
    resume(run.path)
    assert paid(run.path, LEARNER) == ONE
    (entry,) = entries(run.path, LEARNER)
    assert (entry["event"]["kind"], entry["event"]["unit"]) == ("aggregation", unit)
    assert entry["total"] == pytest.approx(3.0, rel=1e-6)
    assert run.summary["privacy"][LEARNER]["epsilon_total"] == entry["total"]
    for party in (LEARNER, SERVER):
        assert {record.kind for record in disclosed(run.path, party)} == {"hello"}, "nothing is sent of it"
    assert sent(run.path, "B") == Counter(features=1)


def test_the_ledger_has_the_noise_that_epsilon_needs(tmp_path: Path) -> None:
    """√(2K) of an edge, √(K·(D + B²)) of a node's edges, over the deviation."""
    for unit, moved in (("edge", 2.0), ("node-edges", (2 * (59 + 59)) ** 0.5)):
        run = train(saved(tmp_path / unit, edges(unit)), tmp_path / f"run {unit}").path
        (entry,) = entries(run, LEARNER)
        clips = 2.0 if unit == "edge" else 1.0
        mu = clips / entry["event"]["noise_multiplier"]
        assert gaussian_epsilon(mu, DELTA) == pytest.approx(3.0, rel=1e-3)
        assert moved / mu == pytest.approx(entry["event"]["noise_multiplier"] * moved / clips)


def test_whatever_changes_the_same_sums_are_of_use_and_cost_nothing(tmp_path: Path) -> None:
    """Sums that followed a change would tell that there was one."""
    run = train(saved(tmp_path / "data", edges()), tmp_path / "run").path
    model, before = RunDirectory.open(run).party(LEARNER).model_path.read_bytes(), predict(run).probabilities
    at = graph(run, LEARNER)
    mine = load_party(at)
    assert mine.labels is not None
    changes: dict[str, dict[str, Any]] = {
        "edges": {"edge_index": mine.edge_index.flip(0)[:, 1:]},
        "weights": {"edge_weight": torch.full((mine.num_edges,), 0.5)},
        "labels": {"labels": (mine.labels + 1) % 3},
    }
    for what, change in changes.items():
        save_party(replace(mine, **change), at)
        predict(run)
        assert paid(run, LEARNER) == ONE, what
    save_party(mine, at)
    change_features(run, "B")
    assert torch.equal(predict(run).probabilities, before), "nor do others release anew"
    assert paid(run, "B") == Counter(features=1)
    assert RunDirectory.open(run).party(LEARNER).model_path.read_bytes() == model


def limited(settings: JobSettings, most: float) -> Path:
    folder = lifetime_at(default_ledger_of((settings.data.graphs or {})[LEARNER])).lines.folder
    (folder / LIMITS_FILE).write_text(yaml.safe_dump({**about.EDGES, "max_epsilon": most}))
    return folder


def test_another_job_is_given_the_same_sums_and_other_noise_adds(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", edges())
    limited(settings, 3.2)
    train(settings, tmp_path / "one")
    again = with_overrides(settings, {"name": "again", "train.learning_rate": 0.02, "seed": 5})
    train(again, tmp_path / "again")
    lifetime = lifetime_at(default_ledger_of((settings.data.graphs or {})[LEARNER]))
    assert lifetime.total() == pytest.approx(3.0, rel=1e-6)
    assert (lifetime.about.unit, lifetime.about.neighbours) == ("edge", "replacement")  # type: ignore[union-attr]
    another = with_overrides(settings, {"privacy.epsilon_total": 2.0})
    with refused((BudgetSpent, ConfigError), party=LEARNER):
        train(another, tmp_path / "another")
    assert not (tmp_path / "another" / "parties" / "B" / "ledger.jsonl").exists() or not paid(
        tmp_path / "another", "B"
    ), "nobody pays for a job that comes to nothing"
    assert lifetime_at(default_ledger_of((settings.data.graphs or {})[LEARNER])).total() == pytest.approx(3.0, rel=1e-6)


def test_a_total_that_is_refused_ends_the_job_before_anything_is_noised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = saved(tmp_path / "data", edges())
    limited(settings, 2.9)
    drawn: list[object] = []
    monkeypatch.setattr("veilgraph.privacy.noise.gaussian", lambda *given: drawn.append(given))
    with refused((BudgetSpent, ConfigError), party=LEARNER):
        train(settings, tmp_path / "run")
    assert not drawn
    assert not paid(tmp_path / "run", LEARNER)
    assert not paid(tmp_path / "run", "B")
    assert not paid(tmp_path / "run", "C")


def test_a_node_of_too_many_neighbours_is_refused_before_there_is_a_run_and_before_anything_is_released(
    tmp_path: Path,
) -> None:
    settings = saved(tmp_path / "data", edges("node-edges"))
    low = with_overrides(settings, {"privacy.degree_bound": 3})
    with refused(ConfigError, code="refused", key="privacy.degree_bound", party=LEARNER):
        train(low, tmp_path / "low")
    assert not (tmp_path / "low").exists()


@pytest.mark.cases(1)
@pytest.mark.usefixtures("from_memory")
@pytest.mark.parametrize("when", ["kept", "paid"])
def test_killed_around_the_release_it_is_made_and_paid_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    settings, run = saved(tmp_path / "data", edges()), tmp_path / "run"
    put = FolderKeeper.put

    def cut(self: FolderKeeper, name: str, tensors: dict[str, Tensor], facts: Record) -> None:
        mine = name == OWN_RELEASE and "sums" in tensors
        if mine and when == "kept":
            raise CutError
        put(self, name, tensors, facts)
        if mine:
            raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(FolderKeeper, "put", cut)
        with pytest.raises(CutError):
            train(settings, run)
    assert not paid(run, LEARNER), "and nothing was computed from it"
    found = None if when == "kept" else sums(run)
    result = resume(run)
    assert paid(run, LEARNER) == ONE
    assert found is None or torch.equal(sums(run), found)
    assert torch.equal(predict(run).probabilities, result.predictions.probabilities)


def test_cut_in_training_it_learns_what_it_would_have_learnt(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", edges())
    whole = train(settings, tmp_path / "whole")
    run = tmp_path / "cut"
    with cut_at(5), pytest.raises(CutError):
        train(settings, run)
    assert not paid(run, LEARNER), "sums are made at the end of a training"
    assert_same(resume(run), whole)
    assert paid(run, LEARNER) == ONE
    assert lifetime_at(default_ledger_of((settings.data.graphs or {})[LEARNER])).total() == pytest.approx(3.0, rel=1e-6)


def test_the_run_and_its_page_say_what_it_is_about_and_what_it_was_worth(tmp_path: Path) -> None:
    run = train(saved(tmp_path / "data", edges()), tmp_path / "run").path
    directory = RunDirectory.open(run)
    summary = load_result(run).summary
    assert summary["without_releases"].keys() == {"val_accuracy", "test_accuracy", "changed"}
    assert effect_of_releases(summary, directory.settings)
    page = page_html(directory)
    for words in (
        "one edge: everything that a holder records between one pair of nodes",
        "whoever is given A&#39;s model, predictions or scores",
        "what one node releases at one holder, all its features together",
        "uses its own columns and labels in the clear",
    ):
        assert words in page, words
    assert "Edges are not noised" not in page
    nothing = {**summary, "without_releases": {**summary["without_releases"], "changed": 0}}
    assert "without an edge" in effect_of_releases(nothing, directory.settings)
    assert json.loads((run / "parties" / LEARNER / "ledger.json").read_text())["unit"] == "edge"
