"""The file of a lifetime ledger: what is noticed of copies, changes, kills and other processes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.errors import refused
from tests.privacy.lifetime.ledgers import NODES, charge, count_of, ledger
from veilgraph.core.errors import RunError
from veilgraph.privacy.ledger_files import FILE, Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ledger"


def test_what_one_process_adds_another_sees_before_it_adds(folder, tmp_path):
    first, second = ledger(folder), ledger(folder)
    for each in (first, second, first, second, second):
        charge(each)
    assert count_of(first) == count_of(second) == count_of(ledger(folder)) == 5
    assert first.total() == second.total()


def test_a_line_is_on_the_disk_and_marked_before_the_release(folder, monkeypatch):
    opened, synced = ledger(folder), []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    charge(opened)
    assert synced[2] == (folder / FILE).stat().st_size  # after the cohort and its folder
    assert json.loads(next((folder.parent / "marks").glob("*.json")).read_text())["lines"] == 2


def test_an_older_copy_is_refused(folder, tmp_path):
    charge(opened := ledger(folder))
    shutil.copytree(folder, tmp_path / "copy")
    charge(opened)
    with refused(RunError, key=tmp_path / "copy" / FILE):
        ledger(tmp_path / "copy")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    for use in (lambda: ledger(folder), lambda: charge(opened)):
        with refused(RunError, key=folder / FILE):
            use()


def test_a_copy_that_went_on_by_itself_is_refused(folder, tmp_path):
    charge(ledger(folder))
    shutil.copytree(tmp_path, tmp_path.parent / (tmp_path.name + "-elsewhere"))
    elsewhere = tmp_path.parent / (tmp_path.name + "-elsewhere") / "ledger"
    for _ in range(2):
        charge(ledger(elsewhere))
    charge(ledger(folder))
    shutil.rmtree(folder)
    shutil.copytree(elsewhere, folder)
    with refused(RunError, key=folder / FILE):
        ledger(folder)


def test_a_ledger_that_is_gone_is_not_begun_anew(folder):
    opened = ledger(folder)
    charge(opened)
    shutil.rmtree(folder)
    with refused(RunError, key=folder / FILE):
        ledger(folder)
    with refused(RunError, key=folder / FILE):
        charge(opened)
    (mark,) = (folder.parent / "marks").glob("*.json")
    mark.unlink()
    assert count_of(ledger(folder)) == 0


def test_it_is_the_same_folder_whichever_way_leads_there(folder, tmp_path):
    charge(ledger(folder))
    (tmp_path / "link").symlink_to(folder.parent, target_is_directory=True)
    ways = [tmp_path / "link" / folder.name, folder.parent / "marks" / ".." / folder.name]
    marks = Marks(folder.parent / "marks")
    shutil.rmtree(folder)
    for way in ways:
        with refused(RunError, key=folder / FILE):
            Lifetime(way, "A", Budget(), marks)


@pytest.mark.parametrize("what", ["cohort", "mark", "empty", "party"])
def test_damage_is_one_clear_error(folder, what):
    charge(ledger(folder))
    path = folder / FILE
    if what == "cohort":
        (path,) = (folder / "cohorts").iterdir()
        path.write_bytes(path.read_bytes()[:-8])
    elif what == "mark":
        (path,) = (folder.parent / "marks").glob("*.json")
        path.write_text("{")
    elif what == "empty":
        path.write_bytes(b"")
    with refused(RunError, key=path):
        ledger(folder, party="B" if what == "party" else "A")


DAMAGED = {"kind": "gaussian", "noise_multiplier": -1.0, "neighbours": "zero-out", "unit": "node"}


@pytest.mark.parametrize("event", [{"kind": "elsewhere"}, {"kind": "gaussian", "later": 1}, DAMAGED])
def test_a_release_that_a_package_wrote_which_is_not_here_asks_for_that_and_for_no_copy(folder, event):
    """Whoever puts back an older copy for it loses what is in the newest."""
    charge(ledger(folder))
    path = folder / FILE
    first, line = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(json.loads(line) | {'event': event})}\n")
    with refused(RunError, key=path, code=None if event == DAMAGED else "unknown-event") as caught:
        ledger(folder)
    assert ("newest copy" in str(caught.value)) == (event == DAMAGED)


def test_nothing_of_a_node_s_id_is_in_it(folder: Path):
    opened = ledger(folder)
    charge(opened, ids=NODES)
    content = b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())
    assert not any(node.encode() in content for node in NODES)
    assert set(opened.keys(NODES)).isdisjoint(ledger(folder.parent / "other").keys(NODES))
