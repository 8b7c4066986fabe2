"""What a party, or whoever gets at its disk, does to its records: noticed by ``verify``, by the others, or by both.

The parties are sites with certificates of one project, each with a run directory of its own, over the in-memory link.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest
from torch import Tensor

from tests import nightly
from tests.attacks.machines import HOST, JOB, PARTIES, Sites, made, never_released
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.link.certificates import Project
from veilgraph.core.chain import digest
from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.types import SERVER, Kind, Link, Tag
from veilgraph.link.collectives import tensor_text, text_tensor
from veilgraph.link.identity import Identity
from veilgraph.link.statement import Countersignature, Statement
from veilgraph.link.wrapper import Wrapper
from veilgraph.protocol.job import write_job
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.session.exchange import Opening, PeerHeads, RecordExchange, Verdict
from veilgraph.runtime.store.records import verify
from veilgraph.runtime.store.run_directory import RunDirectory

DISCLOSURES, LEDGER, EVIDENCE = "disclosures.jsonl", "ledger.jsonl", "evidence.jsonl"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """After a training and a prediction; ``after train`` has what was there in between."""
    folder = tmp_path_factory.mktemp("sites")
    sites = made(folder, 8.0)
    sites.session("train")
    shutil.copytree(sites.folder, folder / "after train")
    sites.session("predict")
    return sites


@pytest.fixture
def sites(original: Sites, tmp_path: Path) -> Sites:
    shutil.copytree(original.folder, tmp_path / "now")
    shutil.copytree(original.data, tmp_path / "data")
    return Sites(tmp_path / "now", tmp_path / "data", original.project, original.identities)


@pytest.fixture
def earlier(original: Sites) -> Sites:
    return Sites(original.folder.parent / "after train", original.data, original.project, original.identities)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rechained(content: list[bytes]) -> bytes:
    """The lines with the chain made anew, as whoever changes one would."""
    previous, made = "", b""
    for number, line in enumerate(content):
        text = json.loads(line)
        if number or "previous" in text:
            text["previous"] = previous
        encoded = json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode()
        previous = digest(encoded)
        made += encoded + b"\n"
    return made


def changed(path: Path, change: Callable[[list[bytes]], list[bytes]], *, chained: bool) -> None:
    content = change(lines(path))
    path.write_bytes(rechained(content) if chained else b"".join(content))


def fewer_messages(content: list[bytes]) -> list[bytes]:
    text = json.loads(content[2])
    return [*content[:2], json.dumps(text | {"messages": text["messages"] - 1}).encode() + b"\n", *content[3:]]


def cheaper(content: list[bytes]) -> list[bytes]:
    text = json.loads(content[-1])
    return [*content[:-1], json.dumps(text | {"total": text["total"] / 2}).encode() + b"\n"]


def swapped(content: list[bytes]) -> list[bytes]:
    return [*content[:1], content[2], content[1], *content[3:]]


def without_last(content: list[bytes]) -> list[bytes]:
    return content[:-1]


def without_third(content: list[bytes]) -> list[bytes]:
    return [*content[:2], *content[3:]]


# An honest run


def test_an_honest_run_goes_on_and_verifies_from_files_alone(sites: Sites) -> None:
    sites.session()
    for party in PARTIES:
        found = {record.name: record for record in sites.verify(party)}
        assert found.keys() == {DISCLOSURES, LEDGER, EVIDENCE}
        assert all(record.signed for record in found.values())
        assert {one.party for one in found[LEDGER].witnesses} == set(PARTIES) - {party}
        assert {one.lines for one in found[LEDGER].witnesses} == {found[LEDGER].lines}
        # What follows the newest countersignature are the lines about the hellos with which it was asked for.
        assert {found[DISCLOSURES].lines - one.lines for one in found[DISCLOSURES].witnesses} == {2}
        assert found[DISCLOSURES].stated == found[DISCLOSURES].lines == len(lines(sites.file(party, DISCLOSURES)))
    assert [len(lines(sites.file(party, LEDGER))) for party in ("A", "B")] == [2, 2]
    result = veilgraph("report", sites.run("B").path, "--verify", "--root", sites.root())
    assert result.exit_code == 0, result.output
    for said in (LEDGER, DISCLOSURES, "A: ", "server: "):
        assert said in result.stdout
    assert not (sites.run("B").path / "report.html").exists()


def test_what_is_not_asked_for_with_verify_is_refused(sites: Sites) -> None:
    run = sites.run("A").path
    assert veilgraph("report", run, "--root", sites.root()).exit_code == 2
    assert veilgraph("report", run, "--verify", "--out", run / "page.html").exit_code == 2
    assert "cannot be read" in one_error(veilgraph("report", run, "--verify", "--root", run / "none.pem"))


def test_on_one_machine_nothing_is_signed_and_the_table_says_so(sites: Sites, tmp_path: Path) -> None:
    sites.folder, sites.identities = tmp_path / "unsigned", dict.fromkeys(PARTIES)
    sites.data = never_released(sites.data, tmp_path / "others")
    sites.session("train")
    assert not any(record.signed for record in verify(sites.run("A")))
    result = veilgraph("report", sites.run("A").path, "--verify")
    assert result.exit_code == 0
    assert "Unsigned: all parties of the run are on one machine" in " ".join(result.stdout.split())
    with refused(RunError, key=tmp_path / "unsigned" / "A" / "job" / "parties" / "A" / "evidence.jsonl", value=1):
        sites.verify("A")


# Changed records

CHANGES: dict[str, tuple[str, str, Callable[[list[bytes]], list[bytes]], bool]] = {
    "a line edited": ("B", DISCLOSURES, fewer_messages, False),
    "a line edited, chained anew": ("B", DISCLOSURES, fewer_messages, True),
    "lines swapped": ("A", DISCLOSURES, swapped, False),
    "lines swapped, chained anew": ("A", DISCLOSURES, swapped, True),
    "a line dropped": (SERVER, DISCLOSURES, without_third, False),
    "a line dropped, chained anew": (SERVER, DISCLOSURES, without_third, True),
    "the last line dropped": ("B", DISCLOSURES, without_last, False),
    "all lines dropped": ("B", DISCLOSURES, lambda content: [], False),
    "the ledger's last line edited": ("A", LEDGER, cheaper, False),
    "the ledger's last line dropped": ("B", LEDGER, without_last, False),
    "the ledger's beginning alone": ("A", LEDGER, lambda content: content[:1], False),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize(("party", "name", "change", "chained"), CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_record_is_noticed(
    sites: Sites, party: str, name: str, change: Callable[[list[bytes]], list[bytes]], chained: bool
) -> None:
    changed(sites.file(party, name), change, chained=chained)
    with pytest.raises(
        RunError, match=rf"{name}, (line \d+|one of lines \d+ to \d+)|{name} ends with line \d+.*: line"
    ):
        sites.verify(party)
    assert name in one_error(veilgraph("report", sites.run(party).path, "--verify"))
    stated = sites.file(party, EVIDENCE).read_bytes()
    with pytest.raises(RunError, match=rf"{party} refuses the job: {name}.*under a new name"):
        sites.session()
    assert sites.file(party, EVIDENCE).read_bytes() == stated, "what was refused is not signed afterwards"


def test_the_first_broken_line_is_named(sites: Sites) -> None:
    changed(sites.file("B", DISCLOSURES), without_third, chained=False)
    with refused(RunError, key=Path("B/disclosures.jsonl"), value=3):
        sites.verify("B")


def test_a_file_of_another_party_or_run_is_noticed(sites: Sites, original: Sites, tmp_path: Path) -> None:
    shutil.copy(sites.file("A", LEDGER), sites.file("B", LEDGER))
    with pytest.raises(RunError, match=rf"{LEDGER}.*of another run or party"):
        sites.verify("B")
    with pytest.raises(RunError, match=rf"B refuses the job: {LEDGER}.*of another run or party"):
        sites.session()
    other = Sites(
        tmp_path / "again", never_released(original.data, tmp_path / "others"), original.project, original.identities
    )
    other.session("train")
    shutil.copy(other.file("B", LEDGER), sites.file("B", LEDGER))
    with pytest.raises(RunError, match="B refuses the job"):
        sites.session()
    for name in (LEDGER, DISCLOSURES, EVIDENCE):  # a whole one, with all that its own parties signed
        shutil.copy(other.file("B", name), sites.file("B", name))
    assert sites.verify("B"), "by itself it is in order: it is the others who know better"
    with pytest.raises(RunError, match=r"A refuses the job: B gives its statement \d .*and A heard its statement \d"):
        sites.session()


def test_an_older_state_of_a_party_is_noticed_by_the_others(sites: Sites, earlier: Sites) -> None:
    """The whole disk is put back: every signature and countersignature on it is true."""
    said = len(lines(sites.file("B", DISCLOSURES)))
    put_back(sites, earlier, "B")
    assert len(lines(sites.file("B", DISCLOSURES))) < said
    assert sites.verify("B"), "by itself it is in order"
    with pytest.raises(RunError, match=r"A refuses the job: B gives its statement \d+ .*an older copy") as caught:
        sites.session()
    assert "server refuses the job: B gives its statement" in str(caught.value)
    gathered = sites.run("A")
    shutil.copytree(sites.run("B").party_path("B"), gathered.party_path("B"))
    with pytest.raises(RunError, match=r"statement \d+ of .* is not in it, and A has heard it"):
        verify(gathered)
    put_back(sites, earlier, "A")
    with pytest.raises(RunError, match=r"server refuses the job"):
        sites.session()


def test_parties_that_put_back_everything_together_are_not_noticed(sites: Sites, earlier: Sites) -> None:
    """What docs/explanation/threat-model.md says is not noticed."""
    for party in PARTIES:
        put_back(sites, earlier, party)
    sites.session()


def test_without_evidence_an_older_state_goes_on(sites: Sites, earlier: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("open", "tell"):
        monkeypatch.setattr(RecordExchange, step, lambda *_: None)
    put_back(sites, earlier, "B")
    changed(sites.file("A", DISCLOSURES), fewer_messages, chained=False)
    sites.session()


def put_back(sites: Sites, earlier: Sites, party: str) -> None:
    here = sites.run(party).party_path(party)
    shutil.rmtree(here)
    shutil.copytree(earlier.run(party).party_path(party), here)


def test_a_party_that_lost_its_run_is_refused(sites: Sites) -> None:
    shutil.rmtree(sites.run("B").party_path("B"))
    with pytest.raises(
        RunError, match=r"A refuses the job: B begins its records anew.*submit the job under a new name"
    ):
        sites.session("train")


# Changed evidence


def test_evidence_that_is_gone_or_cut_off_is_noticed(sites: Sites) -> None:
    changed(sites.file("B", EVIDENCE), lambda content: content[:4], chained=False)
    with pytest.raises(RunError, match=r"A refuses the job: B gives its statement"):
        sites.session()
    sites.file("A", EVIDENCE).unlink()
    with pytest.raises(RunError, match="is missing or empty"):
        sites.verify("A")
    with pytest.raises(RunError, match=r"server refuses the job: .*A gives its statement 1 "):
        sites.session()


def test_evidence_of_another_party_is_noticed(sites: Sites) -> None:
    shutil.copy(sites.file("A", EVIDENCE), sites.file("B", EVIDENCE))
    with refused(RunError, key=Path("B/evidence.jsonl"), value=1):
        sites.verify("B")
    with pytest.raises(RunError, match=rf"B refuses the job: {EVIDENCE}: of 'A' in run"):
        sites.session()


def edited(kind: str, author: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[list[bytes]], Any]:
    """Every such line by a party is changed."""

    def change_all(content: list[bytes]) -> list[bytes]:
        found = []
        for line in content:
            text = json.loads(line)
            said = text.get(kind)
            if said is not None and said.get("by", said["party"]) == author:
                text[kind] = change(said)
            found.append(json.dumps(text).encode())
        return found

    return change_all


def otherwise(statement: dict[str, Any]) -> dict[str, Any]:
    disclosures, ledger, evidence = statement["extents"]
    return statement | {"extents": [disclosures, ledger | {"head": "0" * 64}, evidence]}


def unsigned(said: dict[str, Any]) -> dict[str, Any]:
    return said | {"signature": "", "certificate": ""}


def later(said: dict[str, Any]) -> dict[str, Any]:
    return said | {"time": "2031" + said["time"][4:]}


EDITS: dict[str, tuple[Callable[[list[bytes]], Any], str]] = {
    "what another stated": (edited("statement", "A", otherwise), "not by the key of A's certificate"),
    "when another stated it": (edited("statement", "A", later), "A's certificate"),
    "own statements": (edited("statement", "B", otherwise), "not by the key of B's certificate"),
    "countersignatures": (edited("countersignature", "A", later), "A's countersignature"),
    "another's signature taken off": (edited("statement", "A", unsigned), "it is not signed"),
    "countersignatures' signatures taken off": (edited("countersignature", SERVER, unsigned), "it is not signed"),
    "own signatures taken off": (edited("statement", "B", unsigned), "it is not signed"),
}


@contextmanager
def heads_unchecked() -> Iterator[None]:
    """As if whoever changes evidence had made all heads and numbers anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veilgraph.runtime.store.records.fault_of_records", lambda *_: "")
        yield


