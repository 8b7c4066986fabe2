"""Whole horizontal runs on disk: as the twin has them, cut and resumed, predicting again, and what is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from docs.pages import find_page
from tests import nightly
from tests.errors import About, refused
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.horizontal import MEAN, PLAIN, SECURE, assert_same, job, models, tables
from tests.paradigms.runs import lasting
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError, VeilgraphError
from veilgraph.core.types import SERVER
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.paradigms.horizontal import paradigm as horizontal_inputs
from veilgraph.paradigms.horizontal.network import layer_widths
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.paradigms.horizontal.twin import LayeredNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.plain_fitting import fit
from veilgraph.runtime.launch.jobs import TrainResult, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory

# The result


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(job(2, PLAIN), id="synthetic"),
        pytest.param(job(3, PLAIN, {"data": {"dataset": "digits"}}), id="digits"),
        pytest.param(
            job(3, PLAIN, {"data": {"partition": {"by": "labels", "mixed": 0.5, "overlap": 0}}}), id="by labels"
        ),
        pytest.param(job(2, {"data": {"partition": {"knows": "all"}}}), id="dropout, all nodes known"),
        pytest.param(job(3, MEAN, PLAIN, {"train": {"select_by": "f1"}}), id="mean, deduplicated"),
        pytest.param(job(3, PLAIN, {"train": {"class_weights": "balanced", "select_by": "f1"}}), id="balanced"),
        pytest.param(job(3, SECURE, PLAIN, {"train": {"select_by": "last"}}), id="secure-max, last"),
    ],
)
def test_the_twin_finds_the_same_epoch_and_scores(settings: JobSettings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"precision": "float64"})
    run = train(settings, tmp_path / "run")
    parts = load_parts(settings.data, settings.seed)
    network = LayeredNetwork(horizontal(settings).model, settings.train, parts, seed=settings.seed, dtype=torch.float64)
    twin = fit(network)
    for name in ("best_epoch", "train_accuracy", "val_accuracy", "test_accuracy", "val_f1", "test_f1"):
        assert run.summary[name] == pytest.approx(twin.summary[name], abs=1e-12), name
    for ours, theirs in zip(lasting(run.metrics), lasting(twin.metrics), strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, abs=1e-5), name
    models(run)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(job(3), tmp_path_factory.mktemp("three") / "run")


# The same again


def test_a_secure_maximum_is_the_maximum(tmp_path: Path) -> None:
    server: Settings = {"model": {"server": {"batch_norm": True}}, "train": {"epochs": 4}}
    one = train(job(3, server), tmp_path / "max")
    other = train(job(3, server, SECURE), tmp_path / "secure")
    assert_same(one, other)


@pytest.mark.parametrize("variant", [pytest.param(SECURE, marks=nightly), MEAN], ids=["secure-max", "mean"])
def test_a_run_that_was_cut_goes_on_to_the_same_bits(variant: Settings, tmp_path: Path) -> None:
    """With dropout: the order of nodes at the server must not come from the session's key."""
    settings = job(3, variant, {"model": {"server": {"batch_norm": True}}, "train": {"epochs": 6}})
    whole = train(settings, tmp_path / "whole")
    with cut_at(5), pytest.raises(CutError):
        train(settings, tmp_path / "cut")
    resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] == 4
    assert_same(whole, resumed)


# What is written and refused


@pytest.mark.cases(1)
@pytest.mark.parametrize("variant", [MEAN, {"train": {"select_by": "last"}}], ids=["mean", "last"])
def test_bytes_are_those_of_the_protocol(variant: Settings, tmp_path: Path) -> None:
    """docs/explanation/protocol.md, A horizontal job."""
    settings = job(3, variant)
    run = train(settings, tmp_path / "run")
    parts = load_parts(settings.data, settings.seed)
    widths = layer_widths(horizontal(settings).model, parts[0].graph.num_features)
    header, others, epochs, classes = 60, 2, 6, 3
    weights = sum(tensor.numel() for tensor in models(run)["A"].values())
    server = 0
    for part in parts:
        nodes, name, is_mean = len(part.ids), part.graph.party, variant is MEAN
        sent = sum(4 * nodes * layer.sent + header for layer in widths)
        got = sum(4 * nodes * layer.output + header for layer in widths)
        expected = others * (32 + header) + 16 * nodes + header + others * (8 + header)
        expected += others * (72 + header) * (name == "A")
        expected += (16 * part.graph.num_edges + header + 4 * nodes + header) * is_mean
        expected += epochs * (sent + got + others * (8 * (weights + 1) + header))
        expected += (epochs + 1) * (sent + others * (8 * Classification(classes).tally_size + header))
        expected += epochs * (2 + header) * (name == "A" and settings.train.select_by != "last")
        assert sent_bytes(run, name) == expected
        server += (2 * epochs + 1) * got + epochs * sent + (part.graph.num_edges + header) * is_mean
    assert sent_bytes(run, SERVER) == server


