"""Documents for compliance: Markdown that is filled from a run's records, with a marked blank for what people add.

A template (``templates/NAME.txt``) has a heading a line, the facts that stand under it as ``{name}``, and what a person
adds after ``?``. Text from files is escaped, so no name forges a line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import file_digest, os_errors_as, run_errors, write_whole
from veilgraph.core.settings import meanings
from veilgraph.core.text import listed
from veilgraph.core.types import PartyId
from veilgraph.deploy.kit import Kit
from veilgraph.protocol.job import RecordSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.report.evidence_export import consents
from veilgraph.report.ledgers import life_rows
from veilgraph.report.page import dotted_settings, page_sections
from veilgraph.report.ranking import class_rows
from veilgraph.report.run_data import RunData
from veilgraph.report.tables import Section, markdown, markdown_list, markdown_table
from veilgraph.runtime.store.records import read_evidence
from veilgraph.runtime.store.session_log import software_records

TO_ADD: Final = "- **To be added:** "
_OWN: Final = {"limits", "consent", "drift"}
_SENT: Final = ("ways", "work", "messages", "size", "epsilon", "why")
_FOUND: Final = ("who", "figures", "verdict", "gate")
_FIGURES: Final = "figure, value, 95 % interval, without a model, meaning"
_PIECE: Final = re.compile(r" (?:\{(\w+)\}|\? ([^{?]+?)(?= [{?]|$))")
_SEAL: Final = b"\n<!-- veilgraph wrote this file. SHA-256 of the lines above: "
_EVENTS: Final = re.compile(rb'CEF:0\|veilgraph\||\{"time": (?:null|"[^"]*"), "party": "[^"]*", "event": ')
# Documents have the hashes of these files. Files with secrets, as seeds, are not among them.
_NAMED: Final = "job|summary|metrics|audit|compared|disclosures|ledger|evidence|software|drift|graph|model|predictions"
_HASHED: Final = re.compile(rf"({_NAMED})\.(yaml|jsonl?|safetensors)")


def filled(found: RunData, names: Iterable[str], party_file: Path | None = None) -> dict[str, bytes]:
    """Fill documents (``dpia``, ``model-card``, ``register``, ``technical``) from a run as far as it is here.

    ``party_file`` has the limits and the ledger for life of a party here; by default the job's, or the kit's. The same
    files give the same bytes. Raises ``VeilgraphError``: a file is damaged, or the party file is of no party here.
    """
    folder, made = Path(__file__).with_name("templates"), dict[str, bytes]()
    with run_errors(found.path, "restore its records from a copy", "a record is damaged"):
        facts = _facts(found, party_file)
    for name in names:
        lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        made[name] = _sealed("\n\n".join(part for line in lines for part in _parts(line, facts)).encode() + b"\n")
    return made


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write documents and exported events, each whole, and none where a file is there that would be lost.

    Raises ``RunError``: a file is not as veilgraph wrote it, or one cannot be written.
    """
    for path in files:
        with os_errors_as(RunError, f"{path}: cannot be read", "choose another file"):
            content = path.read_bytes() if path.is_file() else None
        ours = content is not None and (_EVENTS.match(content) or content in (b"", _sealed(content.split(_SEAL)[0])))
        if path.exists() and not ours:
            raise RunError(
                f"{path}: is there and is not as veilgraph wrote it, so somebody's words would be lost; choose another "
                "file, or move this one",
                code="not-ours",
            )
    for path, content in files.items():
        with os_errors_as(RunError, f"{path}: cannot be written", "choose another file"):
            write_whole(path, content)


def _sealed(text: bytes) -> bytes:
    return text + _SEAL + f"{hashlib.sha256(text).hexdigest()} -->\n".encode()


def _parts(line: str, facts: Mapping[str, str]) -> Iterator[str]:
    """Yield a template's line as blocks of Markdown: its heading, its facts, and what is to be added."""
    pieces = list(_PIECE.finditer(line))
    yield line[: pieces[0].start()]
    yield from (facts[each[1]] for each in pieces if each[1])
    if blanks := [TO_ADD + each[2] for each in pieces if each[2]]:
        yield "\n".join(blanks)