def assert_noticed(sites: Sites, change: Callable[[list[bytes]], Any], says: str) -> None:
    """At B's files, whose chain is made anew: by heads over evidence.jsonl itself or signatures, and by these alone."""
    copy = sites.file("B", EVIDENCE).read_bytes()
    changed(sites.file("B", EVIDENCE), change, chained=True)
    with pytest.raises(RunError, match=rf"{EVIDENCE}.*({says}|not what statement)"):
        sites.verify("B")
    with heads_unchecked(), pytest.raises(RunError, match=says):
        sites.verify("B")
    sites.file("B", EVIDENCE).write_bytes(copy)


@pytest.mark.parametrize(("change", "says"), EDITS.values(), ids=EDITS.keys())
def test_changed_evidence_is_noticed(sites: Sites, change: Callable[[list[bytes]], Any], says: str) -> None:
    assert_noticed(sites, change, says)
    changed(sites.file("B", EVIDENCE), change, chained=True)
    with pytest.raises(RunError, match="refuses the job"):
        sites.session()


def test_another_key_of_the_project_signs_for_nobody_else(sites: Sites) -> None:
    """B signs, with its own certificate, what A should have said; or has a certificate made by another root."""

    def signed(by: Identity) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def sign(said: dict[str, Any]) -> dict[str, Any]:
            statement = Statement.model_validate_json(json.dumps(otherwise(unsigned(said))))
            return dict(json.loads(statement.signed(by).model_dump_json()))

        return sign

    own = sites.identities["B"]
    assert own is not None
    for party, identity, says in (
        ("A", own, "certificate is for 'B', not 'A'"),
        (SERVER, own, f"certificate is for 'B', not '{HOST}'"),
        ("A", Project().identity("A"), "of another project"),
    ):
        assert_noticed(sites, edited("statement", party, signed(identity)), says)


