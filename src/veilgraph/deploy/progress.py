"""How far the jobs of a site are: read from its own kit, where its jobs' logs and its part of their runs are.

Nobody is asked and nothing is sent. At most the end of a file is read, so that it may be asked often.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic_core import from_json

from veilgraph.core.errors import VeilgraphError
from veilgraph.core.files import write_whole
from veilgraph.core.settings import Exact
from veilgraph.core.validation import NAME_PATTERN
from veilgraph.deploy.failures import Failure
from veilgraph.deploy.kit import Kit
from veilgraph.runtime.store import DRIFT, LEDGER, SENDING

State = Literal["running", "done", "failed", "stopped", "ended"]
STATES: Final[tuple[State, ...]] = ("running", "done", "failed", "stopped", "ended")
"""``stopped``: by an administrator. ``ended``: without a word, for want of memory, or because the site did."""

STOPPED: Final = "stopped"
"""In the folder of a job that an administrator stopped."""
JOB_ID: Final = re.compile(r"[0-9a-f]{32}")

CHECK: Final = " (check)"
"""Behind the name of a job that is but checked: a run of that name would lend it its traffic and its ledger."""

DONE: Final = "this part of the job is done"
"""What a party's log says last of a job that went well."""

ANSWERING: Final = "the holders answer until it is ended: veilgraph net stop"
"""What the log of who deals says last of a session of answers, in which it has no part."""

_TAIL_BYTES: Final = 1 << 16
_LINE: Final = r"^\S+ \S+ - veilgraph - "
_EPOCH: Final = re.compile(rf"{_LINE}INFO - epoch (\d{{1,9}}) of at most (\d{{1,9}})$", re.MULTILINE)
_BEGUN: Final = re.compile(rf"{_LINE}INFO - training begins after epoch (\d{{1,9}})$", re.MULTILINE)
_TRAFFIC: Final = "*traffic.json"
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class SiteJob:
    """A job as one site knows it.

    Attributes:
        name: the job's own; empty where it is not known, and of a check, which has no run.
        work: what was submitted, as train or predict; empty where it is not known.
        state: of this site's part of it.
        submitted: when, in seconds since 1970; 0 where it is not known.
        epoch: the newest that its log says it has reached, of ``epochs``; None before the first, or without a training.
        quiet_s: seconds since its log last grew; None once the log is gone.
        title: what people are shown: the name, or ``NAME (check)``.
    """

    job_id: str
    name: str
    state: State
    submitted: float
    epoch: int | None = None
    epochs: int | None = None
    quiet_s: float | None = None
    title: str = ""
    work: str = ""


@dataclass(frozen=True)
class _SiteProcess:
    """A process of a site: its own, of no job, or a job's."""

    pid: int
    job_id: str
    resident_bytes: int


def site_processes(kit: Kit) -> tuple[_SiteProcess, ...]:
    """The processes that this account runs with a kit, those of its jobs among them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError, ValueError, IndexError):  # another account's, or one that has just ended
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if str(kit.path) in words and any("veilgraph" in word for word in words[:5]):
                job_id = next((name for word in words if JOB_ID.fullmatch(name := Path(word).name)), "")
                pages = int((entry / "statm").read_text(encoding="ascii").split()[1])
                found.append(_SiteProcess(int(entry.name), job_id, pages * _PAGE_BYTES))
    return tuple(found)


class SiteJobs:
    """Reads the state of a site's jobs; a job that is done or failed is read once."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._ended: dict[str, SiteJob] = {}

    def now(self, processes: tuple[_SiteProcess, ...] | None = None) -> tuple[SiteJob, ...]:
        """All jobs of the kit, newest first; ``processes`` are the site's, None to look for them."""
        running = {each.job_id for each in (site_processes(self._kit) if processes is None else processes)}
        jobs = [self._job(path, path.name in running) for path in job_folders(self._kit.jobs)]
        return tuple(sorted(jobs, key=lambda job: (job.submitted, job.job_id), reverse=True))

    def _job(self, folder: Path, running: bool) -> SiteJob:
        if folder.name in self._ended and not running:
            return self._ended[folder.name]
        text, grown, facts = tail(folder / "log.txt"), _modified(folder / "log.txt"), job_facts(folder)
        state: State = "running" if running else state_of(folder)
        submitted, name = facts.get("submitted"), facts.get("name")
        name = name if isinstance(name, str) else ""
        epoch, last = epochs_in_log(text)
        job = SiteJob(
            folder.name,
            name if re.fullmatch(NAME_PATTERN, name) else "",  # it becomes part of a path
            state,
            float(submitted) if isinstance(submitted, int | float) else 0.0,
            epoch,
            last,
            None if grown is None else max(0.0, time.time() - grown),
            name if re.fullmatch(NAME_PATTERN, name.removesuffix(CHECK)) else "",
            work if isinstance(work := facts.get("work"), str) else "",
        )
        if state in ("done", "failed"):
            self._ended[folder.name] = job
        return job


