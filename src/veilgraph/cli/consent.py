"""Commands for the person at a holder's site: which jobs wait, how many there were, approve, refuse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilgraph.cli.app import command, net
from veilgraph.cli.output import echo
from veilgraph.cli.telling import plain, tell
from veilgraph.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from veilgraph.deploy.kit import Kit
    from veilgraph.protocol.requests import Waiting

HolderKit = Annotated[Path, typer.Option("--kit", metavar="KIT", help="The holder's start-up kit. Default: here.")]

_SHOWN = 12


@command("jobs", "veilgraph net jobs --kit consortium/kits/bank", net, json=True)
def jobs_command(kit: HolderKit = Path()) -> None:
    """Show how many jobs this holder has taken part in, and those that wait for approval.

    What the party file says under consent is about submitted jobs: train on one machine counts and asks nothing.
    """
    holder = _holder(kit)
    counts = _counts(holder)
    echo("; ".join(f"{what}s: {all_} in all, {day} in the last 24 hours" for what, (all_, day) in counts.items()))
    _show_waiting(holder)
    tell(
        {
            "taken_part": {what: {"all": all_, "day": day} for what, (all_, day) in counts.items()},
            "waiting": _asked(holder),
        }
    )


@command("approve", "veilgraph net approve 3f2a --kit consortium/kits/bank", net)
def approve_command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Id, or its beginning. Without: show all.")] = None,
    kit: HolderKit = Path(),
) -> None:
    """Let a waiting job begin: with exactly the settings shown, once; going on after a failure is part of it.

    Only where the party file says consent: {approval: ask}.
    """
    from veilgraph.protocol.requests import answer  # noqa: PLC0415

    holder = _holder(kit)
    if job is None:
        _show_waiting(holder)
        return
    found = _waiting(holder, job)
    answer(holder.consent, found, approved=True)
    _show(holder, found)
    echo(f"approved {found.request.job}")


@command("refuse", "veilgraph net refuse 3f2a --reason 'not before May' --kit consortium/kits/bank", net)
def refuse_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, or its beginning.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to every party and the administrator.")] = "",
    kit: HolderKit = Path(),
) -> None:
    """End a waiting job at all parties, before anything of the data is sent."""
    from veilgraph.protocol.requests import answer  # noqa: PLC0415

    holder = _holder(kit)
    found = _waiting(holder, job)
    answer(holder.consent, found, approved=False, reason=reason)
    echo(f"refused {found.request.job}")


def _holder(path: Path) -> Kit:
    from veilgraph.deploy.kit import Kit  # noqa: PLC0415

    kit = Kit.open(path)
    if kit.kind != "holder":
        raise ConfigError(f"{kit.path} is the kit of {kit.name}, which has no data to consent for; give a holder's")
    return kit


def _waiting(kit: Kit, job: str) -> Waiting:
    from veilgraph.protocol.requests import all_waiting  # noqa: PLC0415

    found = [each for each in all_waiting(kit.consent) if each.request.job.startswith(job)]
    if len(found) != 1:
        raise RunError(f"{job!r} names {len(found)} waiting jobs, not one; see veilgraph net jobs --kit {kit.path}")
    return found[0]


def _counts(kit: Kit) -> dict[str, tuple[int, int]]:
    """What is counted → how many there were, and how many of them in the last 24 hours."""
    from veilgraph.protocol.consent_settings import DAY, count  # noqa: PLC0415
    from veilgraph.protocol.journal import Journal, utc_now  # noqa: PLC0415

    entries, yesterday = Journal(kit.consent).entries(), utc_now() - DAY
    return {what: (count(entries, what), count(entries, what, yesterday)) for what in ("job", "alignment")}


def _asked(kit: Kit) -> list[dict[str, object]]:
    """The jobs that wait, with all that they ask."""
    from veilgraph.protocol.limits import revealed_of  # noqa: PLC0415
    from veilgraph.protocol.requests import all_waiting  # noqa: PLC0415

    return [
        {**plain(each.request), "reveals": revealed_of(each.request.settings, kit.name)}
        for each in all_waiting(kit.consent)
    ]


def _show_waiting(kit: Kit) -> None:
    from veilgraph.protocol.requests import all_waiting  # noqa: PLC0415

    found = all_waiting(kit.consent)
    for each in found:
        _show(kit, each)
        echo(f"approve it with: veilgraph net approve {each.request.job} --kit {kit.path}")
    if not found:
        echo("no job waits for approval")


def _show(kit: Kit, waiting: Waiting) -> None:
    """A job in words; ``all of its settings`` are in the file that is named."""
    from veilgraph.protocol.limits import revealed_of  # noqa: PLC0415
    from veilgraph.protocol.requests import REQUESTS  # noqa: PLC0415

    request, settings = waiting.request, waiting.request.settings
    going_on = ", going on with a run" if request.resume else ""
    echo(f"{request.job}: {settings.name}, {request.work}{going_on}, settings {settings.hash()[:_SHOWN]}")
    echo(f"  {kit.roles}")
    for name, text in () if settings.record is None else settings.record.told():
        echo(f"  {name}: {' '.join(text.split())}")
    echo(f"  all settings: {kit.consent / REQUESTS / f'{request.job}.json'}")
    for name, statement in revealed_of(settings, kit.name).items():
        echo(f"  reveals {name}: {statement}")
