"""Horizontal holders with what is their own: tables, graphs given from Python, saved graphs."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml

from tests import nightly
from tests.errors import About, refused
from tests.paradigms.apart import apart
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.exported import edited, export, found_in, over, plain_hashes
from tests.paradigms.horizontal import MEAN, PLAIN, assert_same, job, models
from tests.paradigms.runs import lasting
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError, VeilgraphError
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph, load_party, load_party_ids, save_party
from veilgraph.link.view import read_view
from veilgraph.protocol.aligning import match_rates
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import DisclosureRecord, all_revelations
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import TrainResult, align, load_result, predict, resume, train
from veilgraph.runtime.launch.site import SiteWork
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors
from veilgraph.tables.encode import FeatureEncoding


@pytest.fixture
def parties_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what parties tell each other shows how tables differ, as across organisations."""
    monkeypatch.setattr(jobs, "check_alike", lambda job: None)


STANDARD: Settings = {"data": {"feature_scaling": "standard"}}


def change(party_file: Path, alter: Callable[[dict[str, Any]], Any]) -> None:
    content = yaml.safe_load(party_file.read_text(encoding="utf-8"))
    alter(content)
    party_file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def set_columns(table: Path, **values: str) -> None:
    with edited(table) as rows:
        for row in rows:
            row.update(values)


def values_of(table: Path) -> dict[str, list[float]]:
    with table.open(encoding="utf-8", newline="") as file:
        return {row["id"]: [float(row[name]) for name in row if name.startswith("x")] for row in csv.DictReader(file)}