def _facts(found: RunData, party_file: Path | None) -> dict[str, str]:
    """Return what templates name, as blocks of Markdown."""
    page, job, kit = page_sections(found), found.settings, Kit.of_run(found.path)
    head, words, judged, training, flows = (page[each] for each in ("head", "job", "judged", "training", "traffic"))
    grid, scores, given = words["contributions"], training["scores"], dict(job.record or ())
    own, elsewhere = _organisations(found, party_file, kit), [each for each in found.parties if each not in found.here]
    relays = [] if kit is None else [("deals", kit.roles.deals), ("relays messages", kit.roles.server)]
    relays += [] if kit is None else [("broker", address) for address in kit.broker_addresses]
    files = sorted([*found.path.glob("*"), *found.path.glob("parties/*/*")])
    ended = {(each.time, each.work, each.party) for each in found.sent}
    return {
        **{
            name: markdown_list(f"{name.capitalize()}: {given[name]}") if given.get(name) else TO_ADD + meaning
            for name, meaning in meanings(RecordSettings).items()
        },
        "intro": "veilgraph filled this file from a run's records. A person completes each line **To be added**.",
        "job": markdown_list(
            f"Job: {job.name}, paradigm {job.paradigm}, SHA-256 of its settings {job.hash()}",
            f"Run: {found.path.absolute().name}, {head['when']}; {head['where']}",
            f"Result: {head['verdict']}",
            f"Software: {found.software or 'none recorded'}; this file: veilgraph {page['version']}",
            f"Parts here: {listed(found.here)}. Parts elsewhere, of which nothing is shown: {listed(elsewhere)}",
        ),
        "method": markdown_list(*words["sentences"]),
        "parties": markdown_table(", ".join(grid.columns), grid.rows),
        "reveals": markdown_list(*words["reveals"]),
        "sent": markdown_table(
            "what, protection, from and to, work, messages, size, ε one / all, why it may leave or what follows",
            ([each["what"], each["guard"].name, *map(each.get, _SENT)] for each in page["learned"]["sent"]),
        ),
        "traffic": markdown_table("party, messages, size", (each[:1] + each[2:4] for each in flows["parties"])),
        "compared": markdown_table(
            ", ".join(("training", *judged["reference_titles"])),
            ((name, *values) for name, values in judged["references"]),
            f"No comparison is recorded{judged['compare_with'] and ': run ' + judged['compare_with']}.",
        ),
        "risks": markdown_table("risk, what follows in this job", words["risks"]),
        "findings": "\n\n".join(_findings(page["audit"], found)),
        "privacy": "\n\n".join(_privacy(page["privacy"])),
        "life": markdown_table("holder, total ε, about, limit, releases", life_rows(found, own)),
        "limits": markdown_table(
            "party, setting, value now",
            ((by, *each) for by, one in own.items() for each in dotted_settings(one.settings.model_dump(include=_OWN))),
            "None is recorded: --party names a party file.",
        ),
        "approvals": markdown_table(
            "time, party, what, work, reason",
            ((each.time.isoformat(), by, each.what, each.work, each.reason) for by, each in consents(found)),
        ),
        "scores": markdown_table(", ".join(scores.columns), scores.rows, training["progress"]),
        "figures": markdown_table(_FIGURES, judged["rows"], judged["missing"]),
        "classes": markdown_table(
            "class, test nodes, recall, precision", class_rows(page["predictions"]), judged["missing"]
        ),
        "drift": markdown_table(
            "party, columns and relations compared, moved",
            ((by, each["compared"], [one["name"] for one in each["moved"]]) for by, each in found.drift.items()),
        ),
        "duties": markdown_table("party, role, certified name, software, data", _duty_rows(found, grid.rows)),
        "records": markdown_table("party, statements, newest, signed, countersigned by", _statement_rows(found)),
        "endpoints": markdown_table("what it does, name or address", relays),
        "sessions": markdown_table("ended, work, party", sorted(ended)),
        "settings": markdown_table("setting, value", dotted_settings(job.model_dump(mode="json"))),
        "sources": markdown_table(
            "file, SHA-256",
            ((each.relative_to(found.path), file_digest(each)) for each in files if _HASHED.fullmatch(each.name)),
        ),
    }