def sent_bytes(run: TrainResult, party: str) -> int:
    rows = json.loads((run.path / "parties" / party / "traffic.json").read_text())
    return sum(row["bytes"] for row in rows if row["direction"] == "sent" and row["kind"] != "hello")


def test_the_pages_jobs_are_jobs() -> None:
    text = find_page("horizontal.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert [horizontal(parse_job(yaml.safe_load(block))).model.combine for block in blocks] == ["secure-max"]


def test_the_run_directory(tmp_path: Path) -> None:
    settings = job(2)
    run = train(settings, tmp_path / "run")
    assert RunDirectory.open(run.path).settings == settings
    own = {"model.safetensors", "result.json", "seed.json", "traffic.json", "disclosures.jsonl", "evidence.jsonl"}
    own |= {"software.jsonl"}
    kept = {f"checkpoints/{name}" for name in ("common.json", "epoch-000006.safetensors")}
    of_holders = {"alone.json", "graph.safetensors", "nodes.safetensors", "predictions.csv", "predictions.safetensors"}
    expected = {"job.yaml", "metrics.jsonl", "summary.json", "traffic.json"}
    for party in ("A", "B", SERVER):
        expected |= {f"parties/{party}/{name}" for name in own | kept | (of_holders if party != SERVER else set())}
    assert {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()} == expected
    assert [record["epoch"] for record in run.metrics] == list(range(1, 7))


def one_column_less(part: HorizontalPart) -> HorizontalPart:
    return replace(part, graph=replace(part.graph, features=part.graph.features.to_dense()[:, 1:].contiguous()))


def one_class_more(part: HorizontalPart) -> HorizontalPart:
    return replace(part, graph=replace(part.graph, num_classes=(part.graph.num_classes or 0) + 1))


def one_id_twice(part: HorizontalPart) -> HorizontalPart:
    return replace(part, ids=torch.cat([part.ids[:1], part.ids[:-1]]))


def without_labels(part: HorizontalPart) -> HorizontalPart:
    masks: dict[str, Any] = dict.fromkeys(("labels", "num_classes", "train_mask", "val_mask", "test_mask"))
    return replace(part, graph=replace(part.graph, **masks))


@pytest.mark.parametrize(
    ("change", "at", "message"),
    [
        (one_column_less, "B", {"key": "holders"}),
        (one_class_more, "C", {"key": "holders"}),
        (one_id_twice, "B", {"code": "node-twice", "party": "B"}),
        (without_labels, "ABC", {"key": "labels"}),
    ],
)
def test_holders_that_do_not_fit_are_refused(
    change: Callable[[HorizontalPart], HorizontalPart],
    at: str,
    message: About,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = job(3)
    parts = [change(part) if part.graph.party in at else part for part in load_parts(settings.data, settings.seed)]
    monkeypatch.setattr(horizontal_inputs, "load_parts", lambda data, seed: parts)
    with refused(DataError, **message) as caught:
        train(settings, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_holders_without_labels_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = job(3)
    parts = load_parts(settings.data, settings.seed)
    parts = [without_labels(part) if part.graph.party == "A" else part for part in parts]
    monkeypatch.setattr(horizontal_inputs, "load_parts", lambda data, seed: parts)
    run = train(settings, tmp_path / "run")
    assert run.summary["val_accuracy"] > 1 / 3
    assert len(tables(run)["A"].splitlines()) == 1 + len(parts[0].ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"privacy": {"unit": "edge", "epsilon_total": 1.0}},
            "privacy='given' with paradigm=horizontal: it is for paradigms sealed and node-dp",
        ),
        ({"model": {"rounds": 4}}, "model.rounds is not a setting"),
        ({"data": {"dataset": None, "holders": ["A", "B"]}}, "partition divides a data set, and holders are given alr"),
        ({"model": {"update": "difference"}}, "Proposition in section 4.2.2"),
        ({"model": {"aggregate": "mean"}}, "counts an edge once for every holder that has it"),
        ({"paradigm": "vertical"}, "data.partition divides a data set for paradigm='horizontal'; leave it out"),
    ],
)
def test_settings_that_are_not_of_the_paradigm(change: Settings, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(2, change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    with refused(VeilgraphError, code="not-finite", key="combined/step 1/round 1", party="server"):
        train(job(2, {"train": {"learning_rate": 1e30}}), tmp_path / "run")