def predicted(run: Path, party: str) -> dict[str, list[str]]:
    with (run / "parties" / party / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return {row[0]: row[1:] for row in list(csv.reader(file))[1:]}


def numbers(row: list[str]) -> list[float]:
    """The probabilities of a line of predictions."""
    return [float(chance) for chance in row[1:]]


def chances(row: list[str]) -> Any:
    """The same up to rounding."""
    return pytest.approx(numbers(row), abs=1e-5)


def encoding(run: Path, party: str) -> FeatureEncoding:
    return FeatureEncoding.from_json((run / "parties" / party / "encoding.json").read_text(encoding="utf-8"))


def assert_close(one: TrainResult, other: TrainResult, tolerance: float = 1e-5) -> None:
    ours, theirs = models(one), models(other)
    for party, tensors in ours.items():
        for name, tensor in tensors.items():
            assert torch.allclose(tensor, theirs[party][name], rtol=0, atol=tolerance), (party, name)


# Tables


@nightly
def test_a_run_from_tables_is_the_run_on_the_divided_data_set(tmp_path: Path) -> None:
    """Rows are in another order, so sums are too."""
    settings = job(3, PLAIN, STANDARD, {"precision": "float64"})
    parties = export(tmp_path, settings)
    ours, theirs = train(over(parties, settings), tmp_path / "tables-run"), train(settings, tmp_path / "run")
    assert_close(ours, theirs)
    for mine, reference in zip(lasting(ours.metrics), lasting(theirs.metrics), strict=True):
        assert mine == pytest.approx(reference, abs=1e-6)
    assert ours.summary["test_f1"] == pytest.approx(theirs.summary["test_f1"])
    for part in load_parts(settings.data, settings.seed):
        ids = {f"C{node:06d}": str(node) for node in part.ids.tolist()}
        mine, reference = (predicted(run.path, part.graph.party) for run in (ours, theirs))
        assert mine.keys() == ids.keys()
        assert {ids[name]: row[0] for name, row in mine.items()} == {name: row[0] for name, row in reference.items()}


@nightly
def test_scaling_is_by_the_statistics_of_all_rows_together(tmp_path: Path) -> None:
    settings = job(3, STANDARD)
    parties = export(tmp_path, settings)
    for file in parties.values():  # a column that is the same everywhere, and another that is so at each holder
        level = str(ord(file.parent.name))
        set_columns(file.parent / "nodes.csv", x0001="0.1", x0002=level)
    run = train(over(parties, settings), tmp_path / "run")
    together = np.concatenate([list(values_of(file.parent / "nodes.csv").values()) for file in parties.values()])
    found = {encoding(run.path, party) for party in parties}
    assert len({(one.fills, one.means, one.deviations) for one in found}) == 1, "equal to the bit at all holders"
    one = found.pop()
    together = together.astype(np.float32).astype(np.float64)
    assert one.means == pytest.approx(together.mean(axis=0), rel=1e-12)
    assert one.deviations[1:] == pytest.approx(together.std(axis=0)[1:], rel=1e-12)
    assert one.deviations[0] == 0
    assert one.deviations[1] > 0
    graphs = [load_party(run.path / "parties" / party / "graph.safetensors") for party in parties]
    features = torch.cat([graph.features for graph in graphs]).double()
    assert torch.allclose(features[:, 1:].mean(dim=0), torch.zeros(1, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(features[:, 1:].std(dim=0, correction=0), torch.ones(1, dtype=torch.float64), atol=1e-5)
    assert not features[:, 0].any()


def test_missing_values_get_the_mean_of_all_holders_known_ones(tmp_path: Path) -> None:
    settings = job(2, {"train": {"epochs": 2}})
    parties = export(tmp_path, settings)
    known: list[float] = []
    for file in parties.values():
        change(file, lambda content: content["nodes"]["features"][0].update(missing="mean"))
        with edited(file.parent / "nodes.csv") as rows:
            for row in rows[1 :: 2 if "A" in file.parts else 1]:
                row["x0001"] = ""
            known.extend(float(np.float32(row["x0001"])) for row in rows if row["x0001"])
    change(parties["B"], lambda content: content.update(limits={"leakage": [], "max_rounds": 2}))
    with refused(ConfigError, code="refused", key="limits.leakage", party="A"):
        train(over(parties, settings), tmp_path / "refused")
    change(parties["B"], lambda content: content["limits"].update(leakage=list(all_revelations())))
    change(parties["A"], lambda content: content["limits"]["leakage"].append("column-statistics"))
    run = train(over(parties, settings), tmp_path / "run")
    (fill,) = {encoding(run.path, party).fills[0] for party in parties}
    assert fill == pytest.approx(float(np.mean(known)), rel=1e-12)
    lines = (run.path / "parties" / "B" / "disclosures.jsonl").read_text().splitlines()
    records = {one.kind: one for one in map(DisclosureRecord.model_validate_json, lines) if one.to == "A"}
    assert records["column_sums"].messages == 1
    assert records["column_sums"].protection == "none"
    assert records["column_sums"].reveals == ("column-statistics",)
    kept = run.path / "parties" / "B" / "encoding.json"
    other = json.loads(kept.read_text())
    other["fills"][0] += 1
    kept.write_text(json.dumps(other))
    set_columns(parties["B"].parent / "nodes.csv", x0001="0.25")
    with pytest.raises(DataError, match="encode features by different trainings"):
        predict(run.path)
    for file in parties.values():
        set_columns(file.parent / "nodes.csv", x0001="")
    with refused(DataError, key="x0001"):
        train(over(parties, settings), tmp_path / "no value")


@nightly
def test_a_run_from_tables_that_was_cut_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    settings = job(2, STANDARD)
    parties = export(tmp_path, settings)
    whole = train(over(parties, settings), tmp_path / "whole")
    with cut_at(5), pytest.raises(CutError):
        train(over(parties, settings), tmp_path / "cut")
    with edited(parties["B"].parent / "nodes.csv") as rows:
        rows.reverse()  # what was collected is kept
    resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] == 4
    assert_same(whole, resumed)


@nightly
def test_who_lost_what_it_collected_makes_all_collect_anew(tmp_path: Path) -> None:
    settings = job(2)
    parties = export(tmp_path, settings)
    found = align(over(parties, settings), tmp_path / "run")
    assert found == {party: len(values_of(file.parent / "nodes.csv")) for party, file in parties.items()}

    def identities() -> set[str]:
        files = (tmp_path / "run" / "parties" / party / "alignment.json" for party in (*parties, SERVER))
        return {json.loads(file.read_text())["identity"] for file in files}

    (before,) = identities()
    (tmp_path / "run" / "parties" / "B" / "alignment.json").unlink()
    resume(tmp_path / "run")
    (after,) = identities()
    assert before != after


def test_nodes_added_after_training_are_predicted_as_trained(tmp_path: Path) -> None:
    """A copy of a node, edges and all, gets the old one's prediction: same weights, same scaling. Any id is found."""
    settings = job(2, STANDARD, {"model": {"layers": 1}})
    parties = export(tmp_path, settings)
    run = train(over(parties, settings), tmp_path / "run")
    before = {party: predicted(run.path, party) for party in parties}
    old = min(set(before["B"]) - set(before["A"]))
    folder = parties["B"].parent
    with edited(folder / "nodes.csv") as rows:
        rows += [{**row, "id": "new"} for row in rows if row["id"] == old]
        rows.append({**rows[0], "id": "far", "x0001": "1000", "label": "", "split": ""})
    with edited(folder / "edges.csv") as rows:
        rows += [
            {key: "new" if value == old else value for key, value in row.items()} for row in rows if old in row.values()
        ]
    found = predict(run.path, ids=["new", next(iter(before["A"]))])
    assert found.ids == ("new", next(iter(before["A"])))
    kinds = [
        {row["kind"] for row in json.loads((run.path / "parties" / "A" / name).read_text())}
        for name in ("traffic.json", "prediction_traffic.json")
    ]
    assert ["column_sums" in each for each in kinds] == [True, False], "predictions open no sums"
    after = predicted(run.path, "B")
    assert after.keys() == before["B"].keys() | {"new", "far"}
    assert numbers(after["new"]) == chances(after[old])
    assert numbers(after[old]) == chances(before["B"][old])
    assert f"{float(found.probabilities[0].max()):.6f}" == max(after["new"][1:])
    again = predicted(run.path, "A")
    assert again.keys() == before["A"].keys()
    assert all(numbers(row) == chances(before["A"][name]) for name, row in again.items())
    with refused(ConfigError, key="ids"):
        predict(run.path, ids=["new", "nobody"])


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (
            lambda content: content["nodes"].update(features=[{"columns": "x*", "missing": "zero"}]),
            "[AB] has no feature column like [AB]'s 'x0001', with the same missing",
        ),
        (
            lambda content: content["nodes"].update(features=[{"columns": ["x0001", "x0003", "x0002"]}]),
            r"[AB] has \d+ feature columns and [AB] \d+; all holders of this job have the same",
        ),
        (
            lambda content: content["nodes"]["label"].update(classes=["0", "2", "1"]),
            "[AB] and [AB] name different classes, or in another order; mend nodes.label.classes",
        ),
    ],
    ids=["settings", "count", "classes"],
)
def test_columns_and_classes_that_are_not_the_others_are_refused(
    alter: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = job(2)
    parties = export(tmp_path, settings)
    change(parties["B"], alter)
    with refused(DataError, code="data"):
        train(over(parties, settings), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    request.getfixturevalue("parties_alone")
    with pytest.raises(DataError, match=message) as caught:
        train(over(parties, settings), tmp_path / "run")
    assert "\n" not in str(caught.value)


KEYED: dict[str, Any] = {"train": 0.5, "val": 0.2, "test": 0.3, "stratify": False, "key": "agreed among the banks"}


@pytest.mark.usefixtures("parties_alone")
@pytest.mark.parametrize(
    "other",
    [{"key": "another one of theirs"}, {"key": None}, {"key": None, "stratify": True}, {"seed": 1}, {"test": 0.2}],
    ids=["another", "none", "by classes", "seed", "fractions"],
)
def test_holders_whose_split_keys_differ_are_refused_before_any_row_is_sent(
    other: dict[str, Any], tmp_path: Path
) -> None:
    settings = job(3)
    parties = export(tmp_path, settings)
    for file in parties.values():
        change(file, lambda content: content["nodes"].update(split=KEYED))
    change(parties["C"], lambda content: content["nodes"]["split"].update(other))
    split = over(parties, settings)
    with refused(DataError, code="other-split", key="nodes.split.key"):
        train(split, tmp_path / "run")
    with refused(DataError, code="other-split", key="nodes.split.key", party="C"):
        paradigm_of(split).data.check_tables(split)
    assert not (tmp_path / "run" / "parties" / "A" / "graph.safetensors").exists()


def test_with_one_split_key_nobody_is_trained_on_at_one_holder_and_tested_at_another(tmp_path: Path) -> None:
    """C has a split of its own choice, which says no key; the server is told of none, and no session twice the same."""
    settings = job(3, {"train": {"epochs": 1}, "data": {"partition": {"overlap": 0.5}}})
    parties = export(tmp_path, settings)
    for party in "AB":
        change(parties[party], lambda content: content["nodes"].update(split=KEYED))
        set_labels(parties[party].parent / "nodes.csv")
    told = []
    for name in ("one", "other"):
        run = RunDirectory.open(train(over(parties, settings), tmp_path / name, record_views=True).path)
        views = {party: read_view(run.party(party).views()[0]) for party in ("B", SERVER)}
        compared = [one for one in views["B"] if one.tag.kind is Kind.COLUMN_HASHES]
        splits = {one.sender: bytes(one.tensor()[2].tolist()) for one in compared}
        assert splits["A"] == splits["B"]
        assert splits["C"] == bytes(16)
        assert not any(one.tag.kind is Kind.COLUMN_HASHES for one in views[SERVER])
        told.append(splits["A"])
    assert told[0] != told[1]
    stores = [run.party(party) for party in "AB"]
    graphs = [splits_of(load_party(store.graph_path), store.ids() or ()) for store in stores]
    common = graphs[0].keys() & graphs[1].keys()
    assert {graphs[0][node] for node in common} == {0, 1, 2}
    assert all(graphs[0][node] == graphs[1][node] for node in common)


def test_shared_customers_without_a_split_key_are_said_where_all_tables_are_here(tmp_path: Path) -> None:
    settings = job(2, {"data": {"partition": {"overlap": 0.5}}})
    parties = export(tmp_path, settings)
    for file in parties.values():
        change(file, lambda content: content["nodes"].update(split={"train": 0.5, "val": 0.2, "test": 0.3}))
    shared = set.intersection(*(set(values_of(file.parent / "nodes.csv")) for file in parties.values()))
    (said,) = match_rates(over(parties, settings))
    assert said.startswith(f"{len(shared)} nodes are at several holders, and A and B may train on")
    assert "nodes.split" in said
    for file in parties.values():
        change(file, lambda content: content["nodes"].update(split=KEYED))
    assert match_rates(over(parties, settings)) == ()


def set_labels(table: Path) -> None:
    with edited(table) as rows:
        for row in rows:
            row["label"] = row["label"] or "0"


def splits_of(graph: PartyGraph, ids: Sequence[str]) -> dict[str, int]:
    """Labelled node → in which split it is."""
    masks = [mask for mask in (graph.train_mask, graph.val_mask, graph.test_mask) if mask is not None]
    return {ids[node]: split for split, mask in enumerate(masks) for node in mask.nonzero().ravel().tolist()}


@pytest.mark.usefixtures("parties_alone")
def test_only_this_partys_own_names_are_shown(tmp_path: Path) -> None:
    settings = job(2)
    parties = export(tmp_path, settings)
    width = len(next(iter(values_of(parties["B"].parent / "nodes.csv").values())))
    names = [f"x{place:04d}" for place in range(1, width + 1)]
    change(parties["A"], lambda content: content["nodes"].update(features=[{"columns": names}]))
    table = parties["B"].parent / "nodes.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("x0002", "secret"), encoding="utf-8")
    others = ["x0001", "secret", *names[2:]]
    change(parties["B"], lambda content: content["nodes"].update(features=[{"columns": others}]))
    with pytest.raises(DataError) as caught:
        train(over(parties, settings), tmp_path / "run")
    text = str(caught.value)
    assert ("B has no feature column like A's 'x0002'" in text) != ("A has no feature column like B's 'secret'" in text)


@nightly
def test_columns_in_another_order_are_the_same_columns(tmp_path: Path) -> None:
    """To the bit, in training and in a prediction of new tables."""
    settings = job(2, STANDARD, {"train": {"epochs": 2}})
    parties = export(tmp_path, settings)
    width = len(next(iter(values_of(parties["B"].parent / "nodes.csv").values())))
    names = [f"x{place:04d}" for place in range(1, width + 1)]
    listed = [{"columns": names[:3]}, {"columns": names[3:], "missing": "zero"}]
    for path in parties.values():
        change(path, lambda content: content["limits"]["leakage"].append("column-statistics"))
        change(path, lambda content: content["nodes"].update(features=listed))
    before = train(over(parties, settings), tmp_path / "before")
    mixed = [{"columns": names[:2:-1], "missing": "zero"}, {"columns": [names[1], names[2], names[0]]}]
    change(parties["B"], lambda content: content["nodes"].update(features=mixed))
    after = train(over(parties, settings), tmp_path / "after")
    assert torch.equal(after.predictions.probabilities, before.predictions.probabilities)
    set_columns(parties["B"].parent / "nodes.csv", x0001="0.25")
    now = predict(after.path).probabilities
    change(parties["B"], lambda content: content["nodes"].update(features=listed))
    assert torch.equal(now, predict(before.path).probabilities)


def test_a_party_refuses_what_it_did_not_accept(tmp_path: Path) -> None:
    settings = job(2, STANDARD)
    parties = export(tmp_path, settings)
    change(parties["B"], lambda content: content.update(limits={"leakage": list(all_revelations())}))
    with refused(ConfigError, code="refused", key="limits.max_rounds", value=1, party="B"):
        train(over(parties, settings), tmp_path / "run")
    needed = yaml.safe_load(parties["A"].read_text(encoding="utf-8"))["limits"]["leakage"]
    less = [name for name in needed if name != "column-statistics"]
    change(parties["B"], lambda content: content.update(limits={"leakage": less, "max_rounds": 2}))
    with refused(ConfigError, code="refused", key="limits.leakage", party="B"):
        train(over(parties, settings), tmp_path / "run")
    accepting = {"leakage": list(all_revelations()), "max_rounds": 2, "min_common_nodes": 10**6}
    change(parties["B"], lambda content: content.update(limits=accepting))
    train(over(parties, settings, label_holder="B"), tmp_path / "run")  # nobody learns how many are common


def test_no_id_leaves_a_holder_nor_a_hash_that_others_could_compute(tmp_path: Path) -> None:
    """In all that is sent, byte by byte: the lists that the server gets, of nodes and of edges, are under a key."""
    settings = job(2, MEAN, STANDARD, {"train": {"epochs": 1}, "data": {"partition": {"overlap": 0.5}}})
    parties = export(tmp_path, settings)
    run = RunDirectory.open(train(over(parties, settings), tmp_path / "run", record_views=True).path)
    ids = {name for file in parties.values() for name in values_of(file.parent / "nodes.csv")}
    needles = plain_hashes(ids)
    hashed, seen = next(iter(needles.items()))
    planted = b"xyz" + hashed + b"," + b"C000123" + b"?"
    assert (found_in(planted, needles), re.findall(rb"C\d{6}", planted)) == ({seen}, [b"C000123"])
    kinds = set()
    for party in (*parties, SERVER):
        (path,) = run.party(party).views()
        for message in read_view(path):
            if message.sender == party:
                content = message.tensor().contiguous().numpy().tobytes()
                kinds.add(message.tag.kind)
                assert not re.findall(rb"C\d{6}", content), message.tag
                assert not found_in(content, needles), message.tag
    assert {Kind.HELLO, Kind.NODE_LIST, Kind.EMBEDDING, Kind.COLUMN_HASHES} <= kinds


# Across organisations


@nightly
def test_every_organisation_has_its_own_result_and_predictions(tmp_path: Path) -> None:
    settings = job(3, STANDARD, {"name": "across", "train": {"epochs": 2}})
    parties = export(tmp_path, settings)
    for file in parties.values():
        change(file, lambda content: content.update(seed="job"))
    names = parse_job(settings.model_dump(mode="json") | {"data": {"holders": list(parties)} | STANDARD["data"]})
    runs = apart(tmp_path, parties, names, "align", resume=True)
    assert not any((run / "summary.json").exists() for run in runs.values())
    apart(tmp_path, parties, names, "train", resume=True)
    beside = RunDirectory.create(tmp_path / "here", over(parties, settings))
    for party, run in runs.items():
        beside.party(party).save_seed(RunDirectory.open(run).party(party).seed())
    here = resume(beside.path)
    for party in (*parties, SERVER):
        stores = (RunDirectory.open(run).party(party) for run in (runs[party], here.path))
        ours, theirs = (load_tensors(store.model_path)[0] for store in stores)
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items()), party
    for party, file in parties.items():
        result = load_result(runs[party])
        assert lasting(result.metrics) == lasting(here.metrics)
        assert result.summary["sent_bytes"].keys() == {party}
        assert result.summary["test_accuracy"] == here.summary["test_accuracy"]
        own = set(values_of(file.parent / "nodes.csv"))
        assert set(predict(runs[party]).ids or ()) == own == set(predicted(here.path, party))
        assert predict(runs[party], ids=[min(own)]).ids == (min(own),)
    assert not (runs[SERVER] / "summary.json").exists()
    foreign = set(predicted(here.path, "B")) - set(predicted(here.path, "A"))
    with refused(ConfigError, key="ids"):
        predict(runs["A"], ids=[min(foreign)])
    before = {party: load_result(runs[party]).predictions.made_at for party in parties}
    apart(tmp_path, parties, names, "predict", resume=True)
    assert all(load_result(runs[party]).predictions.made_at >= before[party] for party in parties)
    for other, work, message in (
        (names, "train", "a run 'across' is here; submit with --resume"),
        (names.model_copy(update={"seed": 77}), "train", "a run 'across' of another job is here"),
        (names.model_copy(update={"seed": 77}), "predict", "no trained run 'across' .*, but one of other settings"),
        (names.model_copy(update={"name": "untrained"}), "predict", "no trained run 'untrained'"),
    ):
        with pytest.raises(ConfigError, match=message):
            apart(tmp_path, parties, other, cast(SiteWork, work))
    assert not (tmp_path / "site A" / "untrained").exists()


# Graphs from Python, and saved


def python_parties(settings: JobSettings) -> tuple[list[PartyGraph], dict[str, Any]]:
    parts = load_parts(settings.data, settings.seed)
    return [part.graph for part in parts], {part.graph.party: part.ids for part in parts}


@nightly
def test_graphs_from_python_are_trained_as_the_data_set(tmp_path: Path) -> None:
    settings = job(3)
    graphs, ids = python_parties(settings)
    given = job(3, {"data": {"partition": {"overlap": 0.0}}})
    ours = train(given, tmp_path / "given", parties=graphs, ids={**ids, "B": ids["B"].tolist()})
    assert_same(ours, train(settings, tmp_path / "run"))
    assert RunDirectory.open(ours.path).settings.data.graphs is not None
    assert torch.equal(predict(ours.path).probabilities, ours.predictions.probabilities)
    other = set(predicted(ours.path, "C")) - set(predicted(ours.path, "A"))
    assert predict(ours.path, ids=sorted(other)[:3]).ids == tuple(sorted(other)[:3])


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (None, ConfigError, {"key": "ids"}),
        (lambda ids: {"A": ids["A"]}, ConfigError, {"key": "ids"}),
        (lambda ids: {**ids, "C": ids["A"]}, ConfigError, {"key": "ids"}),
        (lambda ids: {**ids, "B": ids["B"][1:]}, DataError, {"key": "ids", "party": "B"}),
        (lambda ids: {**ids, "B": [1, "1", *ids["B"][2:]]}, DataError, {"key": "ids", "party": "B"}),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids: Any, error: type[VeilgraphError], message: About, tmp_path: Path) -> None:
    settings = job(2, {"data": {"partition": {"overlap": 0.0}}})
    graphs, own = python_parties(settings)
    with refused(error, **message):
        train(settings, tmp_path / "run", parties=graphs, ids=None if ids is None else ids(own))
    assert not (tmp_path / "run").exists()


