"""Commands about a finished run: audit attacks it; report tells what it was, and whether its records were signed so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated, Final, Literal

import typer

from veilgraph.cli.app import FAILED, command, option
from veilgraph.cli.output import echo, emit, messages, results, say
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER
from veilgraph.protocol.job import ATTACKS, LIMITED_FIGURES, UNLIMITED, AttackLimit, LimitedFigure

with deferred():
    from veilgraph.audit import finding
    from veilgraph.audit.audit import AuditPlan, audit
    from veilgraph.audit.sealing import compare_sessions
    from veilgraph.link.identity import load_roots
    from veilgraph.report import audit as shown
    from veilgraph.report import comparison, disclosures, documents, evidence_export, ledgers, page
    from veilgraph.report.run_data import read_run
    from veilgraph.report.training import heartbeat, left_words
    from veilgraph.runtime.store import records
    from veilgraph.runtime.store.run_directory import RunDirectory

EVIDENCE: Final = "evidence"
"""Name of the option that exports events."""


@command("audit", "veilgraph audit runs/digits --limit link-similarity=0.9", json=True)
def audit_command(
    run: Path,
    adversaries: list[str] | None = None,
    attacks: Annotated[
        list[str] | None, option(f"Of {', '.join((*ATTACKS, *UNLIMITED))}. Default: all.", "NAME", name="--attack")
    ] = None,
    limits: list[str] | None = None,
    seed: Annotated[int, option(min=0)] = 0,
    shadows: Annotated[int, option(min=2)] = 4,
    beside: Path | None = None,
    details: bool = False,
) -> None:
    """Attack what each party of a run saw, measure the leakage, and compare that with limits.

    Every adversary has what its own link recorded and its own data, and published attacks are mounted on that. The
    result is audit.json in the run's directory; veilgraph report RUN draws it. In one holder's part of a run across
    organisations the command shows what the newest net submit --work audit found.

    Exits with 3 where a limit is exceeded, may be exceeded by the 95 % interval, or was not tested; where a message
    that must say nothing says something; where canaries prove a larger ε than the ledger has; where an attack ends
    with an error; or where the run is not what it claims.

    Options:
        RUN (run): Directory of a complete run that was trained with --record-views.
        --adversary NAME (adversaries): server, a holder, client, or several together: server+B. Default: each by
            itself.
        --limit ATTACK[:FIGURE]=MOST (limits): Fail where an attack may find more, or cannot be mounted; over the job's
            limits. FIGURE: auc, tpr_at_1_percent or tpr_at_0_1_percent.
        --seed: Of everything drawn: the same seed gives the same audit.
        --shadows: Models that adversaries train for the membership attacks.
        --beside RUN: Another run of the same parties with views, or RUN itself: hold all recorded sessions against each
            other instead, and list what is repeated though it must be new. Takes no other option.
        --details: Print every finding, and why others are missing. Default: failed ones, and the strongest of each
            adversary on each secret.
    """
    plan = AuditPlan(
        adversaries=tuple(adversaries) if adversaries else None,
        attacks=tuple(attacks) if attacks else None,
        limits=_parse_limits(limits or []),
        seed=seed,
        shadows=shadows,
    )
    if beside is not None:
        if plan != AuditPlan(limits={}) or details:
            raise ConfigError(
                f"--beside={beside} compares sessions and mounts no attack; leave the other options out", key="--beside"
            )
        _compare_sessions(run, beside)
        return
    if (result := _read_joint_audit(run, plan)) is None:
        console, doing, done, begun = messages(), ["auditing"], [0.0], monotonic()

        def state() -> str:
            return doing[-1] + left_words(monotonic() - begun, done[-1], 1.0)

        with console.status("auditing") as status, heartbeat(console, state):

            def show(words: str) -> None:
                doing[:] = [f"auditing · {words}"]
                status.update(state())

            def row(found: finding.Finding) -> None:
                if not console.is_terminal:
                    console.print(shown.row_words(found), soft_wrap=True, highlight=False)

            result = audit(run, plan, show, done.append, row)
    failed = set(map(id, result.failed))
    few = [each for each in shown.strongest(result.findings) if id(each) not in failed]
    for line in shown.worst(result.findings):
        echo(line)
    results().print(shown.audit_table(result, None if details else [*result.failed, *few]))
    for line in (*filter(None, [shown.scope_line(result)]), *shown.skipped_lines(result.skipped, details=details)):
        say(line)
    echo(f"audit   {run / finding.AUDIT_FILE}\nreport  veilgraph report {run}")
    if result.failed:
        say(f"the audit failed: {len(result.failed)} of {len(result.findings)} findings do not pass")
    for line in shown.untested_lines(result.untested):
        say(line)
    emit({"run": run, "failed": not result.passed, **result.record()})
    if not result.passed:
        raise typer.Exit(FAILED)


def _compare_sessions(run: Path, other: Path) -> None:
    sessions, found = compare_sessions([run, other])
    for each in found:
        echo(str(each))
    echo(f"{len(sessions)} sessions held against each other: {len(found) or 'no'} repetitions")
    emit({"run": run, "beside": other, "sessions": [each.name for each in sessions], "found": list(map(str, found))})
    if found:
        raise typer.Exit(FAILED)


def _read_joint_audit(run: Path, plan: AuditPlan) -> finding.AuditResult | None:
    """Read the result of an audit across organisations; None if the run is of one machine. ``plan`` must be empty."""
    opened = RunDirectory.open(run)
    here = [each for each in (*opened.settings.data.names, SERVER) if opened.party_path(each).is_dir()]
    if not opened.settings.data.is_apart or len(here) > 1:
        return None
    if plan != AuditPlan(limits={}):
        raise ConfigError(
            "--adversary, --attack, --limit and the other options are for runs of all parties on one machine; leave "
            "them out: an audit across organisations has the job's limits"
        )
    found = shown.read_audit(run)
    if found is None:
        raise RunError(f"{run} was not audited; where all parties allow it: veilgraph net submit JOB.yaml --work audit")
    return found


def _parse_limits(texts: Sequence[str]) -> dict[str, AttackLimit]:
    found: dict[str, dict[LimitedFigure, float]] = {}
    for text in texts:
        attack, figure, highest = _parse_limit(text)
        found.setdefault(attack, {})[figure] = highest
    return {attack: AttackLimit(**figures) for attack, figures in found.items()}


def _parse_limit(text: str) -> tuple[str, LimitedFigure, float]:
    name, equals, value = text.partition("=")
    name, colon, asked = name.partition(":")
    figures = {each: each for each in LIMITED_FIGURES}
    figure = figures.get(asked if colon else "auc")  # type: ignore[call-overload]
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or name not in ATTACKS or figure is None or not (0.5 if figure == "auc" else 0) <= number <= 1:
        raise typer.BadParameter(
            f"{text!r} is not ATTACK=AUC with one of {', '.join(ATTACKS)} and an AUC from 0.5 to 1, as in "
            "link-similarity=0.9, or ATTACK:FIGURE=RATE with tpr_at_1_percent or tpr_at_0_1_percent and a rate from 0 "
            "to 1, as in membership-lira:tpr_at_1_percent=0.05",
            param_hint="--limit",
        )
    return name, figure, number


@command("report", "veilgraph report runs/digits", json=True)
def report_command(
    runs: list[Path],
    out: Path | None = None,
    by: str | None = None,
    party: Path | None = None,
    verify: bool = False,
    root: Path | None = None,
    dpia: Path | None = None,
    model_card: Path | None = None,
    register: Path | None = None,
    technical: Path | None = None,
    evidence: Path | None = None,
    form: Literal["jsonl", "cef"] | None = None,
) -> None:
    """Show what each party sent to whom, why it may leave the party, and what privacy it has cost; and write a page.

    The page is one HTML file that loads nothing: the job in words, who learned what, curves and scores, traffic,
    privacy ledgers, and the audit if there was one.

    Of several runs: the settings that differ, what each reached, and their curves over one another. Of a comparison:
    its page anew.

    With --verify nothing is written: every line of the records, and every signature and countersignature, is checked.
    Exits with 1 at the first that is not as it was signed, and names the file and the line.

    With --dpia, --model-card, --register, --technical or --evidence the command writes these files and no page. Every
    fact in them comes from the run's records. What a person must add is marked. The command does not write over a file
    that somebody has changed.

    Options:
        RUN... (runs): Directory of a run, whole or one organisation's part, or of a comparison; of several runs one
            page.
        --out FILE.html: The page. Default: RUN/report.html, DIR/comparison.html; of several runs.html beside the first.
        --by COLUMN: A column of the label holder's own tables: how well each group of test nodes is predicted.
        --party party.yaml: With --by: the label holder's party file. With documents: the file of a party whose part is
            here; its limits and its ledger for life are shown. Default: the job's.
        --verify: Check that the records are those that were signed; no page.
        --root FILE: With --verify: the project's root certificate. Default: the run's own copy.
        --dpia FILE.md: Data protection impact assessment (GDPR, article 35).
        --model-card FILE.md: Model card: intended use, data, metrics, limitations, privacy.
        --register FILE.md: Register of ICT services (DORA, article 28): who ran which role, where the data are.
        --technical FILE.md: Technical documentation (AI Act, Annex IV).
        --evidence FILE.jsonl: The run's events for a SIEM: a JSON object on each line, or CEF in FILE.cef.
        --format FORMAT (form): Format of --evidence: jsonl or cef. Default: by the end of the file's name.
    """
    files = {"dpia": dpia, "model-card": model_card, "register": register, "technical": technical, "evidence": evidence}
    wanted = {name: path for name, path in files.items() if path is not None}
    _check_options(runs, out, by, party, root, verify=verify, filled=bool(wanted.keys() - {EVIDENCE}))
    _check_files(wanted, form, alone=not verify and by is None and out is None and len(runs) == 1)

    run, *others = runs
    if wanted:
        _write_documents(run, wanted, party, form)
        return
    if verify:
        signed = records.verify(RunDirectory.open(run), () if root is None else load_roots(root))
        results().print(disclosures.evidence_table(signed))
        emit({"run": run, "records": signed})
        return
    if others:
        with messages().status("writing the page"):
            written = page.write_several([RunDirectory.open(each) for each in runs], out)
        echo(f"page    {written}")
        return

    if comparison.is_comparison(run):
        if by is not None:
            raise typer.BadParameter(f"is of a run, and {run} is a comparison; leave it out", param_hint="--by")
        echo(f"page    {comparison.write_comparison(run, out)}")
        return
    with messages().status("writing the page"):
        found = read_run(RunDirectory.open(run))
        written = page.write_page(found, out, by, party)
    if found.deals is not None:
        echo(f"party server is certified as {found.deals}")
    if found.sent:
        results().print(disclosures.disclosure_table(found.sent))
        results().print(disclosures.reasons_table(found.sent))
        if line := disclosures.left_out_line(found.sent):
            echo(line)
    else:
        echo("nothing is on record as sent in this run yet")
    if found.spent:
        results().print(ledgers.spent_table(found.spent, found.settings))
        if said := ledgers.life_note(found.spent):
            echo(said)
    echo(f"page    {written}")
    emit({"run": run, "page": written, "deals": found.deals, "sent": found.sent, "spent": found.spent or None})


def _write_documents(run: Path, wanted: Mapping[str, Path], party: Path | None, form: str | None) -> None:
    """Write documents and the run's events, name → file: none where one cannot be filled in."""
    if comparison.is_comparison(run):
        raise ConfigError(f"run={str(run)!r} is a comparison, and documents are of one run; give its run", key="run")
    with messages().status("filling in the documents"):
        found = read_run(RunDirectory.open(run))
        names = [name for name in wanted if name != EVIDENCE]
        content = documents.filled(found, names, party) if names else {}
        if (path := wanted.get(EVIDENCE)) is not None:
            content[EVIDENCE] = evidence_export.exported(found, form or path.suffix.removeprefix("."))
        documents.write_files({path: content[name] for name, path in wanted.items()})
    for name, path in wanted.items():
        echo(f"{name:<11} {path}")
    emit({"run": run, "files": wanted})