def test_evidence_must_fit_together_whoever_signed_it(sites: Sites) -> None:
    """Every signature is true, and the owner made the heads anew."""
    identity, copy = sites.identities["A"], sites.file("B", EVIDENCE).read_bytes()
    assert identity is not None

    def of_another(said: dict[str, Any]) -> dict[str, Any]:
        given = Countersignature.model_validate_json(json.dumps(said | {"statement": "0" * 64}))
        return dict(json.loads(given.signed(identity).model_dump_json()))

    def stating(content: list[bytes], party: str) -> list[int]:
        found = [json.loads(line).get("statement") for line in content]
        return [number for number, said in enumerate(found) if said is not None and said["party"] == party]

    def without_second(content: list[bytes]) -> list[bytes]:
        gone = stating(content, "B")[1]
        return [*content[:gone], *content[gone + 1 :]]

    def heard_in_another_order(content: list[bytes]) -> list[bytes]:
        first, second = stating(content, "A")[:2]
        found = list(content)
        found[first], found[second] = found[second], found[first]
        return found

    attacks: list[tuple[Callable[[list[bytes]], list[bytes]], str]] = [
        (edited("countersignature", "A", of_another), r"A's countersignature under statement \d+ is not of that"),
        (without_second, r"is not number \d+, of \d+ lines before it; one is missing"),
        (heard_in_another_order, r"A's statement \d+ of .* stands after its statement"),
    ]
    for change, says in attacks:
        changed(sites.file("B", EVIDENCE), change, chained=True)
        with heads_unchecked(), pytest.raises(RunError, match=says):
            sites.verify("B")
        sites.file("B", EVIDENCE).write_bytes(copy)
    shutil.copy(sites.file("A", DISCLOSURES), sites.file("B", DISCLOSURES))
    with heads_unchecked(), refused(RunError, key=Path("B/disclosures.jsonl"), value=1):
        sites.verify("B")