def test_what_is_of_the_other_paradigm_is_refused(tmp_path: Path) -> None:
    settings = job(2, {"data": {"partition": {"overlap": 0.0}}})
    graphs, ids = python_parties(settings)
    with refused(ConfigError, key="ids"):
        train(settings, tmp_path / "run", ids=ids)
    bare = replace(graphs[0], party="B", labels=None, num_classes=None, train_mask=None, val_mask=None, test_mask=None)
    with refused(ConfigError, key="ids"):
        train(parse_job({}), tmp_path / "run", parties=[graphs[0], bare], ids={"A": ids["A"], "B": ids["A"]})
    common = [graph.__class__(**{**vars(graph), "num_common": 5}) for graph in graphs]
    with refused(DataError, key="num_common", value=5, party="A"):
        train(settings, tmp_path / "run", parties=common, ids=ids)
    with refused(ConfigError, key="data"):
        train(job(2), tmp_path / "run", parties=graphs, ids=ids)
    with refused(DataError, key="holders"):
        train(settings, tmp_path / "run", parties=graphs[:1], ids=ids)


def test_saved_graphs_with_ids_are_trained_as_the_data_set(tmp_path: Path) -> None:
    settings = job(2, STANDARD)
    parts = load_parts(job(2).data, settings.seed)
    paths = {}
    for part in parts:
        paths[part.graph.party] = tmp_path / f"{part.graph.party}.safetensors"
        save_party(part.graph, paths[part.graph.party], part.ids)
        assert load_party_ids(paths[part.graph.party]) == [str(node) for node in part.ids.tolist()]
        order = part.graph.edge_index[1].argsort(stable=True)
        assert torch.equal(load_party(paths[part.graph.party]).edge_index, part.graph.edge_index[:, order])
    assert_same(train(over(paths, settings), tmp_path / "saved"), train(settings, tmp_path / "run"))
    save_party(parts[1].graph, paths["B"])
    assert load_party_ids(paths["B"]) is None
    with pytest.raises(DataError, match=r"B\.safetensors: the graph was saved without ids"):
        train(over(paths, settings), tmp_path / "without")
    with refused(DataError, key="ids", party="B"):
        save_party(parts[1].graph, paths["B"], ["a", "b"])