def _check_files(wanted: Mapping[str, Path], form: str | None, *, alone: bool) -> None:
    """Refuse documents beside a page or several runs, two in one file, and names that do not say what is in them."""
    for place, (name, path) in enumerate(wanted.items()):
        ends = (".jsonl", ".cef") if name == EVIDENCE else (".md",)
        wrong = {
            "is written without a page, of one run; leave --verify, --out, --by and other runs out": not alone,
            f"{path} must end in {' or '.join(ends)}": path.suffix not in ends and not (form and name == EVIDENCE),
            f"{path} is given twice; give each a file of its own": path.absolute()
            in [other.absolute() for other in list(wanted.values())[:place]],
        }
        for why in (why for why, refused in wrong.items() if refused):
            raise typer.BadParameter(why, param_hint=f"--{name}")
    if form is not None and EVIDENCE not in wanted:
        raise typer.BadParameter("is for --evidence; give both, or leave it out", param_hint="--format")


def _check_options(
    runs: list[Path],
    out: Path | None,
    by: str | None,
    party: Path | None,
    root: Path | None,
    *,
    verify: bool,
    filled: bool,
) -> None:
    wrong = {
        "--out": (verify and out is not None, "--verify writes no page; leave one of the two out"),
        "--verify": (verify and len(runs) > 1, "is of one run; give one, or leave it out"),
        "--by": (by is not None and (verify or len(runs) > 1), "is of the page of one run; leave it out"),
        "--party": (party is not None and by is None and not filled, "is for --by and documents; leave it out"),
        "--root": (root is not None and not verify, "is for --verify; give both, or leave it out"),
    }
    for name, (refused, why) in wrong.items():
        if refused:
            raise typer.BadParameter(why, param_hint=name)
    if out is not None and out.suffix != ".html":
        raise typer.BadParameter(f"{out} must end in .html", param_hint="--out")
