"""What a site does with requests of administrators: the only thing there that starts a process.

The site's connection with the broker brings requests under ``vg.SITE.ADMINISTRATOR.requests``; the answer goes to
``vg.ADMINISTRATOR.SITE.ID``, where ``ID`` is the request's. A request that is not an administrator's own
(``request.read_request``) is counted in the log and not answered. A job has a folder of its own in the kit:

    jobs/ID/request       the submitted request, as it came
    jobs/ID/meta.json     of that the job's name, the work and the moment
    jobs/ID/log.txt       what the party's process says
    jobs/ID/outcome.json  how its part ended, written by the process itself (``Outcome``)

The process holds the job to limits, consent and approval before anything of the data is sent. Where it ends without an
outcome, it was stopped, or was killed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from veilgraph.core.errors import ProtocolError, VeilgraphError
from veilgraph.core.files import appended_file, private_folder, write_whole
from veilgraph.core.text import printable
from veilgraph.core.types import PartyId
from veilgraph.core.validation import NAME_PATTERN
from veilgraph.deploy.broker import REQUESTS
from veilgraph.deploy.progress import (
    CHECK,
    STOPPED,
    JobReport,
    JobReports,
    Outcome,
    epochs_in_log,
    job_facts,
    job_folders,
    state_of,
    tail,
)
from veilgraph.deploy.request import Answer, Request, read_request
from veilgraph.deploy.site_process import GRACE_S
from veilgraph.link.identity import Identity, Trust
from veilgraph.link.nats_client import Brokers, Subscription, token
from veilgraph.link.refusals import RefusalLog

MAX_RUNNING: Final = 8
"""Jobs of one site at the same time: each has a process, and a connection with the broker."""
_ANSWER_CHARACTERS: Final = 192 << 10
_LOG_CHARACTERS: Final = 32 << 10  # of a log that are told; as JSON a character may have six
_TOLD: Final = re.compile(r"^\d{4}-\d\d-\d\d \S+ - veilgraph - INFO - .*\n?", re.MULTILINE)
"""A line of a job's log that administrators may read, of a party without data. Errors and warnings stay at the site."""

log = logging.getLogger("veilgraph")


@dataclass(frozen=True)
class Site:
    """A site, as its supervisor needs it.

    Attributes:
        name: in its certificate.
        folder: of its jobs.
        trust: the project's roots, and the certificates that were revoked, read for every message.
        identity: read for an administrator's request alone: a key with a passphrase takes long to open.
        command: job's folder → what is run there.
        tells_log: whether administrators may read progress in its jobs' logs: it has no data.
    """

    name: PartyId
    project: str
    folder: Path
    trust: Callable[[], Trust]
    identity: Callable[[], Identity]
    command: Callable[[Path], Sequence[str]]
    tells_log: bool = False