def test_a_root_that_is_given_counts_and_not_the_runs_own(sites: Sites) -> None:
    assert verify(sites.run("A"))
    with refused(RunError, key=Path("A/evidence.jsonl"), value=2):
        verify(sites.run("A"), (Project().root,))


def test_a_party_with_another_key_of_the_project_is_refused(sites: Sites) -> None:
    own = sites.identities["B"]
    sites.identities = {**sites.identities, "A": own}
    with refused(ProtocolError, code="countersignature", party="A"):
        sites.session()


# The exchange by itself: kills, and parties that say what they please


class Party:
    """One party's evidence over the memory link, with records that are not of any job."""

    def __init__(self, folder: Path, party: str, identity: Identity | None) -> None:
        self.folder, self.party, self.identity = folder / party, party, identity
        self.folder.mkdir(parents=True, exist_ok=True)
        self._count = 0

    def record_exchange(self) -> RecordExchange:
        return RecordExchange(
            self.folder,
            SETTINGS,
            self.party,
            self.identity,
            {SERVER: HOST},
            PeerHeads(self.party, None, None, releases=False),
        )

    def record(self, name: str) -> None:
        self._count += 1
        path, about = self.folder / name, {"party": self.party, "job": SETTINGS.hash(), "line": self._count}
        previous = digest(lines(path)[-1]) if path.exists() and lines(path) else ""
        with path.open("ab") as file:
            file.write(json.dumps(about | {"previous": previous}).encode() + b"\n")

    def session(self, link: Link) -> None:
        """As ``run_party`` does it."""
        at = self.record_exchange()
        try:
            at.open(link)
            self.record(LEDGER)
            self.record(DISCLOSURES)
            at.tell(link)
        finally:
            self.record(DISCLOSURES)
            at.close()


