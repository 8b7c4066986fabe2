"""A run's events for a SIEM: each is its record's, in JSON and in CEF, and no text of others forges one."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import one_error, veilgraph
from tests.deploy.small_project import bank_and_shop
from tests.paradigms.runs import saved_job
from tests.report.conftest import part_of
from tests.report.findings import audit, finding
from veilgraph.core import __version__
from veilgraph.graph.party import load_party
from veilgraph.protocol.consent import Entry, Journal
from veilgraph.protocol.job_file import parse_job
from veilgraph.report.evidence_export import EvidenceEvent, cef_line, exported
from veilgraph.report.run_data import read_run
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory

Event = dict[str, Any]
HOSTILE = 'a|b=c\\d\\n\ne suser=nobody rt=0\r\nCEF:0|x|y|1|z|z|9| \u2028 {"event": "\u202e'
KEY = re.compile(r"(?:^| )(\w+)=")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Complete runs: sealed, with a release in a ledger, and vertical."""
    folder = tmp_path_factory.mktemp("evidence")
    sealed = {
        **{"name": "sealed", "paradigm": "sealed", "data": {"dataset": "synthetic", "holders": 2}},
        "model": {"network": "linear", "edge_slots": 4096},
        "train": {"epochs": 2, "patience": None, "select_by": "last"},
        "privacy": {"unit": "edge", "epsilon_total": 4},
    }
    train(parse_job(sealed), folder / "sealed")
    train(saved_job(folder / "data", {"name": "vertical", "train": {"epochs": 2}}), folder / "vertical")
    return {name: folder / name for name in ("sealed", "vertical")}


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(made[name], tmp_path / name))


def events(run: Path) -> list[Event]:
    lines = exported(read_run(RunDirectory.open(run)), "jsonl").decode().splitlines()
    found = [json.loads(line) for line in lines]
    assert {tuple(each) for each in found} <= {("time", "party", "event", "fields")}
    return found


def of(found: list[Event], kind: str) -> list[Event]:
    return [each for each in found if each["event"] == kind]


def lines_of(run: Path, name: str) -> list[tuple[str, Event]]:
    """The lines of all parties' records of a name, each with whose it is."""
    paths = [run / "parties" / party / name for party in ("A", "B", "server")]
    return [
        (path.parent.name, json.loads(line))
        for path in paths
        if path.is_file()
        for line in path.read_text().splitlines()
    ]


def read_cef(line: str) -> tuple[list[str], dict[str, str]]:
    """Header and extension of a line, read as its specification says."""
    assert line.isprintable()
    *header, extension = re.split(r"(?<!\\)(?:\\\\)*\|", line, maxsplit=7)
    plain = [re.sub(r"\\([\\|])", r"\1", each) for each in header]
    escapes = {"\\\\": "\\", "\\=": "=", "\\n": "\n", "\\r": "\r"}
    values: dict[str, str] = {}
    keys = [match for match in KEY.finditer(extension) if not extension[: match.end() - 1].endswith("\\")]
    for match, end in zip(keys, [*(each.start() for each in keys[1:]), len(extension)], strict=True):
        assert match[1] not in values
        values[match[1]] = re.sub(r"\\[\\=nr]", lambda found: escapes[found[0]], extension[match.end() : end])
    return plain, values


