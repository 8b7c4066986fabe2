"""Commands for jobs across organisations: net init, provision, join, submit, consent, status, logs, stop, serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from veilgraph.cli.app import Overrides, Replace, check_new, command, net, read_settings
from veilgraph.cli.kits import PassphraseFile, open_kit
from veilgraph.cli.output import LogFormat, begun, echo, emit, messages, of_party, plain, results, say
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from veilgraph.deploy.kit import Kit
    from veilgraph.deploy.metrics.door import Address
    from veilgraph.protocol.consent import Waiting

MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at /metrics there, and /ready and /healthz. Default: nowhere. Port 0: any.",
    ),
]
MetricsOpen = Annotated[
    bool,
    typer.Option(
        "--metrics-open",
        metavar="",
        help="With --metrics: other machines may read them; without TLS, and without a token.",
    ),
]
KitOption = Annotated[Path, typer.Option("--kit", metavar="KIT", help="An administrator's start-up kit.")]
JobId = Annotated[str | None, typer.Argument(metavar="[JOB-ID]", help="Id, or its beginning. Default: the newest.")]


@command("init", "veilgraph net init bank shop --server fl.example.org --administrator ops@example.org", net)
def init_command(
    holders: Annotated[list[str], typer.Argument(metavar="HOLDERS...", help="Their names, as jobs name them.")],
    administrators: Annotated[
        list[str],
        typer.Option("--administrator", metavar="E-MAIL", help="Who submits jobs; may be given several times."),
    ],
    server: Annotated[str, typer.Option(metavar="HOST", help="The server's name in the network.")] = "localhost",
    port: Annotated[int, typer.Option(help="Of the server's broker, for all.")] = 8002,
    dealer: Annotated[
        str | None, typer.Option(metavar="NAME", help="A machine of its own that deals. Default: the server does.")
    ] = None,
    broker: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A further broker, at the same port; may be given several times."),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the consortium.")] = "consortium",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The project file to write.")] = Path("project.yaml"),
    replace: Replace = False,
) -> None:
    """Write a project file: who takes part, and where the server is."""
    check_new(out, replace=replace)
    from veilgraph.deploy.project import draft_project

    text = draft_project(name, (server, port), holders, administrators, dealer, broker or ())
    write_whole(out, text.encode())
    echo(f"{out} is written; make everybody's kit with: veilgraph net provision {out}")


@command("provision", "veilgraph net provision project.yaml --out consortium", net)
def provision_command(
    project: Annotated[Path, typer.Argument(metavar="PROJECT.yaml", help="Who takes part, and where the server is.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make.")] = Path("consortium"),
) -> None:
    """Make certificates and one start-up kit per participant.

    Run it on a machine that is neither the server nor a holder's, give every participant its kit over a safe channel,
    and keep authority/ off line: whoever has that key can name new participants.
    """
    from veilgraph.deploy.project import provision, read_project

    kits = provision(read_project(project), out)
    for name, kit in kits.items():
        echo(f"{name:24} {kit}")
    echo(f"{'(signing key)':24} {out / 'authority'}: keep it off line, and never at the server")
    echo("every key was made here: hand the kits over, then remove your copies of them")
    echo(
        "next, at the server, and where somebody else deals there: veilgraph net join KIT; at every holder: veilgraph "
        "net join KIT --party party.yaml"
    )


@command("join", "veilgraph net join consortium/kits/bank --party bank/party.yaml", net)
def join_command(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The start-up kit of the server, the dealer or a holder.")],
    party: Annotated[Path | None, typer.Option(metavar="PARTY.yaml", help="The holder's own party file.")] = None,
    runs: Annotated[Path | None, typer.Option(metavar="DIR", help="Where runs are kept. Default: in the kit.")] = None,
    connect: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Longest wait for the first connection.")
    ] = 60.0,
    current_list: Annotated[
        bool,
        typer.Option(
            "--current-list",
            metavar="",
            help="Take part only while the list of revoked certificates is here and not past its time.",
        ),
    ] = False,
    passphrase_file: PassphraseFile = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            metavar="",
            help="At who deals, the server unless the project names another: a training may begin again, in place of "
            "what is here of it, where a holder has lost its part. A holder says so in its party file: limits.restart.",
        ),
    ] = False,
    allow_audit: Annotated[
        bool,
        typer.Option(
            "--allow-audit",
            metavar="",
            help="At who deals, the server unless the project names another: keep what it sends and receives in "
            "training, and answer audits of the holders. A holder says so in its party file: limits.allow_audit.",
        ),
    ] = False,
    metrics: MetricsOption = None,
    metrics_open: MetricsOpen = False,
    log_format: LogFormat = "text",
) -> None:
    """Take part in the project's jobs from this machine, until stopped with Ctrl-C."""
    report = begun(log_format, say)
    from veilgraph.deploy.join import join

    address = _metrics_at(metrics, metrics_open)
    opened = open_kit(kit, passphrase_file)
    of_party(report, opened.name)
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


