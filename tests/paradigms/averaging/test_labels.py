"""Averaging jobs whose holders learn from perturbed labels: what they add to sums, what it costs, what is refused."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from veilgraph_averaging.aggregation.summing import SummingHolder
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.twin import alone

from tests import about
from tests.errors import refused
from tests.paradigms.averaging.jobs import job
from tests.paradigms.averaging.private_jobs import job as private_job
from tests.paradigms.exported import export, over
from tests.paradigms.perturbed import CLASSES, PRIVATE, SPLITS, brought, holders, paid, perturbed, with_others
from tests.paradigms.runs import lasting
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import corrected_losses
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, refusal, revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.releases import nodes_perturbed
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.lifetime import lifetime_of


def saved(folder: Path, graphs: Sequence[PartyGraph], *changes: Settings) -> AveragingJob:
    base = job(*changes).model_dump(mode="json")
    found = parse_job({**base, "data": brought(folder, graphs)["data"]})
    assert isinstance(found, AveragingJob)
    return found


@pytest.mark.usefixtures("from_memory")
def test_nothing_that_is_added_to_a_sum_depends_on_labels_beyond_the_perturbed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, before a mask is on it; without it all of it hangs on labels. A prediction adds nothing."""
    monkeypatch.setattr(LabelResponse, "release", lambda _, labels, __: torch.arange(len(labels)) % CLASSES)
    add, added = SummingHolder.add, list[Tensor]()

    def noting(self: SummingHolder, number: int, values: Tensor, *rest: Any) -> bool:
        added.append(values.clone())
        return add(self, number, values, *rest)

    monkeypatch.setattr(SummingHolder, "add", noting)
    first, *rest = holders()

    def told(private: Settings) -> list[list[Tensor]]:
        found = []
        for number, graph in enumerate((first, with_others(first))):
            name = f"{'private' if private else 'bare'} {number}"
            run = train(saved(tmp_path / f"data {name}", [graph, *rest], private), tmp_path / name)
            predict(run.path)
            found.append(sorted(added, key=lambda values: (len(values), values.tolist())))
            added.clear()
        return found

    ours, theirs = told(PRIVATE)
    assert len(ours) == len(theirs) == 3 * (4 + 4 + 1), "weights and scores of four rounds, of the best"
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    ours, theirs = told({})
    assert sum(not torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)) >= 9


@pytest.mark.usefixtures("from_memory")
def test_the_twin_learns_and_judges_the_same_from_the_same_labels(tmp_path: Path) -> None:
    graphs = holders()
    settings = saved(tmp_path / "data", graphs, {"label_privacy": {"epsilon": 1.0}})
    run = train(settings, tmp_path / "run")
    learned = []
    for graph in graphs:
        assert graph.labels is not None
        labels = graph.labels.clone()
        labels[nodes_perturbed(graph, SPLITS)] = perturbed(run.path, graph.party)
        learned.append(replace(graph, labels=labels))
        assert len(paid(run.path, graph.party)) == 1
        assert run.summary["privacy"][graph.party]["unit"] == "label"
    twin, uncorrected = (
        PlainAveraging(each, learned) for each in (settings, settings.model_copy(update={"label_privacy": None}))
    )
    losses = [twin.round(number) for number in range(1, settings.train.epochs + 1)]
    for ours, theirs in zip(run.metrics, losses, strict=True):
        assert ours["loss"] == pytest.approx(theirs, abs=1e-6)
    last, scores = run.metrics[-1], twin.scores().record()
    for name in ("val_loss", "val_accuracy", "test_accuracy"):
        assert last[name] == pytest.approx(scores[name], abs=1e-5), name
    by_hand = [
        corrected_losses(twin.infer(graph.party)[rows], graph.labels[rows], LabelResponse(1.0, CLASSES).transition())
        for graph in learned
        if graph.labels is not None and (rows := graph.val_mask) is not None
    ]
    assert last["val_loss"] == pytest.approx(float(torch.cat(by_hand).mean()), abs=1e-5)
    assert abs((uncorrected.round(1) or 0) - (losses[0] or 0)) > 1e-3, "the loss is corrected"


def test_what_a_holder_has_by_itself_is_of_true_labels(tmp_path: Path) -> None:
    graphs = holders()
    settings = saved(tmp_path / "data", graphs, PRIVATE)
    bare = settings.model_copy(update={"label_privacy": None})
    ours, theirs = (alone(each, graphs[0], lambda _: None) for each in (settings, bare))
    assert ours is not None
    assert theirs is not None
    assert lasting(ours.metrics) == lasting(theirs.metrics)


def test_a_prediction_tells_scores_and_perturbs_no_label_again(tmp_path: Path) -> None:
    base = job({"data": {"holders": 2}, "train": {"epochs": 1}})
    parties = export(tmp_path, base)
    settings = averaging(parse_job({**over(parties, base).model_dump(mode="json"), **PRIVATE}))
    run = train(settings, tmp_path / "run")

    def totals() -> list[float]:
        return [lifetime_of(Organisation.read(file, party)).total() for party, file in parties.items()]

    predict(run.path)
    assert totals() == pytest.approx([2.0, 2.0])
    nodes = parties["A"].parent / "nodes.csv"
    with nodes.open(newline="") as file:
        rows = list(csv.DictReader(file))
    trained = next(row for row in rows if row["split"] == "train")
    trained["label"] = next(row["label"] for row in rows if row["label"] not in ("", trained["label"]))
    with nodes.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    predict(run.path)
    assert totals() == pytest.approx([2.0, 2.0]), "or the others would see that a label changed"


# What is refused


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"averaging": {"task": {"name": "values"}}}, "label_privacy.epsilon"),
        ({"label_privacy": {"canaries": 5}}, "label_privacy.canaries"),
        ({"data": {"partition": {"by": "labels"}}}, "label_privacy.epsilon"),
    ],
)
def test_what_it_does_not_go_with_is_refused(change: Settings, key: str) -> None:
    base: Settings = {"paradigm": "averaging", "data": {"dataset": "synthetic", "holders": 3}}
    AveragingJob.model_validate(merge(base, PRIVATE))
    with refused(ValidationError, key=key):
        AveragingJob.model_validate(merge(base, PRIVATE, change))


def test_a_private_training_covers_labels_and_takes_none_that_are_perturbed() -> None:
    content = {**private_job().model_dump(mode="json"), **PRIVATE}
    with refused(ValidationError, key="label_privacy.epsilon"):
        AveragingJob.model_validate(content)


def test_a_split_by_classes_is_refused_and_a_limit_about_labels_bounds_it() -> None:
    base: Settings = {"paradigm": "averaging", "data": {"dataset": "synthetic", "holders": 3}}
    private = parse_job(merge(base, PRIVATE))
    with refused(ConfigError, key="data.split", party="A"):
        paradigm_of(private).data.load(private)
    paradigm_of(private).data.load(parse_job(base))
    accepting = LimitSettings(leakage=tuple(revelations(private)), max_epsilon=2, **about.LABELS)
    assert refusal(accepting, private, "B") is None
    assert "total ε of 2" in str(refusal(accepting.model_copy(update={"max_epsilon": 1.5}), private, "B"))
    assert refusal(accepting, parse_job(base), "B") is not None
    edges = accepting.model_copy(update={"epsilon_unit": "node-edges"})
    assert "label_privacy bounds labels alone" in str(refusal(edges, private, "B"))
