"""Commands for jobs across organisations: all of the group net."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from veilgraph.cli.app import (
    FAILED,
    Overrides,
    PassphraseFile,
    Replace,
    argument,
    check_new,
    command,
    flag,
    net,
    open_kit,
    option,
    passphrase_source,
    read_settings,
)
from veilgraph.cli.output import LogFormat, echo, emit, messages, plain, results, say, set_log_party, start_log
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import write_whole
from veilgraph.core.text import printable

with deferred():
    from veilgraph.deploy import control, serve
    from veilgraph.deploy.authority import Authority
    from veilgraph.deploy.join import join
    from veilgraph.deploy.kit import Kit
    from veilgraph.deploy.metrics.door import Address, read_address
    from veilgraph.deploy.module_key import KeyUri, open_key
    from veilgraph.deploy.progress import SiteJobs
    from veilgraph.deploy.project import draft_project, extend, provision, read_project
    from veilgraph.deploy.submit import refresh, submit
    from veilgraph.link.identity import Trust, load_roots
    from veilgraph.protocol import consent
    from veilgraph.protocol.limits import revelations
    from veilgraph.report.tables import table
    from veilgraph.runtime.session import dispute
    from veilgraph.runtime.session.witness import Evidence
    from veilgraph.runtime.store.predictions import predicting_holder
    from veilgraph.runtime.store.run_directory import RunDirectory

MetricsOption = Annotated[
    str | None,
    option(
        "Address that serves Prometheus metrics (/metrics), /ready and /healthz. Default: none. Port 0: any free one.",
        "HOST:PORT",
        name="--metrics",
    ),
]
MetricsOpen = Annotated[
    bool, flag("--metrics-open", "With --metrics: let other machines read them, without TLS and without a token.")
]
KitOption = Annotated[Path, option("An administrator's start-up kit.", "KIT", name="--kit")]
JobId = Annotated[str | None, argument("Id, or its beginning. Default: the newest.", "[JOB-ID]")]


@command("init", "veilgraph net init bank shop --server fl.example.org --administrator ops@example.org", net)
def init_command(
    holders: list[str],
    administrators: list[str],
    server: str = "localhost",
    port: int = 8002,
    dealer: str | None = None,
    broker: list[str] | None = None,
    name: str = "consortium",
    out: Path = Path("project.yaml"),
    replace: Replace = False,
) -> None:
    """Write a project file: who takes part, and where the server is.

    Options:
        HOLDERS... (holders): Names of the data holders, as jobs name them.
        --administrator E-MAIL (administrators): Person who submits jobs; may be given several times.
        --server HOST: Host name of the server.
        --port: Port of the server's broker, for everybody.
        --dealer NAME: Name of a machine of its own that deals. Default: the server deals.
        --broker HOST: Host of a further broker, at the same port; may be given several times.
        --name NAME: Name of the consortium.
        --out FILE: The project file to write.
    """
    check_new(out, replace=replace)

    text = draft_project(name, (server, port), holders, administrators, dealer, broker or ())
    write_whole(out, text.encode())
    echo(f"{out} is written; make everybody's kit with: veilgraph net provision {out}")


@command("provision", "veilgraph net provision project.yaml --out consortium", net)
def provision_command(
    project: Path,
    out: Path = Path("consortium"),
    add: bool = False,
    root_key: str | None = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make certificates and one start-up kit per participant.

    Run it on a machine that is neither the server nor a holder's, give every participant its kit over a safe channel,
    and keep authority/ off line: whoever has that key can name new participants.

    Options:
        PROJECT.yaml (project): Who takes part, and where the server is.
        --out DIR: Folder to make.
        --add: Make kits in a folder that exists, for new holders and administrators of the project file alone.
        --root-key URI: pkcs11: URI of a key in a module, that is to sign certificates; its PIN is the passphrase.
    """
    authority = out / "authority"
    if add and root_key is not None:
        raise ConfigError("--root-key: with --add the project has its root; leave one out")
    if add:
        kits = extend(
            read_project(project), Authority(authority, passphrase_source(passphrase_file, of=authority)), out
        )
    else:
        uri = None if root_key is None else KeyUri.read(root_key)
        pin = passphrase_source(passphrase_file, of=authority)
        kits = provision(read_project(project), out, None if uri is None else open_key(uri, pin()))
    for name, kit in kits.items():
        echo(f"{name:24} {kit}")
    echo(f"{'(signing key)':24} {authority}: keep it off line, and never at the server")
    echo("all keys were made here: hand the kits over, then delete your copies")
    if add:
        newest = authority / "roles.json"
        echo(f"{newest}: no secret; for everybody else, the server first: veilgraph cert install KIT roles.json")
    echo(
        "next, at the server, and at the dealer if it is another machine: veilgraph net join KIT; at every holder: "
        "veilgraph net join KIT --party party.yaml"
    )


