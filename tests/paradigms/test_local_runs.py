"""Runs of paradigm node-dp: one release for all epochs, resumes and predictions, and no more than was paid for."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from veilgraph_node_dp.mechanisms import AffineFeatures, feature_mechanism
from veilgraph_node_dp.release import unpacked
from veilgraph_node_dp.settings import node_dp

from research.local import train_local_private
from tests import about
from tests.errors import refused
from tests.paradigms.cutting import CutError, cut_run, epochs_of
from tests.paradigms.local import LEARNER, assert_same, disclosed, kept, saved, sent
from tests.paradigms.private import graph, kinds_sent, ledger, lose, paid
from tests.paradigms.runs import lasting
from tests.roles.local_parties import COLUMNS, MECHANISMS, PRIVATE_LABELS, local_job, local_parties
from tests.roles.streams import streams_of
from veilgraph.core.errors import BudgetSpent, ConfigError, DataError, ProtocolError, RunError
from veilgraph.core.tensor_file import FolderKeeper, Record
from veilgraph.core.types import SERVER, Kind, Tag
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.link.view import RecordedLink
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.plain_fitting import PlainResult
from veilgraph.protocol.releases import RELEASE
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.lifetime import LIMITS_FILE, default_ledger_of, lifetime_at
from veilgraph.runtime.store.run_directory import load_tensors, save_tensors
from veilgraph.samples.shipped import with_overrides

ONE, TWO = Counter(features=1), Counter(features=2)
PREDICTED = "prediction_traffic.json"


def spent(run: Path, party: str) -> float:
    return float(json.loads((run / "parties" / party / "ledger.json").read_text())["epsilon_total"])


def spent_by(run: Path, party: str) -> list[object]:
    return [json.loads(line)["total"] for line in ledger(run, party).read_text().splitlines()[1:]]


# The twin


def twin(settings: JobSettings, learner: PartyGraph, blocks: list[AffineFeatures]) -> PlainResult:
    with streams_of(LEARNER):
        return train_local_private(
            node_dp(settings).network,
            settings.train,
            learner,
            AffineFeatures.joined([AffineFeatures(learner.features), *blocks], torch.float32),
            seed=settings.seed,
        )


@pytest.mark.parametrize("name", ["one-bit", "laplace"])
def test_a_run_is_its_plaintext_twin_on_what_the_learner_keeps(tmp_path: Path, name: str) -> None:
    settings = saved(tmp_path / "data", own=name == "one-bit", **MECHANISMS[name])
    run = train(settings, tmp_path / "run")
    assert node_dp(settings).release.features is not None
    release = node_dp(settings).release.features
    assert release is not None
    mechanism, blocks = feature_mechanism(release, COLUMNS // 2), []
    for party in settings.duties.releasing:
        values = unpacked(kept(run.path)[f"features/{party}"], 60, mechanism)
        blocks.append(AffineFeatures(values, mechanism.scale, mechanism.offset))
    plain = twin(settings, load_party(graph(run.path, LEARNER)), blocks)
    assert lasting(plain.metrics) == lasting(run.metrics)
    shared = plain.summary.keys() - {"seconds_per_step"}
    assert {key: run.summary[key] for key in shared} == {key: plain.summary[key] for key in shared}


def test_another_job_is_given_the_same_release_and_another_epsilon_adds(tmp_path: Path) -> None:
    """Over jobs and runs the holders' ledgers for life count, and bound, what their nodes perturb."""
    settings = saved(tmp_path / "data")
    lifetime = lifetime_at(default_ledger_of((settings.data.graphs or {})["B"]))
    one = train(settings, tmp_path / "one")
    other = train(with_overrides(settings, {"name": "other", "seed": 77}), tmp_path / "other")
    assert torch.equal(kept(one.path)["features/B"], kept(other.path)["features/B"])
    assert lifetime.total() == spent(one.path, "B") == 4.0
    train(with_overrides(settings, {"release.features.epsilon": 2.0}), tmp_path / "third")
    assert lifetime.total() == 6.0
    (lifetime.lines.folder / LIMITS_FILE).write_text(yaml.safe_dump({**about.NODES, "max_epsilon": 6.5}))
    with refused(BudgetSpent, party="B"):
        train(with_overrides(settings, {"release.features.epsilon": 1.0}), tmp_path / "fourth")
    assert lifetime.total() == 6.0