def _metrics_at(text: str | None, beyond: bool) -> Address | None:
    from veilgraph.deploy.metrics.door import read_address

    if text is None and beyond:
        raise typer.BadParameter("is for --metrics; give both, or leave it out", param_hint="--metrics-open")
    return None if text is None else read_address(text, beyond=beyond)


@command("submit", "veilgraph net submit job.yaml --kit consortium/kits/ops@example.org", net)
def submit_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job; data.holders names the holders.")],
    kit: KitOption,
    work: Annotated[
        Literal["train", "align", "predict", "audit"],
        typer.Option(
            metavar="WORK",
            help="train: align the tables if need be, and train. align: only that. predict: with the trained run, for "
            "all nodes that the tables have in common now. audit: every holder has the others attack it with what they "
            "saw, where all allow it.",
        ),
    ] = "train",
    overrides: Overrides = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", metavar="", help="Go on with the run of this name from the parties' checkpoints."),
    ] = False,
    retries: Annotated[
        int, typer.Option(min=0, help="After a lost party or connection, go on with --resume so many times.")
    ] = 0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end.")] = True,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Run a job at all parties: each checks it against its own party file, and refuses it there or takes part."""
    settings = read_settings(job, overrides)
    from veilgraph.deploy.submit import submit

    submit(open_kit(kit, passphrase_file), settings, work, resume=resume, wait=wait, retries=retries, report=say)
    if wait and work == "audit":
        where = f"runs/{settings.name} in its own kit, or where it joined with --runs"
        echo(f"done; every holder finds what was found out about it with: veilgraph audit RUN, RUN being {where}")
    elif wait and work != "align":
        several = len(settings.duties.scoring) > 1
        who = "every" if several else "the label"
        kit_of = "its own kit" if several else f"the kit of {settings.data.label_party}"
        where = f"runs/{settings.name} in {kit_of}"
        echo(f"done; {who} holder finds metrics and predictions in {where}, or where it joined with --runs")


@command("status", "veilgraph net status --kit consortium/kits/ops@example.org", net, json=True)
def status_command(
    kit: Annotated[
        Path,
        typer.Option(
            "--kit",
            metavar="KIT",
            help="An administrator's kit: asks every site. A site's: its own jobs; asks nobody.",
        ),
    ],
    passphrase_file: PassphraseFile = None,
) -> None:
    """Show who is connected, which jobs were submitted, and how far those are that run.

    With a site's own kit: the jobs that it has, and how far each is, as its own log says.
    """
    from veilgraph.deploy.control import status

    opened = open_kit(kit, passphrase_file)
    if opened.kind != "administrator":
        _show_site(opened)
        return
    found = status(opened)
    emit(found.record())
    from veilgraph.report.tables import table

    echo(f"connected: {', '.join(found.connected) or 'nobody'}; {found.roles}")
    results().print(table(None, ("site", "is"), ((site.name, site.state) for site in found.sites)))
    results().print(
        _with_ids(
            ("job", "name", "status", "submitted", "newest"),
            (
                (job.job_id, job.name, job.status.lower().replace("_", " "), job.submitted, job.says)
                for job in found.jobs
            ),
        )
    )


def _show_site(kit: Kit) -> None:
    from veilgraph.deploy.progress import SiteJobs

    jobs = SiteJobs(kit).now()
    echo(f"{kit.name}: {sum(job.state == 'running' for job in jobs)} of {len(jobs)} jobs run")
    rows = []
    for job in jobs:
        epoch = "" if job.epoch is None else f"{job.epoch}{'' if job.epochs is None else f' of {job.epochs}'}"
        quiet = "" if job.quiet_s is None or job.state != "running" else f"{job.quiet_s:.0f} s"
        rows.append((job.job_id, job.name, job.state, epoch, quiet))
    results().print(_with_ids(("job", "name", "is", "epoch", "silent for"), rows))
    emit({"site": kit.name, "kind": kit.kind, "jobs": jobs})


