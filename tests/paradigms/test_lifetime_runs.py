"""Whole jobs of one party's tables under one ledger for life."""

import csv
import json
import logging
from pathlib import Path

import pytest
import torch
import yaml

from tests import about
from tests.errors import refused
from tests.faults.runs import LABEL_HOLDER, OTHER
from tests.paradigms.exported import edited
from tests.paradigms.lifetimes import job, ledger, says
from tests.paradigms.private import released
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.core.types import Kind
from veilgraph.link.collectives import tensor_text
from veilgraph.privacy.ledger_files import FILE
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides


def given(run: Path) -> dict[str, torch.Tensor]:
    """What the label holder was given of each of the other holder's nodes, by its id."""
    rows = released(run, f"features/{OTHER}")
    predictions = (run / "parties" / LABEL_HOLDER / "predictions.csv").read_text().splitlines()
    ids = [line["id"] for line in csv.DictReader(predictions)]
    return dict(zip(ids, rows, strict=True))


def differing(first: Path, second: Path) -> list[str]:
    """The nodes of which other bytes were given."""
    before, after = given(first), given(second)
    assert before.keys() == after.keys()
    return [node for node in before if not torch.equal(before[node], after[node])]


def changed(settings: JobSettings, node: int) -> str:
    """One node of the other holder's table has another value; which node."""
    with edited((settings.data.parties or {})[OTHER].parent / "nodes.csv") as table:
        row = next(row for row in table if row["id"] == f"C{node}")
        row["x"] = str(float(row["x"]) + 3)
    return row["id"]


def test_other_jobs_of_the_same_tables_are_given_the_same_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = job(tmp_path / "data", 1.0)
    with caplog.at_level(logging.INFO, "veilgraph"):
        first = train(settings, tmp_path / "first")
    said = [text.partition(" (")[0] for text in caplog.messages if "limits.max_epsilon=1 (" in text]
    of = "ever released of a node: a total ε of {} of limits.max_epsilon=1"
    assert said == [of.format(0), of.format(1)], "its owner's log says what a refusal does not tell others"
    assert ledger(settings).total() == pytest.approx(1.0, rel=1e-8)
    second = train(with_overrides(settings, {"name": "second", "seed": 77, "train.epochs": 3}), tmp_path / "second")
    predict(second.path)
    assert differing(first.path, second.path) == []
    assert ledger(settings).total() == pytest.approx(1.0, rel=1e-8)
    with refused(BudgetSpent, party=OTHER):
        train(with_overrides(settings, {"release.features.high": 1.5}), tmp_path / "third")
    assert ledger(settings).total() == pytest.approx(1.0, rel=1e-8)


def test_a_delta_of_the_party_that_protects_none_of_its_nodes_is_refused(tmp_path: Path) -> None:
    settings = job(tmp_path / "data", 8.0)
    path = tmp_path / "data" / OTHER / "party.yaml"
    said = yaml.safe_load(path.read_text())
    nodes = len((path.parent / "nodes.csv").read_text().splitlines()) - 1
    for delta, fits in ((1 / nodes, False), (1 / (nodes + 1), True)):
        path.write_text(yaml.safe_dump(said | {"limits": {**said["limits"], "max_delta": delta}}))
        if fits:
            train(settings, tmp_path / "fits")
        else:
            with refused(ConfigError, code="refused", party=OTHER):
                train(settings, tmp_path / "refused")


def test_changed_nodes_are_sent_as_they_were_and_others_do_not_see_that_they_changed(tmp_path: Path) -> None:
    settings = job(tmp_path / "data", 2.0)
    first = train(settings, tmp_path / "first", record_views=True)
    unchanged = train(with_overrides(settings, {"name": "second"}), tmp_path / "second", record_views=True)
    node = changed(settings, 30)
    second = train(with_overrides(settings, {"name": "second"}), tmp_path / "third", record_views=True)
    assert differing(first.path, second.path) == []
    assert seen(unchanged.path) == seen(second.path)
    predict(first.path)
    lines = (tmp_path / "data" / OTHER / "ledger" / FILE).read_text().splitlines()[1:]
    assert len(lines) == 1
    train(with_overrides(settings, {"name": "new", "snapshot": "february"}), tmp_path / "new")
    lines = (tmp_path / "data" / OTHER / "ledger" / FILE).read_text().splitlines()[1:]
    assert len({json.loads(line)["cohort"] for line in lines}) == 1, "all pay"
    paid = ledger(settings).lines.cohort(json.loads(lines[0])["cohort"])
    assert len(paid) == 60, "whom both know"
    assert set(ledger(settings).keys([node]).tolist()) <= set(paid.tolist())
    assert ledger(settings).total() == pytest.approx(2.0)
    with refused(BudgetSpent, party=OTHER):
        train(with_overrides(settings, {"name": "more", "snapshot": "march"}), tmp_path / "more")


