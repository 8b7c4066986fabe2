"""Who asks a site whether it would take part, and wants more than that; and who answers for others.

What asks is a job that an administrator signed, at the site's process as its supervisor starts it. Beside it stands
what the first message of the same job would have told, for a check may tell no more, but that a site's own tables are
at fault.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import about
from tests.deploy.asked import EDGES, JOB_ID, NODES, PARTY, Asked, asked, job
from tests.deploy.small_project import bank_and_shop
from veilgraph.core.errors import PeerFailed
from veilgraph.core.types import Kind, Tag
from veilgraph.deploy.checking import read_checked
from veilgraph.deploy.kit import Kit, SiteFile
from veilgraph.link.collectives import tensor_text
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.consent import Entry, Journal, utc_now
from veilgraph.protocol.limits import REASON_CHARACTERS
from veilgraph.runtime.launch import site as checking
from veilgraph.runtime.launch.site import CheckAnswer, take_part
from veilgraph.runtime.store.run_directory import RunDirectory


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Kit]:
    return bank_and_shop(tmp_path_factory.mktemp("project") / "out")


@pytest.fixture
def bank(kits: Mapping[str, Kit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    shutil.rmtree(kits["bank"].consent, ignore_errors=True)
    with asked(kits["bank"], tmp_path, monkeypatch) as found:
        yield found


class Wire:
    """A link on which the first messages of a party are all that there is."""

    party = "bank"

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, to: str, tag: Tag, tensor: Any) -> None:
        assert tag.kind is Kind.HELLO
        self.sent.append(tensor_text(tensor))

    def receive(self, sender: str, tag: Tag) -> Any:
        raise PeerFailed("far enough")

    def close(self) -> None:
        """Nothing to end."""


def first_hello(bank: Asked, settings: Any) -> Hello:
    """What the bank's first message of the submitted job says."""
    wire = Wire()
    link: Any = wire
    with pytest.raises(PeerFailed):
        take_part(
            bank.kit.site.runs,
            settings,
            "bank",
            "train",
            link,
            link,
            party_file=bank.file,
            resume=False,
            job_id=JOB_ID,
            consent=bank.kit.consent,
            learning=bank.kit.learning,
        )
    (said,) = set(wire.sent)
    return Hello.model_validate_json(said)


def _as_it_is(_: Asked) -> None:
    pass


def _rounds(bank: Asked) -> None:
    bank.says(limits={"leakage": ["training-rows"], **about.NODES, "max_epsilon": 1.0})


def _used_up(bank: Asked) -> None:
    bank.says(consent={"jobs": 1})
    journal = Journal(bank.kit.consent)
    with journal.held():
        journal.append(Entry(time=utc_now(), what="job", id="1", work="train", name="other"))


def _asks(bank: Asked) -> None:
    bank.says(consent={"approval": "ask"})


def _asks_and_refuses(bank: Asked) -> None:
    bank.says(consent={"approval": "ask", "jobs": 0})


def _other_run(bank: Asked) -> None:
    RunDirectory.create(bank.kit.site.runs / "fraud", job(seed=7))


def _in_many_words(bank: Asked) -> None:
    """More than a refusal has room for."""
    bank.says(limits={"leakage": ["output-embeddings"] * 120})
    _other_run(bank)


def _scaled_twice(bank: Asked) -> None:
    features = [{"columns": ["income"], "scale": {"low": 0, "high": 1}, "missing": "mean"}]
    bank.says(nodes=PARTY["nodes"] | {"features": features})


@pytest.mark.cases(5)
@pytest.mark.parametrize(
    "change",
    [_as_it_is, _rounds, _used_up, _asks, _asks_and_refuses, _other_run, _in_many_words, _scaled_twice],
    ids=lambda each: each.__name__,
)
def test_an_answer_is_the_first_message_of_the_job(bank: Asked, change: Any) -> None:
    change(bank)
    checked, hello = bank.answer(job()), first_hello(bank, job())
    told = (checked.version, checked.job, checked.refuses, checked.waits, checked.unsaid)
    assert told == (hello.version, hello.job, hello.refuses, hello.waits, False)
    assert bool(checked.refuses) == (change not in (_as_it_is, _asks))
    assert checked.waits == (change is _asks)
    assert (len(checked.refuses) == REASON_CHARACTERS) == (change is _in_many_words)
    assert set(CheckAnswer.model_fields) == {"version", "job", "refuses", "waits", "unsaid"}


