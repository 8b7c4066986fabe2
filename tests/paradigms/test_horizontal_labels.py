"""Horizontal jobs whose holders learn from perturbed labels: what leaves them, what it costs, what is refused."""

import csv
import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import veilgraph as vg
from tests import about, nightly
from tests.cli.commands import veilgraph
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.exported import export, over
from tests.paradigms.graph_ledgers import folder_of, ledger, limited
from tests.paradigms.horizontal import models
from tests.paradigms.perturbed import (
    CLASSES,
    PRIVATE,
    SPLITS,
    assert_gradients_tell,
    brought,
    holders,
    paid,
    perturbed,
    with_others,
)
from tests.paradigms.runs import lasting
from tests.roles.federation import Settings, merge
from veilgraph.audit.attack import load_view
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.paradigms.horizontal.settings import HorizontalJob, horizontal
from veilgraph.paradigms.horizontal.twin import LayeredNetwork
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.aligning import split_by_labels
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, refusal, revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit
from veilgraph.protocol.releases import nodes_perturbed
from veilgraph.report.ledgers import outlook_facts
from veilgraph.report.page import page_html, several_html
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.session import publishers as ledgers
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.tables.settings import SplitFractions


def saved(folder: Path, graphs: Sequence[PartyGraph], *changes: Settings) -> JobSettings:
    base: Settings = {
        "paradigm": "horizontal",
        "seed": 5,
        "timeout_s": 20,
        "precision": "float64",
        "model": {"dim": 8, "server": {"dropout": 0.0}},
        "train": {"epochs": 4, "patience": None, "checkpoint_every": 2},
    }
    return parse_job(merge(base, brought(folder, graphs), *changes))


def words(text: str) -> str:
    return " ".join(text.split())


# What leaves a holder