SETTINGS = parse_job(JOB)


class Killed(RuntimeError):
    pass


def meet(programs: Mapping[str, Callable[[Link], object]]) -> None:
    """Every party's program, in a thread each."""
    run_threads(programs, 20, lambda: None)


def sessions(parties: Mapping[str, Party]) -> dict[str, Callable[[Link], None]]:
    """What honest parties do."""
    return {name: party.session for name, party in parties.items()}


@pytest.fixture(scope="module")
def identities() -> dict[str, Identity]:
    project = Project()
    return {party: project.identity(HOST if party == SERVER else party) for party in PARTIES}


@pytest.fixture
def parties(tmp_path: Path, identities: dict[str, Identity]) -> dict[str, Party]:
    return {party: Party(tmp_path, party, identities[party]) for party in PARTIES}


def checked(parties: Mapping[str, Party], folder: Path) -> None:
    """What is on the disks verifies, by itself and together."""
    run = RunDirectory(folder / "gathered")
    shutil.rmtree(run.path, ignore_errors=True)
    (run.path / "parties").mkdir(parents=True)
    write_job(SETTINGS, run.path / "job.yaml")
    for party in parties.values():
        shutil.copytree(party.folder, run.party_path(party.party))
    assert len(verify(run)) == 3 * len(parties)