@pytest.mark.parametrize("name", ["sealed", "vertical"])
def test_each_event_is_that_of_its_record(name: str, made: dict[str, Path]) -> None:
    run, found = made[name], events(made[name])
    disclosures = [record for _, record in lines_of(run, "disclosures.jsonl")]
    for event, record in zip(sorted_by(of(found, "disclosure")), sorted_by(disclosures), strict=True):
        assert datetime.fromisoformat(event["time"]) == datetime.fromisoformat(record["time"])
        assert {"party": event["party"], **event["fields"]} == without(record, "time", "previous")
    paid = [(party, line) for party, line in lines_of(run, "ledger.jsonl") if "channel" in line]
    assert len(paid) == (1 if name == "sealed" else 0)
    for event, (party, line) in zip(of(found, "release"), paid, strict=True):
        assert (event["time"], event["party"], event["fields"]["of"]) == (line["time"], party, line["event"])
        assert event["fields"] == {
            **{key: line[key] for key in ("channel", "step", "count", "content")},
            **{"epsilon_total": line["total"], "of": line["event"]},
        }
    stated = [(party, line["statement"]) for party, line in lines_of(run, "evidence.jsonl") if "statement" in line]
    own = {(party, said["number"], said["time"]) for party, said in stated if said["party"] == party}
    assert {(each["party"], each["fields"]["number"], each["time"]) for each in of(found, "statement")} == own
    signed = [said["countersignature"] for _, said in lines_of(run, "evidence.jsonl") if "countersignature" in said]
    assert sorted(
        (each["party"], each["fields"]["of"], each["fields"]["number"]) for each in of(found, "countersignature")
    ) == (sorted((said["by"], said["party"], said["number"]) for said in signed))
    (predicted,) = of(found, "prediction")
    version = hashlib.sha256((run / "parties/A/model.safetensors").read_bytes()).hexdigest()[:12]
    assert predicted["fields"] == {
        "model_version": version,
        "predictions": load_party(run / "parties/A/graph.safetensors").common,
    }
    times = [each["time"] for each in found]
    assert times == sorted(times)
    assert all(datetime.fromisoformat(time).utcoffset() == UTC.utcoffset(None) for time in times)


def without(record: Event, *keys: str) -> Event:
    return {key: value for key, value in record.items() if key not in keys}


def sorted_by(found: list[Event]) -> list[Event]:
    return sorted(
        found,
        key=lambda each: json.dumps(
            {"party": each["party"], **each.get("fields", without(each, "time", "previous"))}, sort_keys=True
        ),
    )


def test_an_audit_drift_and_software_are_events(copied: Callable[[str], Path]) -> None:
    run = copied("vertical")
    checked = finding("server", "B", "nothing", "noise-level", 0.2, measure="p-value", permitted=False, passed=False)
    report = audit(job="vertical", more=(checked,))
    (run / "audit.json").write_text(json.dumps(report))
    moved = {"name": "income", "of_edges": False, "index": 1.0, "then": "1", "now": "2"}
    drift = {"made_at": "2026-01-02T03:04:05+00:00", "compared": 3, "moved": [moved]}
    (run / "parties/A/drift.json").write_text(json.dumps(drift))
    stated = {"time": "2026-01-02T04:04:05+01:00", "work": "train", "software": {"A": {"torch": "2"}}}
    (run / "parties/A/software.jsonl").write_text(json.dumps(stated) + "\n")
    found = events(run)
    mounted = [*of(found, "finding"), *of(found, "check")]
    assert len(of(found, "check")) == 1
    for event, record in zip(mounted, report["findings"], strict=True):
        assert (event["time"], event["party"]) == (None, record["adversary"])
        for key in ("target", "secret", "attack", "evidence", "permitted", "measure", "limit", "passed", "note"):
            assert event["fields"][key] == record[key]
        assert event["fields"]["value"] == record["value"]
    (skipped,) = of(found, "skipped")
    assert skipped["fields"] == {
        "attack": "label-norm",
        "why": "C receives no gradient in this job",
        "raised": False,
    }
    assert found[-1]["time"] is None
    times = [each["time"] for each in found if each["time"] is not None]
    assert times == sorted(times), "the oldest first"
    assert without(of(found, "drift")[0], "time", "event") == {
        "party": "A",
        "fields": {"compared": 3, "moved": ["income"]},
    }
    session = next(each for each in of(found, "session") if each["party"] == "A")
    assert (session["time"], session["fields"]["software"]) == ("2026-01-02T03:04:05+00:00", {"A": {"torch": "2"}})
    severities = {line.split("|")[4]: line.split("|")[6] for line in cef_lines(run)}
    assert (severities["check"], severities["skipped"]) == ("8", "1")