@command("join", "veilgraph net join consortium/kits/bank --party bank/party.yaml", net)
def join_command(
    kit: Path,
    party: Path | None = None,
    runs: Path | None = None,
    connect: Annotated[float, option(min=1)] = 60.0,
    current_list: bool = False,
    passphrase_file: PassphraseFile = None,
    restart: bool = False,
    allow_audit: bool = False,
    metrics: MetricsOption = None,
    metrics_open: MetricsOpen = False,
    log_format: LogFormat = "text",
) -> None:
    """Take part in the project's jobs from this machine, until stopped with Ctrl-C.

    Options:
        KIT (kit): The start-up kit of the server, the dealer or a holder.
        --party PARTY.yaml: The holder's own party file.
        --runs DIR: Where runs are kept. Default: in the kit.
        --connect SECONDS: Longest wait for the first connection.
        --current-list: Take part only while a list of revoked certificates is installed that has not expired.
        --restart: At the dealer, which is the server unless the project names another: let a training begin again if a
            holder has lost its part of the run. A holder allows it in its party file: limits.restart.
        --allow-audit: At the dealer, which is the server unless the project names another: record what it sends and
            receives in training, and answer the holders' audits. A holder allows it in its party file:
            limits.allow_audit.
    """
    report = start_log(log_format, say)

    address = _metrics_address(metrics, metrics_open)
    opened = open_kit(kit, passphrase_file)
    set_log_party(report, opened.name)
    join(
        opened,
        party,
        runs,
        report=report,
        connect_s=connect,
        current_list=current_list,
        restarts=restart,
        allows_audit=allow_audit,
        metrics=address,
    )


def _metrics_address(text: str | None, beyond: bool) -> Address | None:
    if text is None and beyond:
        raise typer.BadParameter("is for --metrics; give both, or leave it out", param_hint="--metrics-open")
    return None if text is None else read_address(text, beyond=beyond)