@pytest.mark.cases(1)
@pytest.mark.usefixtures("from_memory")
@pytest.mark.parametrize("combine", ["max", "secure-max"])
def test_nothing_that_others_get_depends_on_labels_beyond_the_perturbed_ones(
    combine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit the same messages, sums and weights, where the perturbed labels come out alike; else they differ."""
    monkeypatch.setattr(LabelResponse, "release", lambda _, labels, __: torch.arange(len(labels)) % CLASSES)
    first, *rest = holders()
    change: Settings = {"model": {"combine": combine}, "train": {"select_by": "f1"}}

    def told(private: Settings) -> list[tuple[list[Any], Any, Any, Any]]:
        found = []
        for number, graph in enumerate((first, with_others(first))):
            name = f"{'private' if private else 'bare'} {number}"
            settings = saved(tmp_path / f"data {name}", [graph, *rest], change, private)
            run = train(settings, tmp_path / name, record_views=True)
            views = [load_view(RunDirectory.open(run.path), party) for party in (SERVER, "B", "C")]
            clear = [
                (each.party, seen.tag, seen.tensor())
                for each in views
                for seen in each.messages
                if seen.tag.kind in (Kind.GRADIENT, Kind.COMBINED, Kind.EMBEDDING, Kind.CONTROL)
            ]
            found.append((clear, lasting(run.metrics), models(run), (run.summary["test_f1"], run.summary["val_f1"])))
        return found

    one, other = told(PRIVATE)
    assert {tag.kind for _, tag, _ in one[0]} >= {Kind.GRADIENT, Kind.COMBINED, Kind.CONTROL}
    for ours, theirs in zip(one[0], other[0], strict=True):
        assert ours[:2] == theirs[:2]
        assert torch.equal(ours[2], theirs[2]), ours[:2]
    assert one[1] == other[1]
    assert one[1][-1]["test_accuracy"] is not None
    assert one[3] == other[3]
    for party, tensors in one[2].items():
        assert all(torch.equal(tensor, other[2][party][name]) for name, tensor in tensors.items()), party
    bare, changed = told({})
    assert bare[1] != changed[1], "without it all of this hangs on labels"
    assert not all(torch.equal(ours[2], theirs[2]) for ours, theirs in zip(bare[0], changed[0], strict=True))


@pytest.mark.usefixtures("from_memory")
def test_the_twin_learns_and_judges_the_same_from_the_same_labels(tmp_path: Path) -> None:
    graphs = holders()
    settings = saved(tmp_path / "data", graphs, {"label_privacy": {"epsilon": 1.0}})
    run = train(settings, tmp_path / "run")
    parts, first = [], 0
    for graph in graphs:
        assert graph.labels is not None
        labels = graph.labels.clone()
        labels[nodes_perturbed(graph, SPLITS)] = perturbed(run.path, graph.party)
        parts.append(HorizontalPart(replace(graph, labels=labels), torch.arange(first, first + graph.num_nodes)))
        first += graph.num_nodes

    def plain(transition: Tensor | None) -> list[dict[str, Any]]:
        model = horizontal(settings).model
        network = LayeredNetwork(
            model, settings.train, parts, seed=settings.seed, dtype=torch.float64, transition=transition
        )
        return lasting(fit(network).metrics)

    theirs = plain(LabelResponse(1.0, CLASSES).transition())
    for ours, twins in zip(lasting(run.metrics), theirs, strict=True):
        for name, value in twins.items():
            assert ours[name] == pytest.approx(value, abs=1e-5), name
    assert abs(plain(None)[-1]["train_loss"] - theirs[-1]["train_loss"]) > 1e-3, "the loss is corrected"


def gradients_at_server(folder: Path, private: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Of A's training nodes in the first step; their true labels, and those that were learned from."""
    graphs = holders(1500, 2)
    settings = saved(folder / "data", graphs, private, {"train": {"epochs": 1, "checkpoint_every": 1}})
    run = train(settings, folder / "run", record_views=True)
    view = load_view(RunDirectory.open(run.path), SERVER)
    gradient = view.received(Kind.GRADIENT, "A", 2)[0].tensor()
    mine = graphs[0]
    assert mine.labels is not None
    assert mine.train_mask is not None
    told = mine.labels.clone()
    if private:
        told[nodes_perturbed(mine, SPLITS)] = perturbed(run.path, "A")
    rows = mine.train_mask
    assert torch.equal(gradient.abs().sum(dim=1) > 0, rows), "who is trained on is not hidden"
    return gradient[rows], mine.labels[rows], told[rows]


@pytest.mark.usefixtures("from_memory")
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_gradients_tell_a_label_and_with_epsilon_no_more_than_it_allows(tmp_path: Path, epsilon: float | None) -> None:
    private: Settings = {} if epsilon is None else {"label_privacy": {"epsilon": epsilon}}
    assert_gradients_tell(*gradients_at_server(tmp_path, private), epsilon, CLASSES)


# It is paid for once


@pytest.mark.usefixtures("from_memory")
def test_every_holder_that_has_labels_pays_once_in_a_run(tmp_path: Path) -> None:
    *graphs, last = holders()
    masks: dict[str, Any] = dict.fromkeys(("labels", "num_classes", *SPLITS))
    run = train(saved(tmp_path / "data", [*graphs, replace(last, **masks)], PRIVATE), tmp_path / "run")
    for graph in graphs:
        assert graph.labels is not None
        nodes = nodes_perturbed(graph, SPLITS)
        assert len(nodes) == int(sum(int(getattr(graph, split).sum()) for split in SPLITS))
        told = perturbed(run.path, graph.party)
        assert 0.2 < float((told == graph.labels[nodes]).double().mean()) < 1
        (entry,) = paid(run.path, graph.party)
        assert entry["event"] == {"kind": "local", "epsilon": 2.0, "unit": "label"}
        assert run.summary["privacy"][graph.party]["epsilon_total"] == 2.0
    assert not (run.path / "parties" / "C" / LEDGER).exists()
    assert not (run.path / "parties" / SERVER / LEDGER).exists()
    predict(run.path)
    assert [len(paid(run.path, party)) for party in "AB"] == [1, 1]


def test_two_jobs_learn_from_the_same_labels_and_a_limit_for_life_is_of_both(tmp_path: Path) -> None:
    graphs, data = holders(), tmp_path / "data"
    settings = saved(data, graphs, PRIVATE)
    limited(folder_of(data, "A"), max_epsilon=5, **about.LABELS)

    def totals() -> list[float]:
        return [ledger(folder_of(data, party), party).total() for party in "ABC"]

    first, second = (train(settings, tmp_path / name) for name in "ab")
    assert lasting(first.metrics) == lasting(second.metrics)
    assert totals() == pytest.approx([2.0] * 3), "the second job pays nothing"
    foreseen = outlook_facts(ledger(folder_of(data, "B"), "B"), settings, "B")
    assert foreseen["total"] == pytest.approx(4.0), "of another snapshot"
    changed = [with_others(graphs[0]), *graphs[1:]]
    train(saved(data, changed, PRIVATE), tmp_path / "c")
    assert totals() == pytest.approx([2.0] * 3), "whatever has changed"
    train(saved(data, changed, PRIVATE, {"snapshot": "new"}), tmp_path / "d")
    assert totals() == pytest.approx([4.0] * 3)
    more: Settings = {"label_privacy": {"epsilon": 1.5}}
    with refused(ConfigError, code="refused", party="A"):
        train(saved(data, graphs, more), tmp_path / "e")
    assert totals() == pytest.approx([4.0] * 3), "nobody pays for what one refuses"


JOB = """
paradigm: horizontal
seed: 3
data: {dataset: digits, holders: 2, split: [0.4, 0.2, 0.4], stratify: false, partition: {by: nodes}}
model: {dim: 32, layers: 1}
train: {epochs: 15}
label_privacy: {epsilon: 2}
"""


def test_a_training_says_what_to_expect_of_true_labels(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB, encoding="utf-8")
    assert "A and B learn from perturbed labels: ε 2 of one label" in words(veilgraph("check", job).stdout)
    budget = words(veilgraph("budget", job).stdout)
    for part in ("each of A and B that has labels", "What to expect", "their ε add up"):
        assert part in budget
    said = words(veilgraph("train", job, "--out", tmp_path / "run").stdout)
    (expected,) = re.findall(r"All figures, .* Against true labels about ([0-9.]+)%", said)
    right = total = 0
    for party in "AB":
        store = RunDirectory.open(tmp_path / "run").party(party)
        graph = load_party(store.graph_path)
        lines = list(csv.DictReader((store.path / "predictions.csv").read_text(encoding="utf-8").splitlines()))
        found = torch.tensor([int(line["class"]) for line in lines])
        assert graph.labels is not None
        assert graph.test_mask is not None
        right += int((found == graph.labels)[graph.test_mask].sum())
        total += int(graph.test_mask.sum())
    assert abs(float(expected) / 100 - right / total) < 0.15, "of 700 nodes, at four standard errors"
    compared = words(veilgraph("compare", tmp_path / "run").stdout)
    assert "federated: All figures, test figures among them, compare with perturbed labels" in compared
    assert f"about {expected}% is to be expected" in compared
    assert "the others: all figures compare with true labels" in compared
    page = page_html(RunDirectory.open(tmp_path / "run"))
    for part in (
        "one label, at one holder, of a training, validation or test node",
        "Where several holders",
        "randomised response, ε 2 of",
    ):
        assert part in page
    run = RunDirectory.open(tmp_path / "run")
    assert "% against perturbed labels" not in page, "what is here is judged by true labels"
    (run.party("A").path / "predictions.safetensors").unlink()
    another = RunDirectory.open(shutil.copytree(run.path, tmp_path / "another"))
    for shown in (page_html(run), several_html([run, another]), vg.load_run(run.path)._repr_html_()):
        assert "% against perturbed labels" in shown


# Canaries


@pytest.mark.cases(1)
@pytest.mark.parametrize("leak", ["", "labels are not perturbed"])
def test_an_audit_holds_gradients_against_the_ledger(
    leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LabelResponse.release

    def release(response: LabelResponse, labels: Tensor, _: object) -> Tensor:
        """Nothing here depends on chance, nor on which holder comes first."""
        return labels.clone() if leak else whole(response, labels, fixed_secrets(labels.tolist()))

    monkeypatch.setattr(LabelResponse, "release", release)
    monkeypatch.setattr(ledgers, "system_secrets", lambda length: hashlib.shake_256(b"coins").digest(length))
    graphs = holders(1500, 2)
    settings = saved(tmp_path / "data", graphs, {"label_privacy": {"epsilon": 2.0, "canaries": 250}})
    train(settings, tmp_path / "run", record_views=True)
    kept = load_party(RunDirectory.open(tmp_path / "run").party("B").graph_path)
    assert graphs[1].labels is not None
    assert kept.labels is not None
    assert torch.equal(kept.labels, graphs[1].labels), "canaries are in what is learned from alone"
    result = audit(tmp_path / "run", AuditPlan(attacks=("epsilon",)))
    found = [each for each in result.findings if each.adversary == SERVER]
    assert {each.target for each in found} == {"A", "B"}
    for each in found:
        assert each.value is not None
        assert each.limit == 2.0
        assert (each.value.low > 2.0) == bool(leak)
        assert (each in result.failed) == bool(leak)
        assert each.value.low > 0.5, "it proves something"


# What is refused


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"data": {"partition": {"by": "labels"}}}, "label_privacy.epsilon"),
        ({"label_privacy": {"epsilon": 0}}, "label_privacy.epsilon"),
    ],
)
def test_a_job_whose_division_tells_labels_is_refused(change: Settings, key: str) -> None:
    base: Settings = {"paradigm": "horizontal", "data": {"dataset": "synthetic"}}
    HorizontalJob.model_validate(merge(base, PRIVATE))
    with refused(ValidationError, key=key):
        HorizontalJob.model_validate(merge(base, PRIVATE, change))