def test_choosing_the_hops_and_comparing_with_own_data_releases_nothing_more(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", {"model": {"hops": "auto"}})
    fixed = train(with_overrides(settings, {"model.hops": 8}), tmp_path / "fixed")
    run = train(settings, tmp_path / "run")
    for each in (fixed, run):
        assert paid(each.path, "B") == sent(each.path, "B") == ONE
        assert spent(each.path, "B") == 4.0
    assert kinds_sent(run.path, LEARNER) == kinds_sent(fixed.path, LEARNER)
    (run.path / "summary.json").unlink()
    resumed = resume(run.path)
    assert_same(run, resumed)
    assert torch.equal(predict(run.path).probabilities, run.predictions.probabilities)
    assert resumed.summary["alone"] == run.summary["alone"]
    assert run.summary["alone"][LEARNER]["hops"] in (0, 2, 4, 8)
    assert fixed.summary["alone"][LEARNER]["hops"] == 8


# One release


def test_one_release_whatever_comes_after(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", PRIVATE_LABELS)
    run = train(settings, tmp_path / "run")
    found = {record.kind: record for record in disclosed(run.path, "B") if record.to == LEARNER}
    epsilons = {kind: (record.epsilon_release, record.epsilon_total) for kind, record in found.items()}
    assert epsilons == {"hello": (None, None), "perturbed_features": (4.0, 6.0), "perturbed_labels": (2.0, 6.0)}
    for kind in ("features", "labels"):
        assert found[f"perturbed_{kind}"].protection == "noise"
        assert found[f"perturbed_{kind}"].reveals == (f"perturbed-{kind}",)
    costs = {"B": Counter(features=1, labels=1), "C": ONE}
    assert len(run.metrics) == 6
    for _ in range(2):
        assert torch.equal(predict(run.path).probabilities, run.predictions.probabilities)
    (run.path / "summary.json").unlink()
    assert_same(run, resume(run.path))
    for party, cost in costs.items():
        assert paid(run.path, party) == sent(run.path, party) == cost
        assert kinds_sent(run.path, party) == kinds_sent(run.path, party, PREDICTED) == {"hello"}
        assert spent(run.path, party) == (6.0 if "labels" in cost else 4.0)
        assert run.summary["privacy"][party]["releases"] == cost
    assert run.summary["privacy"].keys() == {"B", "C"}
    for party in (LEARNER, SERVER):
        assert {record.kind for record in disclosed(run.path, party)} == {"hello"}
        assert not ledger(run.path, party).exists()
    assert kept(run.path).keys() == {"features/B", "features/C", "labels"}
    assert epochs_of(run.path) == {"A": [6], "B": [], "C": [], SERVER: []}
    assert run.summary["test_accuracy"] is None
    assert run.predictions.probabilities.shape == (60, 3)


@contextmanager
def killed(kind: str, party: str) -> Iterator[None]:
    """A party ends just before it sends, or just before it keeps, its release."""
    with pytest.MonkeyPatch.context() as patch:
        if kind == "before it sends":
            send = RecordedLink.send

            def cut_send(self: RecordedLink, to: str, tag: Tag, tensor: Tensor) -> None:
                if self.party == party and tag.kind is Kind.PERTURBED_FEATURES:
                    raise CutError
                send(self, to, tag, tensor)

            patch.setattr(RecordedLink, "send", cut_send)
        else:
            put = FolderKeeper.put

            def cut_put(self: FolderKeeper, name: str, tensors: Mapping[str, Tensor], facts: Record) -> None:
                if name == RELEASE and self.path(name).parent.name == party:
                    raise CutError
                put(self, name, tensors, facts)

            patch.setattr(FolderKeeper, "put", cut_put)
        yield


@pytest.mark.cases(1)
@pytest.mark.parametrize(("kind", "party"), [("before it sends", "B"), ("before it keeps", LEARNER)])
def test_killed_around_the_release_it_is_paid_for_once(tmp_path: Path, kind: str, party: str) -> None:
    settings, run = saved(tmp_path / "data"), tmp_path / "run"
    with killed(kind, party), pytest.raises(CutError):
        train(settings, run)
    assert paid(run, "B") == ONE
    assert sent(run, "B") == (Counter() if kind == "before it sends" else ONE)
    result = resume(run, restart=True)  # the learner may have learnt from it meanwhile
    assert paid(run, "B") == paid(run, "C") == ONE
    assert sent(run, "B") == (ONE if kind == "before it sends" else TWO), "the same bytes"
    assert spent(run, "B") == 4.0
    assert torch.equal(predict(run).probabilities, result.predictions.probabilities)
    assert paid(run, "B") == ONE


@pytest.mark.cases(1)
@pytest.mark.parametrize("loser", [LEARNER, "B"])
def test_a_lost_release_is_sent_again_and_costs_nothing(tmp_path: Path, loser: str) -> None:
    """The one who learns may lose its file as often as it likes, and is told nothing new."""
    run = cut_run(saved(tmp_path / "data", PRIVATE_LABELS), tmp_path / "run", 5)
    before = kept(run)
    lose(run, loser)
    with refused(RunError, code="restart", party=loser):
        resume(run)
    costs = [spent_by(run, party) for party in ("B", "C")]
    for times in (2, 3):
        result = resume(run, restart=True)
        assert result.summary["started_at"] == 0
        assert [record["epoch"] for record in result.metrics] == list(range(1, 7))
        after = kept(run)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert [spent_by(run, party) for party in ("B", "C")] == costs
        assert sent(run, "C") == Counter(features=times)
        assert paid(run, "C") == ONE
        (run / "summary.json").unlink()
        lose(run, loser)


def test_whatever_changes_the_same_release_is_of_use_and_costs_nothing(tmp_path: Path) -> None:
    """A release that followed a change would tell that there was one; so would a refusal of a value out of range."""
    run = train(saved(tmp_path / "data", PRIVATE_LABELS), tmp_path / "run").path
    before, mine = predict(run).probabilities, load_party(graph(run, "B"))
    assert mine.labels is not None
    assert mine.train_mask is not None
    assert mine.val_mask is not None
    at = torch.arange(60) == int(mine.train_mask.nonzero()[0])
    changes: dict[str, dict[str, Any]] = {
        "features": {"features": mine.features.to_dense() * 0.5},
        "out of range": {"features": mine.features.to_dense() + 1000},
        "labels": {"labels": (mine.labels + 1) % 3},
        "split": {"train_mask": mine.train_mask & ~at, "val_mask": mine.val_mask | at},
    }
    for what, change in changes.items():
        save_party(replace(mine, **change), graph(run, "B"))
        assert torch.equal(predict(run).probabilities, before), what
        assert paid(run, "B") == sent(run, "B") == Counter(features=1, labels=1), what


# What is damaged


def tampered(run: Path, name: str, change: Callable[[Tensor], Tensor] | None) -> None:
    """The learner's kept release with one tensor changed, or without it."""
    path = run / "parties" / LEARNER / "release.safetensors"
    tensors, facts = load_tensors(path)
    before = tensors.pop(name)
    save_tensors(path, tensors if change is None else {**tensors, name: change(before)}, facts)


def test_a_damaged_release_is_one_clear_error_and_no_new_release(tmp_path: Path) -> None:
    whole = train(saved(tmp_path / "data", PRIVATE_LABELS), tmp_path / "whole").path

    def fails(says: str, damage: Callable[[Path], object]) -> None:
        run = tmp_path / "run"
        shutil.copytree(whole, run)
        damage(run)
        with pytest.raises(RunError, match=rf"A/release\.safetensors: {says}") as caught:
            predict(run)
        assert "\n" not in str(caught.value)
        assert paid(run, "B") == Counter(features=1, labels=1)
        shutil.rmtree(run)

    def cut(run: Path) -> None:
        path = run / "parties" / LEARNER / "release.safetensors"
        path.write_bytes(path.read_bytes()[:-50])

    fails("missing or damaged", cut)
    fails(r"damaged \(it lacks 'features/C'\); delete it", lambda run: tampered(run, "features/C", None))
    fails(r"damaged \(it lacks 'labels'\); delete it", lambda run: tampered(run, "labels", None))
    fails(r"damaged \(released features hold .*\); delete it", lambda run: tampered(run, "features/B", lambda t: t[1:]))
    fails(
        r"damaged \(released labels are no labels .*\); delete it", lambda run: tampered(run, "labels", lambda t: t + 9)
    )


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", [Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS])
def test_a_malformed_release_is_kept_by_nobody_who_learns(tmp_path: Path, kind: Kind) -> None:
    settings, run = saved(tmp_path / "data", PRIVATE_LABELS), tmp_path / "run"
    send = RecordedLink.send

    def other(self: RecordedLink, to: str, tag: Tag, tensor: Tensor) -> None:
        send(self, to, tag, tensor[1:] if tag.kind is kind else tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedLink, "send", other)
        with pytest.raises(
            ProtocolError, match=r"^A got perturbed_\w+/step 0/round 0 from B: released \w+ .*; install the same"
        ):
            train(settings, run)
    assert not (run / "parties" / LEARNER / "release.safetensors").exists()
    assert len(resume(run).metrics) == 6
    assert paid(run, "B") == Counter(features=1, labels=1)


# What is refused


def test_a_value_outside_the_range_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", low=-1.0, high=1.0)
    says = r"^party 'B': x: the value .*, outside the declared range \[-1\.0, 1\.0\]: declare a"
    with pytest.raises(DataError, match=says):
        train(settings, tmp_path / "run")
    with pytest.raises(DataError, match=says):
        train(local_job(3, low=-1.0, high=1.0), tmp_path / "run", parties=local_parties(settings))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["given", "saved"])
def test_misplaced_labels_are_refused_before_there_is_a_run(tmp_path: Path, how: str) -> None:
    settings = local_job(3, PRIVATE_LABELS)
    parties = [local_parties(local_job(3))[0], *local_parties(settings)[1:]]
    given: dict[str, Any] = {"parties": parties}
    if how == "saved":
        paths = {one.party: str(tmp_path / f"{one.party}.safetensors") for one in parties}
        for one in parties:
            save_party(one, Path(paths[one.party]))
        settings, given = local_job(3, PRIVATE_LABELS, {"data": {"dataset": None, "graphs": paths}}), {}
    with pytest.raises(ConfigError, match=r"^A refuses the job: it has labels itself, and release\.labels\.holder=B"):
        train(settings, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_more_sampled_features_than_a_holder_has(tmp_path: Path) -> None:
    settings = saved(tmp_path / "data", sampled=17)
    with refused(ConfigError, key="sampled", value=17):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