def killed_session(victim: Party, where: str, steps: int) -> Callable[[Link], None]:
    """A session of a party that does so many steps of a kind, and is dead in place of the next."""
    left = [steps]

    def until_killed(step: Callable[..., Any], last: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """The step; ``last`` is what becomes of the one in which the party is killed."""

        def act(*args: Any) -> Any:
            if left[0] == 0 and last is not None:
                last(*args)
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return step(*args)

        return act

    def session(link: Link) -> None:
        at, record = victim.record_exchange(), victim.record
        write = at._file.write_lines

        def tear(said: Any) -> None:
            """A part of a line is written, no more."""
            path = victim.folder / EVIDENCE
            before = path.stat().st_size
            write(said)
            with path.open("r+b") as torn:
                torn.truncate(before + (path.stat().st_size - before) // 3)

        if where in ("send", "receive"):
            link = Other(link, **{where: until_killed(getattr(link, where))})
        elif where == "record":
            record = until_killed(record)
        else:
            at._file.write_lines = until_killed(write, tear if where == "tear" else None)  # type: ignore[method-assign]
        at.open(link)
        record(LEDGER)
        record(DISCLOSURES)
        at.tell(link)
        record(DISCLOSURES)
        at.close()

    return session


@pytest.mark.parametrize("where", ["send", "receive", "write", "tear", "record"])
@nightly
def test_a_kill_at_any_moment_leaves_what_the_next_session_accepts(
    parties: dict[str, Party], tmp_path: Path, where: str
) -> None:
    """B dies at every one of its messages, waits, and writes; the next session is all parties' own."""
    programs = sessions(parties)
    meet(programs)
    kills = 0
    while True:
        try:
            meet({**programs, "B": killed_session(parties["B"], where, kills)})
        except Killed:
            kills += 1
            meet(programs)
        else:
            break
    assert kills == {"send": 8, "receive": 8, "write": 4, "tear": 4, "record": 3}[where]
    checked(parties, tmp_path)


class Other(Wrapper):
    """A link of which one step is another."""

    def __init__(
        self, link: Link, send: Callable[..., None] | None = None, receive: Callable[..., Tensor] | None = None
    ) -> None:
        super().__init__(link)
        self.send = send or link.send  # type: ignore[method-assign]
        self.receive = receive or link.receive  # type: ignore[method-assign]


OPENING, VERDICT = 5, 6
"""Rounds of the hellos of an exchange."""


def saying(party: Party, round_: int, change: Callable[[str], str]) -> Callable[[Link], None]:
    """A session in which a party says something else in one round."""

    def session(link: Link) -> None:
        def send(to: str, tag: Tag, tensor: Tensor) -> None:
            if tag == Tag(Kind.HELLO, 0, round_):
                tensor = text_tensor(change(tensor_text(tensor)))
            link.send(to, tag, tensor)

        party.session(Other(link, send=send))

    return session


def forged(parties: Mapping[str, Party], change: Callable[[Opening], Opening]) -> None:
    """A session in which B says something else in its opening."""

    def changed_text(text: str) -> str:
        return change(Opening.model_validate_json(text)).model_dump_json()

    meet({**sessions(parties), "B": saying(parties["B"], OPENING, changed_text)})


def test_a_party_that_says_what_it_pleases_is_refused_by_the_others(
    parties: dict[str, Party], identities: dict[str, Identity]
) -> None:
    meet(sessions(parties))
    old: list[Statement] = []

    def remembered(opening: Opening) -> Opening:
        assert opening.statement is not None
        old.append(opening.statement)
        return opening

    forged(parties, remembered)
    meet(sessions(parties))

    def statement(**changes: object) -> Callable[[Opening], Opening]:
        def change(opening: Opening) -> Opening:
            assert opening.statement is not None
            made = opening.statement.model_copy(update=changes).signed(identities["B"])
            return opening.model_copy(update={"statement": made})

        return change

    def shorter(opening: Opening) -> Opening:
        assert opening.statement is not None
        extents = [one.model_copy(update={"lines": max(one.lines - 3, 0)}) for one in opening.statement.extents]
        return statement(extents=extents, number=99)(opening)

    def other(opening: Opening) -> Opening:
        """Later, and a ledger as long as the one that the others heard of, but not the same."""
        assert opening.statement is not None
        disclosures, ledger, evidence = opening.statement.extents
        made = [disclosures, ledger.model_copy(update={"head": "0" * 64}), evidence]
        return statement(extents=made, number=99)(opening)

    def heard(signed: bool) -> Callable[[Opening], Opening]:
        def change(opening: Opening) -> Opening:
            assert opening.heard is not None
            made = opening.heard.model_copy(update={"number": 50})
            return opening.model_copy(update={"heard": made.signed(identities["B"]) if signed else made})

        return change

    unsigned_ = {"certificate": "", "signature": ""}
    attacks: list[tuple[Callable[[Opening], Opening], str]] = [
        (lambda opening: opening.model_copy(update={"statement": old[0]}), "B gives its statement 2 .*older copy"),
        (lambda opening: opening.model_copy(update={"statement": None}), "B begins its records anew"),
        (statement(number=1), "B gives its statement 1 "),
        (shorter, "B's ledger.jsonl has 0 lines, and A heard of 3"),
        (other, "B's ledger.jsonl is not the one that A heard of"),
        (statement(party="A"), "it is by A of run"),
        (statement(run="0" * 64), "it is by B of run 000000000000, not by B"),
        (
            lambda opening: Opening(statement=opening.statement and opening.statement.model_copy(update=unsigned_)),
            "B's statement .*it is not signed",
        ),
        (lambda opening: Opening(statement=opening.heard), "it is by (A|server) of run"),
        # B could have A's honest records refused, or accepted, by saying that it heard another length
        (heard(signed=False), "B gives back a statement 50 .* as A's: A's signature is not by the key"),
        (heard(signed=True), "as A's: A's certificate is for 'B', not 'A'"),
    ]
    for change, says in attacks:
        with pytest.raises(RunError, match=rf"A refuses the job: .*{says}") as caught:
            forged(parties, change)
        assert str(caught.value).isprintable()
    meet(sessions(parties))


def signed_anew(party: Party, times: int) -> None:
    """With the party's own key: what its files have become is stated as if nothing had been there before."""
    for _ in range(times):
        party.record(DISCLOSURES)
        party.record(LEDGER)  # so that it is longer than what the others heard of, who cannot tell then
        party.record_exchange()._add_statement()


def test_an_owner_who_signs_changed_records_anew_is_reminded_of_what_it_said(
    parties: dict[str, Party], tmp_path: Path
) -> None:
    programs = sessions(parties)
    meet(programs)
    shutil.copytree(parties["B"].folder, tmp_path / "before")
    meet(programs)
    shutil.copytree(parties["B"].folder, tmp_path / "now")
    changed(
        parties["B"].folder / LEDGER,
        lambda content: [content[0].replace(b'"line": 1', b'"line": 9'), content[1]],
        chained=True,
    )
    signed_anew(parties["B"], 1)
    with pytest.raises(RunError, match=rf"^B refuses the job: {LEDGER}, .*not what statement \d+ of"):
        meet(programs)
    with refused(RunError, key=tmp_path / "gathered" / "parties" / "B" / "ledger.jsonl", value=1):
        checked(parties, tmp_path)
    shutil.rmtree(parties["B"].folder)
    shutil.copytree(tmp_path / "before", parties["B"].folder)
    signed_anew(parties["B"], 9)
    with pytest.raises(RunError, match=r"B refuses the job: A heard B's statement .* and not that one"):
        meet(programs)
    shutil.rmtree(parties["B"].folder)
    shutil.copytree(tmp_path / "now", parties["B"].folder)
    meet(programs)


def test_a_countersignature_under_something_else_is_none(
    parties: dict[str, Party], identities: dict[str, Identity]
) -> None:
    meet(sessions(parties))
    for changes in ({"statement": "0" * 64}, {"number": 50}, {"party": SERVER}):

        def change(text: str, changes: dict[str, Any] = changes) -> str:
            given = Verdict.model_validate_json(text).countersignature
            assert given is not None
            other = given.model_copy(update=changes).signed(identities["B"])
            return Verdict(countersignature=other).model_dump_json()

        with refused(ProtocolError, code="countersignature", party="B"):
            meet({**sessions(parties), "B": saying(parties["B"], VERDICT, change)})
    meet(sessions(parties))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"statement": 5}', '{"statement": null, "more": 1}', "x" * (1 << 16) + "x"], ids=len
)
def test_an_opening_that_is_none_is_one_clear_error(parties: dict[str, Party], text: str) -> None:
    code = "too-long" if len(text) > 1 << 16 else "not-understood"
    with refused(ProtocolError, code=code, party="B"):
        meet({**sessions(parties), "B": saying(parties["B"], OPENING, lambda _: text)})


