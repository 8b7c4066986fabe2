"""Whole jobs of one party's tables under one ledger for life."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import about
from tests.errors import refused
from tests.faults.runs import LABEL_HOLDER, OTHER, table_job
from tests.paradigms.exported import edited
from tests.paradigms.lifetimes import job, ledger
from tests.paradigms.once import released
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.core.files import private_folder
from veilgraph.core.types import SERVER, Kind
from veilgraph.link.collectives import tensor_text
from veilgraph.privacy.ledger_files import FILE, PEOPLE, Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.session.publishers import LifetimeAccount, training_alone
from veilgraph.runtime.store.lifetime import default_marks
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides


def given(run: Path) -> dict[str, torch.Tensor]:
    """What the label holder was given of each node, by its id."""
    rows = released(run)
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
    with refused(BudgetSpent, code="no-room"):
        train(with_overrides(settings, {"privacy.clip": 0.5}), tmp_path / "third")
    assert ledger(settings).total() == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize(("seed", "same"), [("private", True), ("job", False)])
def test_what_a_release_is_made_of_follows_from_the_job_s_seed_where_a_party_says_so(
    tmp_path: Path, seed: str, same: bool
) -> None:
    """Without noise, so that rows are what their projection makes of them."""
    settings = job(tmp_path / "data", 1.0)
    quiet = with_overrides(settings, {"privacy.epsilon_total": None, "privacy.noise_multiplier": 0, "train.epochs": 1})
    path = tmp_path / "data" / OTHER / "party.yaml"
    limits = {"leakage": list(revelations(quiet))}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "limits": limits, "seed": seed}))
    runs = [train(with_overrides(quiet, {"seed": each}), tmp_path / f"{each}").path for each in (1, 2)]
    assert (differing(*runs) == []) == same


@pytest.mark.cases(1)
@pytest.mark.parametrize("delta", [5e-324, 1e-300])
def test_a_job_with_a_delta_of_its_own_choice_leaves_the_next_job_its_budget(tmp_path: Path, delta: float) -> None:
    """The least δ of any job was that of all, so that this job refused all jobs after it, for ever."""
    settings = job(tmp_path / "data", 1.01)
    cheap = {"name": "cheap", "privacy.epsilon_total": 0.02, "privacy.delta": delta, "train.epochs": 1}
    train(with_overrides(settings, cheap), tmp_path / "cheap")
    assert 0 < ledger(settings).total() < 0.01
    train(settings, tmp_path / "honest")
    assert ledger(settings).total() == pytest.approx(1.0, abs=0.01)


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


def test_two_trainings_do_not_spend_between_them_in_steps_what_is_enough_for_one(tmp_path: Path) -> None:
    steps = {"privacy.schedule": "every-step", "privacy.predictions": 2}
    last = {"train.epochs": 3, "train.select_by": "last", "train.patience": None}
    once = job(tmp_path / "data", 1.0)
    settings = with_overrides(once, steps | last)
    held = LifetimeAccount(ledger(settings), None)
    with training_alone(held, settings) as busy:
        assert not busy
        with refused(ConfigError, code="refused"):
            train(settings, tmp_path / "run")
        assert ledger(settings).total() == 0
        with training_alone(LifetimeAccount(ledger(settings), None), once) as why:
            assert not why, "what is paid for at once is of use at once"
        unlimited = Lifetime(held.ledger.lines.folder, OTHER, Budget(), Marks(default_marks()))
        with training_alone(LifetimeAccount(unlimited, None), settings) as why:
            assert not why, "there is enough for both"
    run = resume(tmp_path / "run")
    before = ledger(settings).total()
    with training_alone(LifetimeAccount(ledger(settings), None), settings):
        predict(run.path)
    assert before < ledger(settings).total() <= 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("unit", ["row", "edge", "node-edges", "node in hops"])
def test_changed_nodes_are_sent_as_they_were_and_others_do_not_see_that_they_changed(tmp_path: Path, unit: str) -> None:
    more: dict[str, Any] = {} if unit == "row" else {"unit": unit, "degree_bound": 4, "neighbours": "replacement"}
    if unit in ("node-edges", "node in hops"):
        more |= {"unit": unit.split(maxsplit=1)[0], "degree_bound": 60, "aggregation": {"hops": 1, "dim": 4}}
    settings = job(tmp_path / "data", 2.0, **more)
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
    assert len(paid) == (60 if unit == "row" else 70)
    assert set(ledger(settings).keys([node]).tolist()) <= set(paid.tolist())
    with refused(BudgetSpent, code="no-room"):
        for number in range(9):
            train(with_overrides(settings, {"name": "more", "snapshot": f"{number}"}), tmp_path / f"more{number}")


def seen(run: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Every message to the server, and what hellos state beside nonces and hashes of them."""
    found = []
    for each in load_view(RunDirectory.open(run), SERVER).messages:
        said = ""
        if each.tag.kind is Kind.HELLO and (text := tensor_text(each.tensor())).startswith("{"):
            hello = json.loads(text)
            said = json.dumps({key: hello.get(key) for key in ("nodes", "release", "steps", "refuses")})
        found.append((f"{each.sender} {each.tag}", said, () if said else tuple(each.tensor().shape)))
    return sorted(found)


