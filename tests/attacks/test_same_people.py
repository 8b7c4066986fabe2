"""A budget for life that a new folder would reset: the same people in another ledger are recognised.

Once a month an organisation exports its customers into a folder of that month, and runs a job there. Without marks that
know people each folder has a ledger of its own, and every run says that the total is that of one job.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests import nightly
from tests.errors import refused
from tests.faults.runs import OTHER
from tests.paradigms.lifetimes import job, ledger
from veilgraph.core.errors import RunError
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.ledger_files import MOST_HASHES, PEOPLE, Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.session.publishers import LifetimeAccount
from veilgraph.samples.shipped import with_overrides

IDS = [f"C{number:05}" for number in range(400)]
EVENT = GaussianEvent(5.0)


def month(root: Path, folder: str, ids: list[str], *, party: str = "bank", people: str | None = None) -> Lifetime:
    """What a job does before it releases, and its one release."""
    if people is not None:
        (root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / folder / PEOPLE).write_text(people)
    found = Lifetime(root / folder, party, Budget(), Marks(root / "marks"))
    LifetimeAccount(found, ids).ledger.lines.check_people(ids)
    found.charge(EVENT, "embeddings", 1, found.keys(ids), delta=1e-5, run="ab" * 32, job=folder)
    return found


SAME = {
    "all": IDS,
    "in another order": IDS[::-1],
    "one month's": IDS[100:130],
    "a single one": IDS[7:8],
    "with others": IDS + [f"D{number}" for number in range(1000)],
    "half of them others": IDS[:200] + [f"D{number}" for number in range(200)],
    "written in another way": [f" {each.lower()} " for each in IDS],
}


@pytest.mark.parametrize("how", SAME)
@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_the_same_people_in_a_new_folder_are_recognised(tmp_path: Path, how: str, gone: bool) -> None:
    month(tmp_path, "january", IDS)
    if gone:
        shutil.rmtree(tmp_path / "january")
    with refused(RunError, code="same-people", key=tmp_path / "january"):
        month(tmp_path, "february", SAME[how])
    with refused(RunError, code="same-people"):
        month(tmp_path, "march", SAME[how])


def test_one_ledger_goes_on_wherever_the_tables_are_and_learns_who_is_new(tmp_path: Path) -> None:
    month(tmp_path, "january", IDS[:200])
    assert month(tmp_path, "january", IDS[200:]).nodes == 400
    for ids in (IDS[:200], IDS[200:]):
        with refused(RunError, code="same-people"):
            month(tmp_path, "march", ids)


OTHERS = {
    "other ids": [f"D{number}" for number in range(400)],
    "a few of the same": IDS[:20] + [f"D{number}" for number in range(380)],
}


@pytest.mark.parametrize("who", OTHERS)
def test_other_people_have_a_ledger_of_their_own(tmp_path: Path, who: str) -> None:
    month(tmp_path, "january", IDS)
    month(tmp_path, "others", OTHERS[who])


def test_other_people_of_the_same_ids_are_named(tmp_path: Path) -> None:
    numbers = [str(number) for number in range(300)]
    month(tmp_path, "customers", numbers)
    with refused(RunError, code="same-people"):
        month(tmp_path, "merchants", numbers)
    month(tmp_path, "merchants", numbers, people="merchants\n")
    month(tmp_path, "customers", numbers)
    with refused(RunError, code="same-people", key=tmp_path / "merchants"):
        month(tmp_path, "merchants in may", numbers, people="merchants")
    month(tmp_path, "another bank", numbers, party="another")


def test_a_ledger_without_a_release_is_in_nobodys_way(tmp_path: Path) -> None:
    begun = Lifetime(tmp_path / "begun", "bank", Budget(), Marks(tmp_path / "marks"))
    begun.lines.check_people(IDS)
    month(tmp_path, "january", IDS)
    with refused(RunError, code="same-people"):
        begun.lines.check_people(IDS)


@nightly
def test_a_part_of_many_people_is_recognised_and_a_sketch_stays_small(tmp_path: Path) -> None:
    marks, many = Marks(tmp_path / "marks"), [f"C{number}" for number in range(3 * MOST_HASHES)]
    found = Lifetime(tmp_path / "many", "bank", Budget(), marks)
    found.lines.check_people(many)
    found.charge(EVENT, "embeddings", 1, found.keys(IDS), delta=1e-5, run="ab" * 32, job="job")
    (path,) = (tmp_path / "marks").glob("*.people")
    assert path.stat().st_size == 8 * MOST_HASHES
    for ids in (many[:60], many[-MOST_HASHES:], [*many, "new"]):
        with refused(RunError, code="same-people"):
            month(tmp_path, "later", ids)
    month(tmp_path, "others", [f"D{number}" for number in range(200)])


def test_nothing_of_an_id_is_in_a_sketch_and_another_machine_knows_nothing(tmp_path: Path) -> None:
    marks, others = Marks(tmp_path / "marks"), Marks(tmp_path / "elsewhere")
    one, other = marks.sketch("bank/", IDS), others.sketch("bank/", IDS)
    assert len(one) == len(other) == len(IDS)
    assert not len(np.intersect1d(one, other))
    assert not len(np.intersect1d(one, marks.sketch("bank/merchants", IDS)))


@pytest.mark.parametrize("name", ["key", "people"])
def test_damage_is_one_clear_error(tmp_path: Path, name: str) -> None:
    month(tmp_path, "january", IDS)
    (path,) = [each for each in (tmp_path / "marks").iterdir() if each.name.endswith(name)]
    path.write_bytes(path.read_bytes()[:-1])
    with refused(RunError, key=path):
        month(tmp_path, "february", IDS)


def test_a_monthly_export_pays_from_one_ledger_or_is_refused(tmp_path: Path) -> None:
    january = job(tmp_path / "january", 4.0)
    train(january, tmp_path / "run")
    february = job(tmp_path / "february", 4.0)
    assert ledger(february).total() == 0
    with refused(RunError, code="same-people", key=tmp_path / "january" / OTHER / "ledger"):
        train(february, tmp_path / "second")
    path = tmp_path / "february" / OTHER / "party.yaml"
    said = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(said | {"ledger": str(tmp_path / "january" / OTHER / "ledger")}))
    train(with_overrides(february, {"snapshot": "february"}), tmp_path / "third")
    assert ledger(february).total() == ledger(january).total() == pytest.approx(2.0)