class Outcome(Exact):
    """How a party's part of a job ended, as its process says, with what others may know of its failure.

    ``checked`` is the answer to a check (``launch.site.CheckAnswer``, which a site's own process does not load).
    """

    failure: Failure | None = None
    checked: dict[str, Any] | None = None

    def write(self, folder: Path) -> None:
        """Writes it into a job's folder."""
        write_whole(folder / "outcome.json", self.model_dump_json().encode())

    @classmethod
    def read(cls, folder: Path) -> Outcome | None:
        """Read a job's outcome; None where its part has not ended, or ended without writing one."""
        try:
            return cls.model_validate_json((folder / "outcome.json").read_bytes())
        except (OSError, ValueError):
            return None


class JobReport(Exact):
    """What a site says of one of its jobs to administrators, who believe no more of it than this form.

    ``says`` is how far it is, or what it waits for; the rest is as ``Outcome`` has it.
    """

    job: Annotated[str, Field(pattern=rf"^{JOB_ID.pattern}$")]
    name: Annotated[str, Field(max_length=256)] = ""
    work: Annotated[str, Field(max_length=16)] = ""
    submitted: Annotated[float, Field(ge=0, le=2**40)] = 0.0
    state: State
    epoch: int | None = None
    epochs: int | None = None
    failure: Failure | None = None
    checked: dict[str, Any] | None = None
    says: Annotated[str, Field(max_length=200)] = ""


class JobReports(Exact):
    """What a site says of its jobs, newest first."""

    jobs: list[JobReport]


def state_of(folder: Path) -> State:
    """The state of a job whose process is gone, by what its folder has."""
    outcome = Outcome.read(folder)
    if (folder / STOPPED).exists():
        return "stopped"
    if outcome is None:
        return "ended"
    return "done" if outcome.failure is None else "failed"


def job_facts(folder: Path) -> dict[str, Any]:
    """A job's name, work and time of submission, by its folder's meta.json; empty where that cannot be read."""
    return dict(_read_json(folder / "meta.json"))


def epochs_in_log(log: str) -> tuple[int | None, int | None]:
    """The newest epoch, and the most there may be, in a job's log; None for what the log does not say."""
    if found := _EPOCH.findall(log):
        return int(found[-1][0]), int(found[-1][1])
    begun = _BEGUN.findall(log)
    return (int(begun[-1]) if begun else None), None


def traffic_of(kit: Kit, job: SiteJob) -> dict[str, int] | None:
    """Bytes sent and received in a job's newest session, as last noted; None where this site has no note of it."""
    folder = _part_folder(kit, job)
    if folder is None:
        return None
    with suppress(KeyError, TypeError, ValueError):
        noted = _read_json(folder / SENDING)["session"]
        return {way: int(noted[way]) for way in ("sent", "received")}
    with suppress(KeyError, TypeError, ValueError, IndexError):
        files = sorted((time_, path) for path in folder.glob(_TRAFFIC) if (time_ := _modified(path)) is not None)
        crossed = {"sent": 0, "received": 0}
        for row in _read_json(files[-1][1], list):
            crossed[row["direction"]] += int(row["bytes"])
        return crossed
    return None


def epsilon_of(kit: Kit, job: SiteJob) -> float | None:
    """ε of all that this site has released in a job's run, as its ledger says; None without a ledger."""
    folder = _part_folder(kit, job)
    if folder is None:
        return None
    for line in reversed(tail(folder / LEDGER).splitlines()):
        with suppress(ValueError, TypeError, AttributeError):
            entry = from_json(line)
            if "total" in entry:
                return float("inf") if entry["total"] is None else float(entry["total"])
            return 0.0 if "ledger" in entry else None
    return None


def drift_of(kit: Kit, job: SiteJob) -> tuple[int, float] | None:
    """How many columns and relations of a job's newest prediction have moved, and the largest PSI; None before one."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        if (folder := _part_folder(kit, job)) is not None:
            found = [float(each["index"]) for each in from_json((folder / DRIFT).read_bytes())["moved"]]
            return len(found), max(found, default=0.0)
    return None


def _part_folder(kit: Kit, job: SiteJob) -> Path | None:
    with suppress(VeilgraphError, OSError):
        if job.name and (party := kit.party) is not None:
            return kit.site.runs / job.name / "parties" / party
    return None


def job_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of a site's jobs, in no order."""
    with suppress(OSError):
        yield from (path for path in folder.iterdir() if JOB_ID.fullmatch(path.name) and path.is_dir())


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def tail(path: Path) -> str:
    """The last 64 KiB of a file as text; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _read_json(path: Path, kind: type[Any] = dict) -> Any:  # noqa: ANN401 - what JSON has
    """Read a JSON file; an empty ``kind`` where it cannot be read, or has another type."""
    try:
        found = from_json(path.read_bytes())
    except (OSError, ValueError):
        return kind()
    return found if isinstance(found, kind) else kind()