def seen(run: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Every message to whoever learns, and what hellos state beside nonces and hashes of them."""
    found = []
    for each in load_view(RunDirectory.open(run), LABEL_HOLDER).messages:
        said = ""
        if each.tag.kind is Kind.HELLO and (text := tensor_text(each.tensor())).startswith("{"):
            hello = json.loads(text)
            said = json.dumps({key: hello.get(key) for key in ("nodes", "release", "steps", "refuses")})
        found.append((f"{each.sender} {each.tag}", said, () if said else tuple(each.tensor().shape)))
    return sorted(found)


def test_what_was_released_before_about_something_else_leaves_no_room(tmp_path: Path) -> None:
    """It bounds nothing of what the limit is about now."""
    made = job(tmp_path / "data", 9.0)
    says(tmp_path / "data", LABEL_HOLDER, limits={**about.EDGES, "max_epsilon": 9.0, "leakage": []})
    edges = {"model.hops": "auto", "privacy": {"unit": "edge", "epsilon_total": 1.0, "delta": 1e-4}}
    train(with_overrides(made, edges), tmp_path / "edges")
    assert ledger(made, LABEL_HOLDER).total() == pytest.approx(1.0)
    limits = {**about.LABELS, "max_epsilon": 9.0, "leakage": list(all_revelations())}
    says(tmp_path / "data", LABEL_HOLDER, limits=limits)
    says(tmp_path / "data", OTHER, limits={"leakage": list(all_revelations())})
    labels = parse_job(
        {
            "data": made.model_dump(mode="json")["data"],
            "model": {"dim": 4},
            "train": {"epochs": 1, "patience": None},
            "label_privacy": {"epsilon": 1.0},
        }
    )
    with refused(ConfigError, code="refused", party=LABEL_HOLDER) as caught:
        train(labels, tmp_path / "labels")
    assert "does not fit what limits.max_epsilon leaves" in str(caught.value)
    assert not (tmp_path / "labels" / "parties" / LABEL_HOLDER / "model.safetensors").exists()


def reached_by(way: str, path: Path, folder: Path) -> Path:
    """Another name of a party file."""
    folder.mkdir()
    if way == "link to the file":
        (folder / "party.yaml").symlink_to(path)
        return folder / "party.yaml"
    if way == "link to a link":
        (folder / "one").symlink_to(path)
        (folder / "party.yaml").symlink_to("one")
        return folder / "party.yaml"
    if way == "link to the folder":
        (folder / "data").symlink_to(path.parent)
        return folder / "data" / "party.yaml"
    if way == "relative parts":
        return folder / ".." / path.relative_to(folder.parent).parent / ".." / path.parent.name / "party.yaml"
    (folder / "party.yaml").hardlink_to(path)
    return folder / "party.yaml"


def test_no_other_name_of_a_party_file_begins_a_new_ledger(tmp_path: Path) -> None:
    """The attack: a link to the party file has a folder of its own, and a ledger of its own there."""
    settings = job(tmp_path / "data", 1.0)
    train(settings, tmp_path / "first")
    parties = dict(settings.data.parties or {})
    other = with_overrides(settings, {"name": "other", "release.features.high": 1.5})
    for number, way in enumerate(["link to the file", "link to a link", "link to the folder", "relative parts"]):
        named = reached_by(way, parties[OTHER], tmp_path / f"other{number}")
        again = with_overrides(
            other, {"data.parties": {name: str(path) for name, path in parties.items()} | {OTHER: str(named)}}
        )
        assert ledger(again).lines.folder == ledger(settings).lines.folder, way
        with refused(BudgetSpent, party=OTHER):
            train(again, tmp_path / f"run{number}")
        assert not list((tmp_path / f"other{number}").rglob("ledger/ledger.jsonl")) or way == "link to the folder"
    named = reached_by("hard link", parties[OTHER], tmp_path / "hard")
    for path in (named, parties[OTHER]):
        with refused(ConfigError, code="hard-links"):
            Organisation.read(path, OTHER)


def test_a_linked_saved_graph_has_the_ledger_of_the_graph(tmp_path: Path) -> None:
    from tests.roles.federation import small_parties  # noqa: PLC0415
    from veilgraph.graph.party import save_party  # noqa: PLC0415
    from veilgraph.runtime.store.lifetime import check_apart, default_ledger_of, parse_ledger  # noqa: PLC0415

    (tmp_path / "elsewhere").mkdir()
    path, link = tmp_path / "b.safetensors", tmp_path / "elsewhere" / "b.safetensors"
    save_party(small_parties(2)[1], path)
    link.symlink_to(path)
    assert default_ledger_of(link).folder == default_ledger_of(path).folder
    link.unlink()
    link.hardlink_to(path)
    with refused(ConfigError, code="hard-links"):
        default_ledger_of(link)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "ledger")
    with refused(ConfigError, code="one-ledger"):
        check_apart({name: parse_ledger("ledgers", tmp_path / name, name) for name in ("ledger", "same")})