def cef_lines(run: Path) -> list[str]:
    return exported(read_run(RunDirectory.open(run)), "cef").decode().split("\n")[:-1]


def test_approvals_and_refusals_of_a_site_are_events(made: dict[str, Path], tmp_path: Path) -> None:
    kit = bank_and_shop(tmp_path / "project", holders=["A", "B"])["B"]
    run = part_of(Path(shutil.copytree(made["vertical"], kit.runs / "vertical")), "B")
    assert of(events(run), "consent") == []
    job, time = RunDirectory.open(run).settings.hash(), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    entries = (
        Entry(time=time, what="job", id="1", settings="f" * 64, name="another"),
        Entry(time=time, what="job", id="2", settings=job, name="vertical", work="train"),
        Entry(time=time, what="asked", id="3", of="2", settings=job),
        Entry(time=time, what="refused", of="3", reason="not before May"),
        Entry(time=time, what="refused", of="1", reason="of another job"),
    )
    journal = Journal(kit.consent)
    with journal.held():
        for each in entries:
            journal.append(each)
    found = of(events(run), "consent")
    assert {each["party"] for each in found} == {"B"}
    assert [(each["fields"]["what"], each["fields"]["reason"]) for each in found] == [
        *[("job", ""), ("asked", ""), ("refused", "not before May")]
    ]
    assert [line.split("|")[6] for line in cef_lines(run) if "|consent|" in line] == ["1", "1", "6"]
    assert {each["party"] for each in events(run)} <= {"A", "B", "server"}
    assert {each["party"] for each in of(events(run), "disclosure")} == {"B"}


@pytest.mark.parametrize("name", ["sealed", "vertical"])
def test_cef_says_what_json_says(name: str, copied: Callable[[str], Path]) -> None:
    run = copied(name)
    (run / "audit.json").write_text(json.dumps(audit(job=name)))
    for event, line in zip(events(run), cef_lines(run), strict=True):
        header, extension = read_cef(line)
        assert header[:6] == [
            "CEF:0",
            "veilgraph",
            "veilgraph",
            __version__,
            event["event"],
            f"Record of {event['event']}",
        ]
        assert 0 <= int(header[6]) <= 10
        assert extension.pop("suser") == event["party"]
        if event["time"] is not None:
            when = datetime.fromtimestamp(int(extension.pop("rt")) / 1000, UTC)
            assert when == datetime.fromisoformat(event["time"])
        facts = {f"veilgraph{key.title().replace('_', '')}": value for key, value in event["fields"].items()}
        assert {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in facts.items()
            if value is not None
        } == extension


@pytest.mark.parametrize(
    ("fields", "extension"),
    [
        # Of the specification: a pipe in an extension stays, an equals sign and a backslash are escaped, lines encoded.
        ({"act": "blocked a | dst"}, "veilgraphAct=blocked a | dst"),
        ({"act": "blocked a = dst"}, r"veilgraphAct=blocked a \= dst"),
        ({"act": "blocked a \\ dst"}, r"veilgraphAct=blocked a \\ dst"),
        ({"msg": "Detected a threat.\n No action needed."}, r"veilgraphMsg=Detected a threat.\n No action needed."),
        ({"msg": "a\r\nb\\n"}, r"veilgraphMsg=a\r\nb\\n"),
        ({"msg": "\x1b[2J\u2028\u202e\t"}, r"veilgraphMsg=\\u001b[2J\\u2028\\u202e\\t"),
        ({"a_b": 3, "none": None, "c=d e": [1.5, "x=\n"]}, r'veilgraphAB=3 veilgraphCDE=[1.5, "x\=\\n"]'),
    ],
)
def test_cef_is_escaped_as_its_specification_says(fields: Event, extension: str) -> None:
    line = cef_line(EvidenceEvent(None, "A", "disclosure", fields))
    assert line.partition("suser=A")[2].strip() == extension