def _with_ids(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is copied by people, and so never wrapped."""
    from veilgraph.report.tables import table

    found = table(None, columns, rows, fold=True)
    found.columns[0].no_wrap = True
    return found


@command("logs", "veilgraph net logs --kit consortium/kits/bank", net)
def logs_command(
    kit: Annotated[
        Path,
        typer.Option(
            "--kit", metavar="KIT", help="An administrator's kit: what who deals tells. A site's: its own log."
        ),
    ],
    job_id: JobId = None,
    everything: Annotated[bool, typer.Option("--all", metavar="", help="With what libraries say.")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Print the log of a job. What a party's log says stays with that party."""
    from veilgraph.deploy.control import logs

    echo(logs(open_kit(kit, passphrase_file), job_id, everything=everything), nl=False)


@command("stop", "veilgraph net stop --kit consortium/kits/ops@example.org", net)
def stop_command(kit: KitOption, job_id: JobId = None, passphrase_file: PassphraseFile = None) -> None:
    """Stop a running job; the parties keep their checkpoints, and net submit --resume goes on."""
    from veilgraph.deploy.control import stop

    with messages().status("stopping"):
        stopped = stop(open_kit(kit, passphrase_file), job_id)
    echo(f"stopped {stopped}")


@command("serve", "veilgraph net serve runs/fraud --certificate tls.crt --key tls.key --token-file token", net)
def serve_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The label holder's part of a trained run from tables.")],
    certificate: Annotated[Path, typer.Option(metavar="FILE.pem", help="Certificate of this service.")],
    key: Annotated[Path, typer.Option(metavar="FILE.pem", help="Its private key.")],
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="Holds the token that callers must show; made if it does not exist.")
    ],
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8443,
    max_age_days: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Refuse to answer from an older inference.")
    ] = None,
    metrics: MetricsOption = None,
    metrics_open: MetricsOpen = False,
    log_format: LogFormat = "text",
) -> None:
    """Answer POST /predict with ids over HTTPS from the newest joint inference, until stopped with Ctrl-C."""
    log = begun(log_format, say)
    from veilgraph.deploy.serve import label_holder_of, serve

    address = _metrics_at(metrics, metrics_open)
    of_party(log, label_holder_of(run))
    serve(
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
    answer: Annotated[
        Literal["show", "approve", "refuse"], typer.Argument(help="What to do with a waiting job; show: with none.")
    ] = "show",
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Id of the job, or its beginning.")] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="With refuse: told to every party and the administrator.")
    ] = "",
    kit: Annotated[
        Path, typer.Option("--kit", metavar="KIT", help="The holder's start-up kit. Default: here.")
    ] = Path(),
) -> None:
    """Show how many jobs this holder has taken part in and those that wait for approval, and answer these.

    approve lets a waiting job begin: with exactly the settings shown, once; going on after a failure is part of it.
    refuse ends it at all parties, before anything of the data is sent. Jobs wait only where the party file says
    consent: {approval: ask}. What it says under consent is about submitted jobs: train on one machine counts and asks
    nothing.
    """
    from veilgraph.protocol.consent import answer as say_answer

    if (job is None) != (answer == "show"):
        way = "give the job's id, as net consent shows it" if job is None else "is for approve or refuse; leave it out"
        raise typer.BadParameter(way, param_hint="JOB")
    if reason and answer != "refuse":
        raise typer.BadParameter("is for refuse; leave it out", param_hint="--reason")
    holder = _holder(kit)
    if job is None:
        _show_consent(holder)
        return
    found = _waiting(holder, job)
    say_answer(holder.consent, found, approved=answer == "approve", reason=reason)
    if answer == "approve":
        _show(holder, found)
    answered = "approved" if answer == "approve" else "refused"
    echo(f"{answered} {found.request.job}")
    emit({"job": found.request.job, "answer": answered})


def _holder(path: Path) -> Kit:
    from veilgraph.deploy.kit import Kit

    kit = Kit.open(path)
    if kit.kind != "holder":
        raise ConfigError(f"{kit.path} is the kit of {kit.name}, which has no data to consent for; give a holder's")
    return kit


def _waiting(kit: Kit, job: str) -> Waiting:
    from veilgraph.protocol.consent import all_waiting

    found = [each for each in all_waiting(kit.consent) if each.request.job.startswith(job)]
    if len(found) != 1:
        raise RunError(f"{job!r} names {len(found)} waiting jobs, not one; see veilgraph net consent --kit {kit.path}")
    return found[0]


def _show_consent(kit: Kit) -> None:
    """How many jobs there were, in all and in the last 24 hours, and those that wait."""
    from veilgraph.protocol.consent import DAY, Journal, all_waiting, count, utc_now
    from veilgraph.protocol.limits import revealed_of

    entries, yesterday, waiting = Journal(kit.consent).entries(), utc_now() - DAY, all_waiting(kit.consent)
    counts = {
        what: {"all": count(entries, what), "day": count(entries, what, yesterday)} for what in ("job", "alignment")
    }
    echo("; ".join(f"{what}s: {of['all']} in all, {of['day']} in the last 24 hours" for what, of in counts.items()))
    for each in waiting:
        _show(kit, each)
        echo(f"approve it with: veilgraph net consent approve {each.request.job} --kit {kit.path}")
    if not waiting:
        echo("no job waits for approval")
    asked = [{**plain(each.request), "reveals": revealed_of(each.request.settings, kit.name)} for each in waiting]
    emit({"taken_part": counts, "waiting": asked})


def _show(kit: Kit, waiting: Waiting) -> None:
    """A job in words; ``all of its settings`` are in the file that is named."""
    from veilgraph.protocol.consent import REQUESTS
    from veilgraph.protocol.limits import revealed_of

    request, settings = waiting.request, waiting.request.settings
    going_on = ", going on with a run" if request.resume else ""
    echo(f"{request.job}: {settings.name}, {request.work}{going_on}, settings {settings.hash()[:12]}")
    echo(f"  {kit.roles}")
    for name, text in () if settings.record is None else settings.record.told():
        echo(f"  {name}: {' '.join(text.split())}")
    echo(f"  all settings: {kit.consent / REQUESTS / f'{request.job}.json'}")
    for name, statement in revealed_of(settings, kit.name).items():
        echo(f"  reveals {name}: {statement}")
