"""Commands for jobs across organisations: net init, provision, join, submit, status, logs, stop, serve, demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from veilgraph.cli.app import Overrides, Replace, check_new, command, net, read_settings
from veilgraph.cli.logging import LogFormat, begun, of_party
from veilgraph.cli.output import echo, messages, results, say
from veilgraph.cli.passphrase import PassphraseFile, passphrase_source
from veilgraph.cli.telling import tell
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path, write_whole

if TYPE_CHECKING:
    from veilgraph.deploy.kit import Kit
    from veilgraph.deploy.metrics.address import Address

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


@contextmanager
def deployment() -> Iterator[None]:
    """Says what to install where the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"nvflare", "fastapi", "uvicorn", "prometheus_client"}:
            raise
        raise ConfigError(
            f"{error.name} is not installed, and this command needs it; in a checkout: pip install '.[deploy]'"
        ) from error


@command("init", "veilgraph net init bank shop --server fl.example.org --administrator ops@example.org", net)
def init_command(
    holders: Annotated[list[str], typer.Argument(metavar="HOLDERS...", help="Their names, as jobs name them.")],
    administrators: Annotated[
        list[str],
        typer.Option("--administrator", metavar="E-MAIL", help="Who submits jobs; may be given several times."),
    ],
    server: Annotated[str, typer.Option(metavar="HOST", help="The server's name in the network.")] = "localhost",
    port: Annotated[int, typer.Option(help="Of the server, for the holders.")] = 8002,
    admin_port: Annotated[int, typer.Option(help="Of the server, for the administrators.")] = 8003,
    dealer: Annotated[
        str | None, typer.Option(metavar="NAME", help="A machine of its own that deals. Default: the server does.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the consortium.")] = "consortium",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The project file to write.")] = Path("project.yaml"),
    replace: Replace = False,
) -> None:
    """Write a project file: who takes part, and where the server is."""
    check_new(out, replace=replace)
    with deployment():
        from veilgraph.deploy.project import draft_project  # noqa: PLC0415

        text = draft_project(name, (server, port, admin_port), holders, administrators, dealer)
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
    with deployment():
        from veilgraph.deploy.project import provision, read_project  # noqa: PLC0415

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
    with deployment():
        from veilgraph.deploy.join import join  # noqa: PLC0415

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
    """Where ``--metrics`` says."""
    from veilgraph.deploy.metrics.address import read_address  # noqa: PLC0415

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
    with deployment():
        from veilgraph.deploy.submit import submit  # noqa: PLC0415

        submit(open_kit(kit, passphrase_file), settings, work, resume=resume, wait=wait, retries=retries, report=say)
    if wait and work == "audit":
        where = f"runs/{settings.name} in its own kit, or where it joined with --runs"
        echo(f"done; every holder finds what was found out about it with: veilgraph audit RUN, RUN being {where}")
    elif wait and work != "align":
        several = len(settings.scoring) > 1
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
            help="An administrator's kit: the server's view. A site's: its own jobs; asks nobody.",
        ),
    ],
    passphrase_file: PassphraseFile = None,
) -> None:
    """Show who is connected, who is lost and since when, which jobs were submitted, and how far those are that run.

    With a site's own kit: the jobs that it has, and how far each is, as its own log says.
    """
    with deployment():
        from veilgraph.deploy.control import status  # noqa: PLC0415

        opened = open_kit(kit, passphrase_file)
        if opened.kind != "administrator":
            _show_site(opened)
            return
        found = status(opened)
    tell(found.record())
    from veilgraph.report.project import project_table, site_table  # noqa: PLC0415

    lost = f"; lost: {', '.join(found.lost)}" if found.lost else ""
    echo(f"connected: {', '.join(found.connected) or 'nobody'}{lost}; {found.roles}")
    results().print(site_table(found))
    results().print(project_table(found))


def _show_site(kit: Kit) -> None:
    """A site's own jobs, newest first."""
    from veilgraph.deploy.progress import SiteJobs  # noqa: PLC0415
    from veilgraph.report.project import own_jobs_table  # noqa: PLC0415

    jobs = SiteJobs(kit).now()
    echo(f"{kit.name}: {sum(job.state == 'running' for job in jobs)} of {len(jobs)} jobs run")
    results().print(own_jobs_table(jobs))
    tell({"site": kit.name, "kind": kit.kind, "jobs": jobs})


@command("logs", "veilgraph net logs --kit consortium/kits/bank", net)
def logs_command(
    kit: Annotated[
        Path,
        typer.Option("--kit", metavar="KIT", help="An administrator's kit: the server's log. A site's: its own."),
    ],
    job_id: JobId = None,
    everything: Annotated[bool, typer.Option("--all", metavar="", help="With what the engine says.")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Print the log of a job. What a party's log says stays with that party."""
    with deployment():
        from veilgraph.deploy.control import logs  # noqa: PLC0415

        echo(logs(open_kit(kit, passphrase_file), job_id, everything=everything), nl=False)


@command("stop", "veilgraph net stop --kit consortium/kits/ops@example.org", net)
def stop_command(kit: KitOption, job_id: JobId = None, passphrase_file: PassphraseFile = None) -> None:
    """Stop a running job; the parties keep their checkpoints, and net submit --resume goes on."""
    with deployment():
        from veilgraph.deploy.control import stop  # noqa: PLC0415

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
    with deployment():
        from veilgraph.deploy.serve import label_holder_of, serve  # noqa: PLC0415

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


@command("demo", "veilgraph net demo --out runs/network", net, json=True)
def demo_command(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to make. Default: in runs/.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs at most.")] = 60,
) -> None:
    """Three organisations with tables of their own, as separate processes over mutual TLS on this machine."""
    with deployment():
        from veilgraph.deploy.demo import run_network_demo  # noqa: PLC0415

        run = run_network_demo(out or fresh_path("net-demo"), say, epochs)
    from veilgraph.report.tables import run_table  # noqa: PLC0415
    from veilgraph.run.jobs import load_result  # noqa: PLC0415

    result = load_result(run)
    results().print(run_table(result.summary))
    echo(f"the label holder's part of the run: {run}")
    echo(f"what it sent to whom: veilgraph report {run}")
    echo(f"its predictions: veilgraph predict {run}")
    tell({"run": run, "summary": result.summary})


def open_kit(path: Path, passphrase_file: Path | None = None) -> Kit:
    """The kit in a folder; its passphrase is asked for when its key is needed."""
    from veilgraph.deploy.kit import Kit  # noqa: PLC0415

    return Kit.open(path, passphrase_source(passphrase_file, of=path))