def test_statements_tell_nothing_of_what_is_in_the_records(parties: dict[str, Party], tmp_path: Path) -> None:
    """Neither a salt, nor a digest that a guess of the lines could be compared with; equal records, unequal heads."""
    seen: list[str] = []

    def listened(party: Party) -> Callable[[Link], None]:
        def session(link: Link) -> None:
            def send(to: str, tag: Tag, tensor: Tensor) -> None:
                seen.append(tensor_text(tensor))
                link.send(to, tag, tensor)

            party.session(Other(link, send=send))

        return session

    meet({name: listened(party) for name, party in parties.items()})
    meet({name: listened(party) for name, party in parties.items()})
    said = "".join(seen)
    for party in parties.values():
        beginning = json.loads(lines(party.folder / EVIDENCE)[0])["begins"]
        secrets = {beginning["salt"]}
        for name in (DISCLOSURES, LEDGER, EVIDENCE):
            content = lines(party.folder / name)
            for count in range(len(content) + 1):
                secrets.add(hashlib.sha256(b"".join(content[:count])).hexdigest())
            secrets.update(map(digest, content))
        assert not [secret for secret in secrets if secret in said]
    twin = Party(tmp_path / "twin", "B", None)
    for name in (DISCLOSURES, LEDGER):
        shutil.copy(parties["B"].folder / name, twin.folder / name)
    heads = [{one.head for one in party.record_exchange()._file.stated()[:2]} for party in (parties["B"], twin)]
    assert not heads[0] & heads[1]


def test_a_statement_does_not_tell_when_a_session_ended(
    parties: dict[str, Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one holder learns alone, that would tell how many epochs it took."""
    party = parties["A"]
    at = party.record_exchange()
    began = at._time

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromisoformat(began) + timedelta(hours=1)

    monkeypatch.setattr("veilgraph.runtime.session.exchange.datetime", Later)
    party.record(DISCLOSURES)
    at.opened = True
    at.close()
    assert party.record_exchange()._time != began
    assert [one.time for one in party.record_exchange()._file.found.own] == [began]