def _findings(audit: Section, found: RunData) -> Iterator[str]:
    """Yield what an audit found, or how there would be one."""
    if (report := audit["report"]) is None:
        how = "net submit JOB.yaml --work audit" if found.is_part else f"audit {found.path}"
        yield markdown(f"No audit is recorded: run veilgraph {how}.")
        return
    yield markdown(
        f"An audit of job {report.job} is recorded. Findings: {len(report.findings)}. Of these {audit['held']} had a "
        f"limit to keep, or had to reveal nothing, and {audit['failed']} failed. Verdict: {audit['verdict']}. "
        f"{audit['beside'][0].capitalize()}. {audit['scope']}"
    )
    rows = [row for each in audit["tables"] for row in each["rows"]]
    yield markdown_table(
        "attack, evidence, who against whom: secret, figures, verdict, limit",
        ([row["finding"].attack, row["finding"].evidence, *map(row.get, _FOUND)] for row in rows),
    )
    left = (
        (each.adversary, each.attack, f"ended with an error: {each.why}" if each.raised else each.why)
        for each in report.skipped
    )
    yield markdown_table("adversary, attack without a finding, why", left, "Every attack asked for was mounted.")


def _privacy(privacy: Section) -> Iterator[str]:
    """Yield what ε means in the job and what the run's ledgers come to, or that the job has none."""
    guarantee, accounts = privacy["guarantee"], [each[:5] for each in privacy["accounts"]]
    yield markdown(guarantee.statement)
    if guarantee.about:
        yield markdown_table("holder, releases, per-release ε, total ε, budget", accounts, "No ledger is here.")
        yield markdown_table("term, meaning", guarantee.about)
        yield markdown_list(*guarantee.limits, *privacy["notes"])


def _organisations(found: RunData, party_file: Path | None, kit: Kit | None) -> dict[PartyId, Organisation]:
    """Return the parties here whose party file is known and still there."""
    paths = dict(found.settings.data.parties or {})
    if party_file is not None:
        party = read_party_settings(party_file).party
        if party not in found.here:
            raise ConfigError(f"{party_file}: party={party!r} has no part in {found.path}; give another party's file")
        paths[party] = party_file
    elif kit is not None and kit.kind == "holder" and kit.site.party_file is not None:
        paths[kit.name] = kit.site.party_file
    known = {party: Path(path) for party, path in paths.items() if party in found.here}
    return {party: Organisation.read(path, party) for party, path in known.items() if path.is_file()}


def _duty_rows(found: RunData, parts: Iterable[Sequence[str]]) -> Iterator[Sequence[object]]:
    """Yield who had which part, under which certified name, with which software, and where its data are."""
    folders = found.folders.values()
    stated = {by: each for folder in folders for one in software_records(folder) for by, each in one.software.items()}
    signed = [each.beginning for folder in folders if (each := read_evidence(folder)) is not None]
    names = next((each.names for each in signed if each.roots), None)
    for party, part, *_ in parts:
        versions = [f"{name} {version}" for name, version in stated[party].items()] if party in stated else None
        data = "in this directory" if party in found.here else "at the party: no part is here"
        yield party, part, None if names is None else names.get(party, party), versions, data


def _statement_rows(found: RunData) -> Iterator[Sequence[object]]:
    for party, folder in found.folders.items():
        if (signed := read_evidence(folder)) is not None and signed.own:
            last, by = signed.own[-1], sorted({each.by for each in signed.countersignatures})
            yield party, last.number, last.time, "yes" if last.signature else "no", by