@command("submit", "veilgraph net submit job.yaml --kit consortium/kits/ops@example.org", net)
def submit_command(
    job: Path,
    kit: KitOption,
    work: Literal["train", "align", "predict", "refresh", "answer", "audit"] = "train",
    overrides: Overrides = None,
    resume: bool = False,
    retries: Annotated[int, option(min=0)] = 0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")] = True,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Run a job at all parties: each checks it against its own party file, and refuses it or takes part.

    Options:
        JOB.yaml (job): The job; data.holders names the holders.
        --work WORK: train: align the tables if they are not aligned, then train. align: align alone. predict: predict
            the nodes that today's tables have in common, with the trained run. answer: in a job with online, open
            single nodes for net serve at the label holder until stopped, from shares of the newest prediction. refresh:
            predict, and with online answer from it, in place of a session that answers from the prediction before.
            audit: every party attacks the holders' data with what it saw; all parties must allow it.
        --resume: Continue the run of this name from the parties' checkpoints.
        --retries: How many times to continue with --resume after a lost party or connection.
    """
    settings = read_settings(job, overrides)
    if work == "refresh" and resume:
        raise typer.BadParameter("a refresh predicts from the beginning; leave it out", param_hint="--resume")
    opened = open_kit(kit, passphrase_file)

    if work == "refresh":
        refresh(opened, settings, wait=wait, retries=retries, report=say)
    else:
        submit(opened, settings, work, resume=resume, wait=wait, retries=retries, report=say)
    if wait and work == "audit":
        where = f"runs/{settings.name} in its own kit, or where it joined with --runs"
        echo(f"done; every holder finds what was found out about it with: veilgraph audit RUN, RUN being {where}")
    elif wait and work != "align":
        several = len(settings.duties.scoring) > 1
        who = "every" if several else "the label"
        kit_of = "its own kit" if several else f"the kit of {settings.data.label_party}"
        where = f"runs/{settings.name} in {kit_of}"
        found = "metrics" if work == "train" and settings.outcome.predicts_named else "metrics and predictions"
        echo(f"done; {who} holder finds {found} in {where}, or where it joined with --runs")


@command("status", "veilgraph net status --kit consortium/kits/ops@example.org", net, json=True)
def status_command(kit: Path, passphrase_file: PassphraseFile = None) -> None:
    """Show who is connected, which jobs were submitted, and how far running jobs are.

    With a site's own kit it shows that site's jobs as its own log has them, and asks nobody.

    Options:
        --kit KIT: An administrator's kit, which asks every site, or a site's own.
    """
    opened = open_kit(kit, passphrase_file)
    if opened.kind != "administrator":
        _show_site_jobs(opened)
        return
    found = control.status(opened)
    emit(found.record())

    echo(f"connected: {', '.join(found.connected) or 'nobody'}; {found.roles}")
    results().print(table(None, ("site", "is"), found.sites.items()))
    jobs = ((job.job_id, job.name, job.work, job.status, job.submitted, job.says) for job in found.jobs)
    results().print(_table_with_ids(("job", "name", "work", "status", "submitted", "newest"), jobs))


def _show_site_jobs(kit: Kit) -> None:
    jobs = SiteJobs(kit).now()
    echo(f"{kit.name}: {sum(job.state == 'running' for job in jobs)} of {len(jobs)} jobs run")
    rows = []
    for job in jobs:
        epoch = "" if job.epoch is None else f"{job.epoch}{'' if job.epochs is None else f' of {job.epochs}'}"
        quiet = "" if job.quiet_s is None or job.state != "running" else f"{job.quiet_s:.0f} s"
        rows.append((job.job_id, job.title, job.work, job.state, epoch, quiet))
    results().print(_table_with_ids(("job", "name", "work", "is", "epoch", "silent for"), rows))
    emit({"site": kit.name, "kind": kit.kind, "jobs": jobs})


def _table_with_ids(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table whose first column, of ids that people copy, is never wrapped."""
    found = table(None, columns, rows, fold=True)
    found.columns[0].no_wrap = True
    return found


@command("logs", "veilgraph net logs --kit consortium/kits/bank", net)
def logs_command(
    kit: Path, job_id: JobId = None, everything: bool = False, passphrase_file: PassphraseFile = None
) -> None:
    """Print the log of a job. What a party's log says stays with that party.

    Options:
        --kit KIT: An administrator's kit, for the dealer's log, or a site's kit, for its own log.
        --all (everything): Include the messages of libraries.
    """
    echo(control.logs(open_kit(kit, passphrase_file), job_id, everything=everything), nl=False)


@command("stop", "veilgraph net stop --kit consortium/kits/ops@example.org", net)
def stop_command(kit: KitOption, job_id: JobId = None, passphrase_file: PassphraseFile = None) -> None:
    """Stop a running job, by default the newest of them. Parties keep checkpoints, and net submit --resume goes on."""
    with messages().status("stopping"):
        stopped = control.stop(open_kit(kit, passphrase_file), job_id)
    echo(f"stopped {stopped}")


@command("serve", "veilgraph net serve runs/fraud --certificate tls.crt --key tls.key --token-file token", net)
def serve_command(
    run: Path,
    certificate: Path,
    key: Path,
    token_file: Path,
    host: str = "127.0.0.1",
    port: Annotated[int, option(min=0, max=65535)] = 8443,
    max_age_days: Annotated[float | None, option(min=0)] = None,
    metrics: MetricsOption = None,
    metrics_open: MetricsOpen = False,
    log_format: LogFormat = "text",
) -> None:
    """Answer POST /predict with ids over HTTPS from the newest joint inference, until stopped with Ctrl-C.

    Options:
        RUN (run): The label holder's part of a trained run from tables.
        --certificate FILE.pem: Certificate of this service.
        --key FILE.pem: Private key of the certificate.
        --token-file FILE: File with the token that callers must show; made if it does not exist.
        --host HOST: Address to listen at.
        --port: Port to listen at; 0: any free one.
        --max-age-days DAYS: Refuse to answer when the newest inference is older.
    """
    log = start_log(log_format, say)

    address = _metrics_address(metrics, metrics_open)
    set_log_party(log, predicting_holder(RunDirectory.open(run)))
    serve.serve(
        run,
        host=host,
        port=port,
        certificate=certificate,
        key=key,
        token_file=token_file,
        report=log,
        max_age_s=None if max_age_days is None else max_age_days * 86400,
        metrics=address,
    )


@command("consent", "veilgraph net consent approve 3f2a --kit consortium/kits/bank", net, json=True)
def consent_command(
    answer: Literal["show", "approve", "refuse"] = "show", job: str | None = None, reason: str = "", kit: Path = Path()
) -> None:
    """Show how many jobs this holder took part in and which wait for approval; approve or refuse one.

    approve lets a waiting job begin once, with exactly the settings shown; it may continue after a failure. refuse ends
    it at all parties, before any data are sent. Jobs wait only if the party file says consent: {approval: ask}. Only
    submitted jobs are counted and wait: train on one machine does neither.

    Options:
        (answer): What to do: show the waiting jobs, approve one, or refuse one.
        [JOB] (job): Id of the job, or its beginning.
        --reason TEXT: With refuse: why. Every party and the administrator see it.
        --kit KIT: The holder's start-up kit. Default: the current folder.
    """
    if (job is None) != (answer == "show"):
        way = "give the job's id, as net consent shows it" if job is None else "is for approve or refuse; leave it out"
        raise typer.BadParameter(way, param_hint="JOB")
    if reason and answer != "refuse":
        raise typer.BadParameter("is for refuse; leave it out", param_hint="--reason")
    holder = _open_holder_kit(kit)
    if job is None:
        _show_consent(holder)
        return
    found = _find_waiting(holder, job)
    consent.answer(holder.consent, found, approved=answer == "approve", reason=reason)
    if answer == "approve":
        _print_waiting(holder, found)
    answered = "approved" if answer == "approve" else "refused"
    echo(f"{answered} {found.request.job}")
    emit({"job": found.request.job, "answer": answered})


def _open_holder_kit(path: Path) -> Kit:
    kit = Kit.open(path)
    if kit.kind != "holder":
        raise ConfigError(f"{kit.path} is the kit of {kit.name}, which has no data to consent for; give a holder's")
    return kit


def _find_waiting(kit: Kit, job: str) -> consent.Waiting:
    found = [each for each in consent.all_waiting(kit.consent) if each.request.job.startswith(job)]
    if len(found) != 1:
        raise RunError(f"{job!r} names {len(found)} waiting jobs, not one; see veilgraph net consent --kit {kit.path}")
    return found[0]


def _show_consent(kit: Kit) -> None:
    """Print how many jobs a holder took part in, in all and in the last 24 hours, and those that wait for approval."""
    entries, waiting = consent.Journal(kit.consent).entries(), consent.all_waiting(kit.consent)
    spans = {"all": None, "day": consent.utc_now() - consent.DAY}
    counts = {
        what: {span: consent.count(entries, what, since) for span, since in spans.items()}
        for what in ("job", "alignment")
    }
    echo("; ".join(f"{what}s: {of['all']} in all, {of['day']} in the last 24 hours" for what, of in counts.items()))
    for each in waiting:
        _print_waiting(kit, each)
        echo(f"approve it with: veilgraph net consent approve {each.request.job} --kit {kit.path}")
    if not waiting:
        echo("no job waits for approval")
    asked = [{**plain(each.request), "reveals": revelations(each.request.settings, kit.name)} for each in waiting]
    emit({"taken_part": counts, "waiting": asked})


def _print_waiting(kit: Kit, waiting: consent.Waiting) -> None:
    """Print a waiting job in words, with the file that has all of its settings."""
    request, settings = waiting.request, waiting.request.settings
    going_on = ", going on with a run" if request.resume else ""
    echo(f"{request.job}: {settings.name}, {request.work}{going_on}, settings {settings.hash()[:12]}")
    echo(f"  {kit.roles.in_job(settings)}")
    for name, text in () if settings.record is None else settings.record.told():
        echo(f"  {name}: {' '.join(text.split())}")
    echo(f"  all settings: {kit.consent / consent.REQUESTS / f'{request.job}.json'}")
    for name, statement in revelations(settings, kit.name).items():
        echo(f"  reveals {name}: {statement}")


@command("dispute", "veilgraph net dispute bank shop server --root rootCA.pem --dealer fl.example.org", net, json=True)
def dispute_command(folders: list[Path], root: Path | None = None, dealer: str | None = None) -> None:
    """Run a training of a sealed job with disputes: true again, and name the party that deviated from it.

    Whoever runs this gets all of every party: its graph, what it put in, and the key of all that it drew. So every
    party has to agree, and hands over its folder of that run by itself. Ends with 3 where a party is named, or its part
    ends with an error.

    Options:
        FOLDER... (folders): The folder dispute in each party's part of the run, the dealer's too.
        --root rootCA.pem: The project's root certificate, from any kit. Default: none, for a run on one machine, whose
            folders prove nothing to others.
        --dealer NAME: With --root: name in the dealer's certificate, the server's host or the project's dealer.
    """
    if (root is None) != (dealer is None):
        raise typer.BadParameter("give both, or neither for a run on one machine", param_hint="--root, --dealer")
    trust = Trust() if root is None or dealer is None else Trust(load_roots(root), server_name=dealer)
    with messages().status("running the session again"):
        found = dispute.dispute([Evidence.read(folder) for folder in folders], trust)
    emit(plain(found))
    for party, count in found.compared.items():
        echo(f"{party}: {count} messages are what follows from what it committed to and took")
        for words, about in (
            ("DEVIATED: ", found.named),
            ("not judged after it took a wrong message, ", found.unjudged),
            ("its part ended here: ", found.stopped),
        ):
            if party in about:
                echo(f"{party}: {words}{printable(about[party], 300)}")
    if unseen := sum(found.unseen.values()):
        echo(
            f"not judged: {unseen} more messages, which nobody's evidence has. The session ended before them, or who "
            "took them hides them. Predictions are never signed"
        )
    for party, count in found.lacking.items():
        echo(
            f"not judged: {count} later sessions that {party} has no evidence of. They ended before a checkpoint, or "
            f"{party} hides them, or who has them made them up"
        )
    if found.named or found.stopped:
        raise typer.Exit(FAILED)
