"""Runs of paradigm node-dp with noise on the learner's edges: paid once and for life, and never more than allowed."""

from __future__ import annotations

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
from tests.paradigms.once import change_features, graph
from tests.paradigms.private import entries, ledger, paid
from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.core.keeper import FolderKeeper
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party, save_party
from veilgraph.paradigms.node_dp.private import release_plan
from veilgraph.paradigms.node_dp.settings import node_dp
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.releases import OWN_RELEASE
from veilgraph.report.page.assemble import page_html
from veilgraph.report.spent import worth
from veilgraph.run.jobs import load_result, predict, resume, train
from veilgraph.run.ledger_places import LIMITS_FILE, beside
from veilgraph.run.lifetimes import Lasting, lifetime_at, own_sums, sent_sums
from veilgraph.run.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

ONE, TWO = Counter(sums=1), Counter(sums=2)


def change_edges(run: Path) -> None:
    before = load_party(graph(run, LEARNER))
    save_party(before.with_edges(torch.arange(before.num_edges) > 1), graph(run, LEARNER))


def change_labels(run: Path, *, of_test_nodes: bool) -> None:
    before = load_party(graph(run, LEARNER))
    assert before.labels is not None
    assert before.test_mask is not None
    at = torch.arange(len(before.labels)) == int((before.test_mask == of_test_nodes).nonzero()[0])
    save_party(replace(before, labels=torch.where(at, (before.labels + 1) % 3, before.labels)), graph(run, LEARNER))


def sums(run: Path) -> Tensor:
    """That the learner kept, in a run of graphs from memory."""
    found = FolderKeeper(run / "parties" / LEARNER).get(OWN_RELEASE)
    assert found is not None
    return found[0]["sums"]


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


def test_changed_edges_and_labels_cost_and_what_is_not_learnt_from_does_not(tmp_path: Path) -> None:
    run = train(saved(tmp_path / "data", edges()), tmp_path / "run").path
    before = predict(run).probabilities
    change_labels(run, of_test_nodes=True)
    assert torch.equal(predict(run).probabilities, before)
    assert paid(run, LEARNER) == ONE
    change_features(run, "B")
    predict(run)
    assert paid(run, LEARNER) == ONE, "others' releases do not change its edges"
    assert paid(run, "B") == Counter(features=2)
    with refused(BudgetSpent, code="no-room", party=LEARNER):
        change_edges(run)
        predict(run)
    assert paid(run, LEARNER) == ONE


@pytest.mark.usefixtures("from_memory")
def test_changed_edges_are_paid_for_where_there_is_room(tmp_path: Path) -> None:
    run = train(saved(tmp_path / "data", edges(epsilon_total=4.0, predictions=1)), tmp_path / "run").path
    model = RunDirectory.open(run).party(LEARNER).model_path.read_bytes()
    before = sums(run)
    change_edges(run)
    predicted = predict(run).probabilities
    after = sums(run)
    assert not torch.equal(after, before)
    assert torch.equal(predict(run).probabilities, predicted)
    assert torch.equal(sums(run), after)
    assert paid(run, LEARNER) == TWO
    assert entries(run, LEARNER)[-1]["total"] <= 4.0
    assert RunDirectory.open(run).party(LEARNER).model_path.read_bytes() == model


@pytest.mark.usefixtures("from_memory")
def test_all_that_sums_are_made_of_counts(tmp_path: Path) -> None:
    """With a total of one release, sums of anything else are refused."""
    run = train(saved(tmp_path / "data", edges()), tmp_path / "run").path
    at = graph(run, LEARNER)
    before = load_party(at)
    assert before.labels is not None
    assert before.train_mask is not None
    assert before.val_mask is not None
    node = torch.arange(60) == int(before.train_mask.nonzero()[0])
    changes: dict[str, dict[str, Any]] = {
        "edges": {"edge_index": before.edge_index.flip(0)[:, 1:]},
        "weights": {"edge_weight": torch.full((before.num_edges,), 0.5)},
        "labels": {"labels": torch.where(node, (before.labels + 1) % 3, before.labels)},
        "split": {"train_mask": before.train_mask & ~node, "val_mask": before.val_mask | node},
        "classes": {"num_classes": 4},
        "own columns": {"features": before.features.to_dense() + 1},
    }
    for what, change in changes.items():
        save_party(replace(before, **change), at)
        with refused(BudgetSpent, code="no-room", party=LEARNER):
            predict(run)
        assert paid(run, LEARNER) == ONE, what
    save_party(before, at)
    predict(run)