def test_a_job_whose_releases_are_about_something_else_is_refused(tmp_path: Path) -> None:
    settings = job(tmp_path / "data", 9.0)
    train(settings, tmp_path / "first")
    edges = {"privacy.unit": "edge", "privacy.degree_bound": 4, "privacy.neighbours": "replacement"}
    with refused(ConfigError, key="limits.epsilon_unit", value="row"):
        train(with_overrides(settings, edges), tmp_path / "about edges")
    other = job(tmp_path / "other", 9.0, unit="edge", degree_bound=4, neighbours="replacement")
    own = private_folder(tmp_path / "other" / OTHER / "ledger")
    (own / PEOPLE).write_text("others of the same ids")
    train(other, tmp_path / "edges")
    rows = {"privacy.unit": "row", "privacy.degree_bound": None, "privacy.neighbours": "zero-out"}
    with refused(ConfigError, key="limits.epsilon_unit", value="edge"):
        train(with_overrides(other, rows), tmp_path / "about rows")
    said = tmp_path / "other" / OTHER / "party.yaml"
    said.write_text(said.read_text().replace("epsilon_unit: edge", "epsilon_unit: node"))
    with refused(BudgetSpent, code="no-room"):  # what was released before bounds nothing of a node
        train(with_overrides(other, {"privacy.unit": "node", "name": "nodes"}), tmp_path / "about nodes")


def test_what_nodes_perturb_is_sent_again_whole(tmp_path: Path) -> None:
    tables = table_job(tmp_path / "data").data
    made = parse_job(
        {
            "paradigm": "node-dp",
            "data": {"parties": tables.parties, "label_holder": LABEL_HOLDER},
            "train": {"epochs": 3},
            "release": {"features": {"epsilon": 1.0, "low": -4, "high": 4}},
        }
    )
    for party in (OTHER, LABEL_HOLDER):
        path = tmp_path / "data" / party / "party.yaml"
        said = yaml.safe_load(path.read_text())
        said["nodes"]["features"] = [{"columns": ["x", "y"], "scale": {"low": -10, "high": 10}}]
        path.write_text(yaml.safe_dump(said | {"limits": {"leakage": list(all_revelations())}}))
    first = train(made, tmp_path / "first")
    second = train(with_overrides(made, {"name": "second"}), tmp_path / "second")
    assert first.path != second.path
    assert ledger(made).total() == pytest.approx(1.0)
    changed(made, 30)
    third = train(with_overrides(made, {"name": "third"}), tmp_path / "third")
    assert ledger(made).total() == pytest.approx(1.0)
    assert features(third.path) == features(first.path)
    train(with_overrides(made, {"name": "new", "snapshot": "february"}), tmp_path / "new")
    assert ledger(made).total() == pytest.approx(2.0)


def features(run: Path) -> dict[str, list[float]]:
    """What the label holder was given of the other holder's nodes, by their ids."""
    rows = released(run, f"features/{OTHER}")
    predictions = (run / "parties" / LABEL_HOLDER / "predictions.csv").read_text().splitlines()
    return dict(zip((line["id"] for line in csv.DictReader(predictions)), rows.tolist(), strict=True))


def test_noise_in_every_hop_bounds_nothing_of_a_row(tmp_path: Path) -> None:
    """What is about an edge's clipped rows is about each row, too; sums are not clipped."""
    settings = job(tmp_path / "data", 9.0, neighbours="replacement")
    train(settings, tmp_path / "rows")
    edges = {"privacy.unit": "edge", "privacy.aggregation": {"hops": 2, "dim": 4}}
    path = tmp_path / "data" / OTHER / "party.yaml"
    said = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(said | {"limits": {**about.EDGES, "max_epsilon": 9.0, "leakage": []}}))
    with refused(BudgetSpent, code="no-room"):
        train(with_overrides(settings, edges), tmp_path / "edges")


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
    other = with_overrides(settings, {"name": "other", "privacy.clip": 0.5})
    for number, way in enumerate(["link to the file", "link to a link", "link to the folder", "relative parts"]):
        named = reached_by(way, parties[OTHER], tmp_path / f"other{number}")
        again = with_overrides(
            other, {"data.parties": {name: str(path) for name, path in parties.items()} | {OTHER: str(named)}}
        )
        assert ledger(again).lines.folder == ledger(settings).lines.folder, way
        with refused(BudgetSpent, code="no-room"):
            train(again, tmp_path / f"run{number}")
        assert not list((tmp_path / f"other{number}").rglob("ledger/ledger.jsonl")) or way == "link to the folder"
    named = reached_by("hard link", parties[OTHER], tmp_path / "hard")
    for path in (named, parties[OTHER]):
        with refused(ConfigError, code="hard-links"):
            Organisation.read(path, OTHER)


def test_a_linked_saved_graph_has_the_ledger_of_the_graph(tmp_path: Path) -> None:
    from tests.roles.federation import small_parties  # noqa: PLC0415
    from veilgraph.graph.party import save_party  # noqa: PLC0415
    from veilgraph.runtime.store.lifetime import beside, check_apart, place  # noqa: PLC0415

    (tmp_path / "elsewhere").mkdir()
    path, link = tmp_path / "b.safetensors", tmp_path / "elsewhere" / "b.safetensors"
    save_party(small_parties(2)[1], path)
    link.symlink_to(path)
    assert beside(link).folder == beside(path).folder
    link.unlink()
    link.hardlink_to(path)
    with refused(ConfigError, code="hard-links"):
        beside(link)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "ledger")
    with refused(ConfigError, code="one-ledger"):
        check_apart({name: place("ledgers", tmp_path / name, name) for name in ("ledger", "same")})