def test_a_site_that_lacks_a_library_says_so_before_it_aligns(bank: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.says(limits={"leakage": ["predicted-classes", "predicted-margins", "sealed-scores"]})
    asked = job(paradigm="sealed", trust="nobody", model={})
    assert not bank.answer(asked).refuses
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "pip install numba" in bank.answer(asked).refuses
    assert first_hello(bank, asked).refuses == bank.answer(asked).refuses


def test_a_check_makes_counts_and_asks_nothing(bank: Asked) -> None:
    """However often it is made, and whatever it comes to."""
    bank.says(consent={"jobs": 1, "jobs_per_day": 1, "alignments": 1, "approval": "ask"})
    before = bank.files()
    for _ in range(3):
        assert bank.answer(job()).waits
    assert bank.answer(job(model={"rounds": 2})).refuses
    assert bank.files() == before
    assert not bank.kit.site.runs.exists()


def test_alignments_count_where_the_job_would_begin_with_one(bank: Asked) -> None:
    _used_up(bank)  # a journal, as there is one where there are runs
    bank.says(consent={"alignments": 0})
    assert bank.answer(job()).refuses.startswith("consent.alignments=0 is used up")
    run = RunDirectory.create(bank.kit.site.runs / "fraud", job())
    store = run.party("bank")
    store.path.mkdir(parents=True, exist_ok=True)
    (store.path / "alignment.json").write_text('{"identity": "abc"}')
    aligned = bank.answer(job())
    assert (aligned.refuses, aligned.unsaid) == ("", False)


SECRET = "c17x"
FAULTS = {
    "an id twice": ("nodes.csv", NODES + f"{SECRET},1,yes\n" * 2),
    "no such column": ("nodes.csv", NODES.replace("income", SECRET)),
    "no number": ("nodes.csv", NODES + f"c40,{SECRET},yes\n"),
    "no class": ("nodes.csv", NODES + f"c40,1,{SECRET}\n"),
    "no such node": ("edges.csv", EDGES + f"c1,{SECRET}\n"),
    "no table": ("nodes.csv", ""),
}
JOBS: Mapping[str, Any] = {
    "as it is": {},
    "wide": {"model": {"dim": 64}},
    "scaled otherwise": {"data": {"holders": ["bank", "shop"], "label_holder": "bank", "feature_scaling": "none"}},
    "drawn wide": {"model": {"dim": 4, "initial": {"method": "collaborative", "init_std": 500.0}}},
    "of others' labels": {"data": {"holders": ["shop", "bank"], "label_holder": "shop"}},
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_table_is_one_bit_and_the_same_for_every_job(
    bank: Asked, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    bank.table(*FAULTS[fault])
    for changes in JOBS.values():
        assert bank.answer(job(**changes)) == CheckAnswer.withheld()
        assert FAULTS[fault][0] in caplog.text, "its operator sees where"
        caplog.clear()


def test_what_tables_hold_changes_no_answer(bank: Asked) -> None:
    """Values of which a job's own ring, or clip, or scaling, would make something are no oracle."""
    tables = {"as they are": NODES, "huge": NODES.replace(",1.5,", ",1e12,"), "fewer": "\n".join(NODES.split("\n")[:9])}
    for changes in JOBS.values():
        said = set()
        for text in tables.values():
            bank.table("nodes.csv", text)
            bank.table("edges.csv", "payer,payee\nc1,c2\n")
            said.add(bank.answer(job(**changes)).model_dump_json())
        (only,) = said
        assert '"unsaid":false' in only


def test_the_tables_are_read_by_the_party_file_alone(bank: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(checking, "describe_party", lambda *arguments: given.append(arguments))
    for changes in JOBS.values():
        bank.answer(job(**changes))
    assert len(given) == len(JOBS)
    assert all(each == given[0] for each in given)


def test_a_label_holder_without_labels_says_so_in_its_own_log(bank: Asked, caplog: pytest.LogCaptureFixture) -> None:
    bank.says(nodes={key: value for key, value in PARTY["nodes"].items() if key not in ("label", "split")})
    assert bank.answer(job()).unsaid
    assert "nodes.label" in caplog.text
    assert not bank.answer(job(**JOBS["of others' labels"])).unsaid


def test_a_party_that_forbids_checks_looks_at_nothing(bank: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    _used_up(bank)
    bank.says(limits={"allow_check": False}, consent={"approval": "ask", "jobs": 1})
    bank.table("nodes.csv", "")
    for look in ("why_occupied", "describe_party", "Consent", "kept_identity", "split_by_labels"):
        monkeypatch.setattr(checking, look, lambda *_, **__: pytest.fail("it looked"))
    (only,) = {bank.answer(job(**changes)) for changes in JOBS.values()}
    assert not only.job, "a hash of the settings answers whoever guesses them"
    assert only.refuses.startswith("limits.allow_check=false")
    assert not only.waits
    monkeypatch.undo()
    assert first_hello(bank, job()).refuses.startswith("consent.jobs=1"), "a submitted job is held as ever"


HOSTILE: dict[str, Any] = {
    "its files": {"data": {"parties": {"bank": "party.yaml", "shop": "/etc/passwd"}}},
    "a data set": {"data": {"dataset": "synthetic", "holders": 2}},
    "graphs": {"data": {"graphs": {"bank": "a.safetensors", "shop": "b.safetensors"}}},
    "a stranger": {"data": {"holders": ["bank", "stranger"], "label_holder": "bank"}},
    "the others": {"data": {"holders": ["shop", "telecom"], "label_holder": "shop"}},
    "a path": {"name": "../../x", "data": {"holders": ["bank", "shop"], "label_holder": "bank"}},
    "no settings": {"data": ["bank"]},
    "nothing": {},
}


@pytest.mark.parametrize("which", HOSTILE)
def test_a_job_that_is_none_for_this_site_is_told_nothing(
    bank: Asked, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server could have one started only if an administrator signed it."""
    for look in ("own_organisation", "why_occupied", "describe_party"):
        monkeypatch.setattr(checking, look, lambda *_, **__: pytest.fail("it looked"))
    before = bank.files()
    assert bank.answer(HOSTILE[which]) == CheckAnswer.withheld()
    assert bank.files() == before


def test_a_site_that_joined_without_a_current_list_says_so_in_its_own_log(
    bank: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    bank.kit.prepare(SiteFile(party_file=bank.file, runs=bank.kit.site.runs, current_list=True))
    assert bank.answer(job()) == CheckAnswer.withheld()
    assert "--current-list" in caplog.text


def test_what_breaks_inside_is_told_to_nobody(
    bank: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(checking, "describe_party", breaks)
    assert bank.answer(job()) == CheckAnswer.withheld()
    assert SECRET in caplog.text


# A site that answers what is no answer. For another it cannot: each signs its own (``tests/deploy/test_request``)


GARBAGE: tuple[object, ...] = (
    None,
    "",
    [],
    {"version": 8, "refuses": "x" * 2001},
    {"version": 8, "refuses": "two\nlines"},
    {"version": 8, "refuses": "\u001b[31mred"},
    {"version": "8"},
    {"version": -1},
    {"version": 8, "waits": 1},
    {"version": 8, "job": "../x"},
)


@pytest.mark.parametrize("said", GARBAGE, ids=lambda said: repr(said)[:40])
def test_what_is_no_answer_is_none(said: object) -> None:
    assert read_checked(said) == CheckAnswer.withheld()


def test_an_answer_is_read() -> None:
    """The control."""
    assert read_checked({"version": 8, "refuses": "max_epsilon"}).refuses == "max_epsilon"