def test_a_cef_header_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilgraph.report.evidence_export.__version__", "1|2\\3\n4")
    line = cef_line(EvidenceEvent(None, "A|=", "detected a | in message = \\", {}))
    name = r"detected a \| in message = \\"
    assert line == rf"CEF:0|veilgraph|veilgraph|1\|2\\3\\n4|{name}|Record of {name}|1|suser=A|\="


def test_no_word_of_others_forges_an_event_or_a_field(copied: Callable[[str], Path]) -> None:
    run = copied("vertical")
    (run / "audit.json").write_text(json.dumps(audit(job="vertical")))
    before = [(each["time"], each["party"], each["event"]) for each in events(run)]
    report = audit(job="vertical")
    for each in report["findings"]:
        each.update(evidence=HOSTILE, note=HOSTILE)
    (run / "audit.json").write_text(json.dumps(report))
    file = run / "parties/A/disclosures.jsonl"
    lines = [json.loads(line) | {"what": HOSTILE, "why": HOSTILE} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    after = events(run)
    assert [(each["time"], each["party"], each["event"]) for each in after] == before
    assert [each["fields"]["why"] for each in of(after, "disclosure") if each["party"] == "A"] == [HOSTILE] * len(lines)
    shown = HOSTILE.replace("\u2028", "\\u2028").replace("\u202e", "\\u202e")
    for event, line in zip(after, cef_lines(run), strict=True):
        header, extension = read_cef(line)
        assert (header[4], extension["suser"]) == (event["event"], event["party"])
        assert ("rt" in extension) == (event["time"] is not None)
        if event["event"] == "finding":
            assert extension["veilgraphNote"] == shown
        if event["event"] == "disclosure" and event["party"] == "A":
            assert (extension["veilgraphWhat"], extension["veilgraphWhy"]) == (shown, shown)


def test_no_secret_of_a_party_is_exported(made: dict[str, Path]) -> None:
    for run in made.values():
        text = exported(read_run(RunDirectory.open(run)), "jsonl").decode()
        for party in ("A", "B", "server"):
            begins = json.loads((run / "parties" / party / "evidence.jsonl").read_text().splitlines()[0])["begins"]
            assert begins["salt"] not in text
        assert '"salt"' not in text


def test_the_form_follows_the_name_or_the_option(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("vertical")
    for words, form in ((["e.jsonl"], "jsonl"), (["e.cef"], "cef"), (["e.log", "--format", "cef"], "cef")):
        path = tmp_path / words[0]
        for _ in range(2):  # an export of ours is written anew
            assert veilgraph("report", run, "--evidence", path, *words[1:]).exit_code == 0
        assert path.read_bytes() == exported(read_run(RunDirectory.open(run)), form)
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("parties/B/ledger.jsonl", lambda text: text.replace('"count": 1', '"count": 2').replace("geometric", "magic")),
        ("parties/B/ledger.jsonl", lambda text: text.replace('"delta": 1e-12', '"delta": 1e-11')),
        ("parties/B/evidence.jsonl", lambda text: text.replace('"number":1', '"number":7', 1)),
        ("parties/A/disclosures.jsonl", lambda text: text[: len(text) // 2]),
        ("parties/A/software.jsonl", lambda text: '{"time": "soon", "software": {}}\n'),
        ("parties/A/drift.json", lambda text: '{"moved": []}'),
        ("audit.json", lambda text: "{}"),
    ],
)
def test_a_damaged_record_is_one_error_and_no_file(
    file: str, change: Callable[[str], str], copied: Callable[[str], Path], tmp_path: Path
) -> None:
    run, out = copied("sealed"), tmp_path / "events.jsonl"
    path = run / file
    path.write_text(change(path.read_text() if path.is_file() else ""))
    path.chmod(0o600)
    assert str(run) in one_error(veilgraph("report", run, "--evidence", out))
    assert not out.exists()