class Supervisor:
    """Answers requests to a site, by one thread, and starts and ends its jobs' processes, which hold ``inherited``."""

    def __init__(self, site: Site, environment: Mapping[str, str], inherited: Sequence[int] = ()) -> None:
        self._site, self._environment, self._inherited = site, dict(environment), tuple(inherited)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._refusals = RefusalLog(lambda _, words: log.warning("refused %s", words))
        private_folder(site.folder)

    def answer(self, sender: str, message: bytes | memoryview, now: datetime) -> tuple[str, bytes] | None:
        """Verify a request and do what it asks; return its id and the signed answer, None where it cannot be verified.

        ``sender`` is whose subject it came under, for the log; nobody vouches for it.
        """
        try:
            request, who = read_request(message, self._site.trust, self._site.project, self._site.name, now)
        except ProtocolError as error:
            self._refusals.add((sender,), error.code, f"a request through the connection of {sender}: {error}")
            return None
        except VeilgraphError as error:  # of this kit, such as a list of revoked certificates that is overdue
            self._refusals.add(("kit",), error.code, f"every request: {error}")
            return None
        log.info("%s asks: %s %s", printable(who), request.ask, request.about or request.id)
        asked = {"run": self._start, "stop": self._stop, "status": self._list_jobs, "log": self._read_log}[request.ask]
        content = asked(request, bytes(message))
        refuses = str(content.pop("refuses", ""))
        answered = Answer(request=request.id, site=self._site.name, refuses=refuses, content=content)
        return request.id, answered.signed(self._site.identity())

    def close(self) -> None:
        """Ends all processes, and waits for them."""
        with self._lock:
            for job_id in self._running_ids():
                self._signal(job_id, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
            for job_id, process in self._running.items():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                self._signal(job_id, signal.SIGKILL)
                process.wait()
        self._refusals.close()

    def running(self) -> int:
        """Count the jobs that run."""
        with self._lock:
            return len(self._running_ids())

    def _start(self, request: Request, message: bytes) -> dict[str, Any]:
        """Start a job's process, unless its folder is there already; refuse it where ``MAX_RUNNING`` run."""
        folder = self._site.folder / request.id
        with self._lock:
            if folder.exists():  # the same request again: its answer may have been lost
                return {"job": request.id}
            if len(self._running_ids()) >= MAX_RUNNING:
                return {"refuses": f"{MAX_RUNNING} jobs run at {self._site.name} already; submit it when one has ended"}
            private_folder(folder)
            name = (request.job or {}).get("name")
            known = isinstance(name, str) and re.fullmatch(NAME_PATTERN, name)
            if request.work == "check":
                name = f"{name}{CHECK}"
            facts = {"name": name if known else "", "work": request.work, "submitted": time.time()}
            write_whole(folder / "meta.json", json.dumps(facts).encode())
            write_whole(folder / "request", message)
            with appended_file(folder / "log.txt") as said:
                self._running[request.id] = subprocess.Popen(
                    list(self._site.command(folder)),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                    umask=0o077,
                    pass_fds=self._inherited,
                )
        return {"job": request.id}

    def _stop(self, request: Request, _message: bytes) -> dict[str, Any]:
        """Send SIGTERM to a job's process, and SIGKILL ``GRACE_S`` later; refuse a job that does not run."""
        with self._lock:
            if request.about not in self._running_ids():
                return {"refuses": f"job {request.about} does not run at {self._site.name}"}
            write_whole(self._site.folder / request.about / STOPPED, b"")
            self._signal(request.about, signal.SIGTERM)
            timer = threading.Timer(GRACE_S, self._kill, (request.about,))
        timer.daemon = True
        timer.start()
        return {"job": request.about}

    def _list_jobs(self, _request: Request, _message: bytes) -> dict[str, Any]:
        """What administrators are told of the site's jobs, newest first, as many as an answer has room for."""
        with self._lock:
            alive = self._running_ids()
        jobs: list[JobReport] = []
        folders, room = job_folders(self._site.folder), _ANSWER_CHARACTERS
        for folder in sorted(folders, key=lambda path: float(job_facts(path).get("submitted", 0)), reverse=True):
            with suppress(ValidationError):  # somebody changed a file of the job
                jobs.append(self._job_word(folder, alive))
                room -= len(json.dumps(jobs[-1].model_dump()))
            if room < 0:  # those before it are older
                return JobReports(jobs=jobs[:-1]).model_dump()
        return JobReports(jobs=jobs).model_dump()

    def _job_word(self, folder: Path, alive: Sequence[str]) -> JobReport:
        """What administrators are told of a job; of its log nothing unless ``tells_log``."""
        outcome = Outcome.read(folder) or Outcome()
        told = _TOLD.findall(tail(folder / "log.txt")) if self._site.tells_log else []
        epoch, epochs = epochs_in_log("".join(told))
        return JobReport(
            **job_facts(folder),
            epoch=epoch,
            epochs=epochs,
            job=folder.name,
            state="running" if folder.name in alive else state_of(folder),
            failure=outcome.failure,
            checked=outcome.checked,
            says=told[-1].partition(" - INFO - ")[2].strip()[:200] if told else "",
        )

    def _read_log(self, request: Request, _message: bytes) -> dict[str, Any]:
        """The last progress lines of a job's log; a refusal unless ``tells_log``."""
        if not self._site.tells_log:
            return {"refuses": f"what a log of {self._site.name} says stays there"}
        told = "".join(_TOLD.findall(tail(self._site.folder / request.about / "log.txt")))
        return {"log": told[-_LOG_CHARACTERS:]}

    def _running_ids(self) -> list[str]:
        return [job_id for job_id, process in self._running.items() if process.poll() is None]

    def _kill(self, job_id: str) -> None:
        with self._lock:
            self._signal(job_id, signal.SIGKILL)

    def _signal(self, job_id: str, number: signal.Signals) -> None:
        """Send a signal to a job's process, if it runs; SIGKILL goes to all processes of its group."""
        process = self._running[job_id]
        if process.poll() is None:
            with suppress(ProcessLookupError):
                (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)


def subscribe_to_requests(
    supervisor: Supervisor, name: PartyId, brokers: Brokers, connected: Callable[[str], None] = lambda _: None
) -> Subscription:
    """Subscribe to a site's requests and publish the answers; ``connected`` is ``changed`` of ``Subscription``."""
    me = token(name)

    def take(subject: str, message: memoryview) -> None:
        sender = subject.split(".")[2]  # as the broker's permissions have it
        if answered := supervisor.answer(sender, message, datetime.now(UTC)):
            requests.publish(f"vg.{sender}.{me}.{answered[0]}", answered[1])

    requests = Subscription(brokers, f"vg.{me}.*.{REQUESTS}", take, connected)
    return requests