@nightly
def test_no_prediction_shows_whether_tables_have_changed(tmp_path: Path) -> None:
    """All are read anew for each, changed or not."""
    base: Settings = {
        "paradigm": "horizontal",
        "data": {"dataset": "synthetic", "holders": 2},
        "model": {"dim": 4},
        "train": {"epochs": 2, "patience": None},
    }
    parties = export(tmp_path, parse_job(base))
    run = train(over(parties, parse_job(merge(base, PRIVATE))), tmp_path / "run")

    def told() -> dict[tuple[str, str], int]:
        predict(run.path)
        rows = json.loads((run.path / "parties" / "B" / "prediction_traffic.json").read_text())
        return {(row["peer"], row["kind"]): row["messages"] for row in rows if row["direction"] == "received"}

    unchanged = told()
    nodes = parties["A"].with_name("nodes.csv")
    head, first, *rest = nodes.read_text().splitlines()
    name, value, *others = first.split(",")
    nodes.write_text("\n".join([head, ",".join([name, str(1 - float(value)), *others]), *rest]) + "\n")
    assert told() == unchanged


def test_a_party_file_that_splits_by_classes_takes_no_part(tmp_path: Path) -> None:
    base: Settings = {"paradigm": "horizontal", "data": {"dataset": "synthetic", "holders": 2}}
    settings = parse_job(base)
    parties = export(tmp_path, settings)
    over_tables = over(parties, parse_job(merge(base, PRIVATE)))
    for name, file in parties.items():
        own = Organisation.read(file, name).settings
        for stratify in (True, False):
            split = SplitFractions(train=0.5, val=0.2, test=0.3, stratify=stratify)
            party = own.model_copy(update={"nodes": own.nodes.model_copy(update={"split": split})})
            assert bool(split_by_labels(over_tables, party)) == stratify
            assert not split_by_labels(settings, party)


def test_what_a_limit_about_labels_bounds() -> None:
    base: Settings = {"paradigm": "horizontal", "data": {"dataset": "synthetic", "holders": 2}}
    bare, private = parse_job(base), parse_job(merge(base, PRIVATE))
    assert [paradigm_of(private).privacy.label_epsilon(private, party) for party in "AB"] == [2.0, 2.0]
    limits = LimitSettings(leakage=(), max_epsilon=2, **about.LABELS, max_rounds=2)
    reason = str(refusal(limits, private, "B", epsilon=2.0))
    assert "training-nodes (label_privacy.epsilon=2)" in reason
    assert "training-rows" not in reason, "ε bounds it"
    rest = tuple(set(revelations(private)) - {"training-rows"})
    accepting = limits.model_copy(update={"leakage": rest})
    assert refusal(accepting, private, "B") is None
    assert "total ε of 2" in str(refusal(accepting.model_copy(update={"max_epsilon": 1.5}), private, "B"))
    assert "label_privacy.epsilon" in str(refusal(accepting, bare, "B"))
    rows = accepting.model_copy(update={"epsilon_unit": "row"})
    assert "label_privacy bounds labels alone" in str(refusal(rows, private, "B"))