def test_own_columns_cost_nothing_where_they_are_not_used(tmp_path: Path) -> None:
    for unit, used in (("node-edges", False), ("edge", True)):
        settings = saved(tmp_path / unit, edges(unit, epsilon_total=4.0, predictions=1), own=True)
        run = train(settings, tmp_path / f"run {unit}").path
        before = predict(run).probabilities
        change_features(run, LEARNER)
        assert torch.equal(predict(run).probabilities, before) == (not used)
        assert paid(run, LEARNER) == (TWO if used else ONE)


def limited(settings: JobSettings, most: float) -> Path:
    folder = lifetime_at(beside((settings.data.graphs or {})[LEARNER])).lines.folder
    (folder / LIMITS_FILE).write_text(yaml.safe_dump({**about.EDGES, "max_epsilon": most}))
    return folder


def test_another_job_is_given_the_same_sums_and_other_noise_adds(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", edges())
    limited(settings, 3.2)
    train(settings, tmp_path / "one")
    again = with_overrides(settings, {"name": "again", "train.learning_rate": 0.02, "seed": 5})
    train(again, tmp_path / "again")
    lifetime = lifetime_at(beside((settings.data.graphs or {})[LEARNER]))
    assert lifetime.total() == pytest.approx(3.0, rel=1e-6)
    assert (lifetime.about.unit, lifetime.about.neighbours) == ("edge", "replacement")  # type: ignore[union-attr]
    another = with_overrides(settings, {"privacy.epsilon_total": 2.0})
    with refused((BudgetSpent, ConfigError), party=LEARNER):
        train(another, tmp_path / "another")
    assert not (tmp_path / "another" / "parties" / "B" / "ledger.jsonl").exists() or not paid(
        tmp_path / "another", "B"
    ), "nobody pays for a job that comes to nothing"
    assert lifetime_at(beside((settings.data.graphs or {})[LEARNER])).total() == pytest.approx(3.0, rel=1e-6)


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
    run = train(settings, tmp_path / "run").path
    at = load_party(graph(run, LEARNER))
    hub = torch.stack([torch.zeros(59, dtype=torch.int64), torch.arange(1, 60)])
    more = torch.cat([at.edge_index, hub, torch.tensor([[0], [0]])], dim=1)
    assert more.shape[1] > at.num_edges
    save_party(replace(at, edge_index=more), graph(run, LEARNER))
    with refused(BudgetSpent, code="no-room", party=LEARNER):
        predict(run)
    assert paid(run, LEARNER) == ONE


@pytest.mark.usefixtures("from_memory")
def test_noise_is_of_the_system_and_not_of_the_jobs_seed(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", edges())
    one, other = (train(settings, tmp_path / name).path for name in ("one", "other"))
    assert not torch.equal(sums(one), sums(other))


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
    assert lifetime_at(beside((settings.data.graphs or {})[LEARNER])).total() == pytest.approx(3.0, rel=1e-6)


def test_a_lost_ledger_is_an_error_and_not_a_new_one(tmp_path: Path) -> None:
    run = train(saved(tmp_path / "data", edges()), tmp_path / "run").path
    ledger(run, LEARNER).unlink()
    with refused((ConfigError, Exception), key="ledger.jsonl"):  # type: ignore[arg-type]
        predict(run)
    assert not ledger(run, LEARNER).exists()


def test_the_run_and_its_page_say_what_it_is_about_and_what_it_was_worth(tmp_path: Path) -> None:
    run = train(saved(tmp_path / "data", edges()), tmp_path / "run").path
    directory = RunDirectory.open(run)
    summary = load_result(run).summary
    assert summary["without_releases"].keys() == {"val_accuracy", "test_accuracy", "changed"}
    assert worth(summary, directory.settings)
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
    assert "without an edge" in worth(nothing, directory.settings)
    assert json.loads((run / "parties" / LEARNER / "ledger.json").read_text())["unit"] == "edge"


def test_sums_for_oneself_and_sums_that_are_sent_do_not_displace_each_other(tmp_path: Path) -> None:
    settings, at = saved(tmp_path / "data", edges()), load_party(tmp_path / "data" / "A.safetensors")
    lasting = Lasting(lifetime_at(beside((settings.data.graphs or {})[LEARNER])), None)
    account, planned = lasting.account(settings, DELTA), release_plan(node_dp(settings), LEARNER, 60)
    assert planned is not None
    own, others = torch.ones(2, 2), torch.zeros(2, 2)
    own_sums(account, planned, at, lasting, FolderKeeper(tmp_path)).put("sums", own)
    sent_sums(account, settings, planned, at, lasting).put("embeddings", others)
    found = own_sums(account, planned, at, lasting, FolderKeeper(tmp_path)).get("sums")
    assert found is not None
    assert torch.equal(found, own)
