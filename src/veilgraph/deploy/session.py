"""A session of an administrator with the server, and what is asked in it: which sites are there, what a log says."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidJobDefinition,
    JobNotFound,
    JobNotRunning,
    NoConnection,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout, RunError, VeilgraphError, error_of_json
from veilgraph.core.types import PartyId
from veilgraph.deploy.failures import CONSEQUENCES
from veilgraph.deploy.guard.hooks import install_for_administrators
from veilgraph.deploy.key_file import view_with_key
from veilgraph.deploy.kit import ITS_LOG_SAYS, Kit
from veilgraph.deploy.presence import presences
from veilgraph.deploy.quiet import no_logs, no_prints
from veilgraph.deploy.roles import Roles

Answer = TypeVar("Answer")

POLL_S: Final = 1.0
UNANSWERED_S: Final = 60.0
"""So long a question to a server that does not answer is asked again: it may be busy, and its jobs go on."""
FINISHED: Final = "FINISHED:"
"""How the status of a job begins that has ended."""
RUNNING: Final = "RUNNING"
REPORTED: Final = re.compile(r" - veilgraph - (?:INFO - failed|ERROR -(?: \[[^]]*\]:)?) (\{.*\})")
"""An error in a log: as administrators may know it, or as the log's owner alone does."""
_SAID: Final = re.compile(r" - veilgraph - INFO - (?!answer of |failed \{)(.*)")
"""Answers to a check are for who asked."""


@contextmanager
def admin_session(kit: Kit, connect_s: float) -> Iterator[Session]:
    """A session with the server; FLARE's errors become ours."""
    if kit.kind != "administrator":
        raise ConfigError(f"{kit.path} is the kit of {kit.name}; give an administrator's")
    install_for_administrators()
    settings = kit.startup_settings()["admin"]
    address = f"{settings['host']}:{settings['port']}"
    session = None
    try:
        with no_logs(), view_with_key(kit.path, kit.key_file, kit.passphrase) as view:
            try:
                with no_prints():
                    session = new_secure_session(kit.name, str(view), timeout=connect_s)
                yield session
            finally:
                if session is not None:
                    with no_prints():
                        session.close()
    except (NoConnection, FLCommunicationError, TimeoutError, ConnectionError) as error:
        raise LinkTimeout(f"{kit.name} cannot reach the server at {address}: is it running? ({error})") from error
    except (AuthenticationError, AuthorizationError) as error:
        raise LinkError(f"{kit.name} is not let in by the server at {address}: {error}") from error
    except (JobNotFound, JobNotRunning, InvalidJobDefinition) as error:
        raise RunError(str(error)) from error
    except InternalError as error:
        raise RunError(f"the server at {address} reports: {error}") from error


def answered(ask: Callable[[], Answer]) -> Answer:
    """What the server answers to a question that changes nothing there, asked again while none comes.

    Args:
        ask: asks once.

    Raises:
        NoConnection: there was no answer for ``UNANSWERED_S``.
    """
    deadline = time.monotonic() + UNANSWERED_S
    while True:
        try:
            return ask()
        except NoConnection:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def missing(session: Session, sites: tuple[PartyId, ...], roles: Roles, heard_s: float = math.inf) -> list[PartyId]:
    """Those that are not connected, or that the server has not heard of for so long."""
    return [
        site.name
        for site in answered(lambda: presences(session, roles))
        if site.name in sites and (site.state != "connected" or (site.heard_s or 0.0) > heard_s)
    ]


def not_connected(missing: Sequence[PartyId], roles: Roles) -> LinkError:
    """Who has not joined, and what to start there."""
    holders = [site for site in missing if site != roles.dealer]
    ways = [f"{', '.join(holders)}; start there: veilgraph net join KIT --party party.yaml"] if holders else []
    if roles.dealer in missing:
        ways.append(f"{roles.dealer}, which deals; start there: veilgraph net join KIT")
    return LinkError(f"not connected: {'; and '.join(ways)}", code="not-connected", party=missing[0])


def reported(session: Session, job_id: str) -> list[VeilgraphError]:
    """The errors of a job that the server tells, causes before consequences, and those that say why before others."""
    found = filter(None, map(error_of_json, REPORTED.findall(server_log(session, job_id))))
    return sorted(found, key=lambda error: (isinstance(error, CONSEQUENCES), error.code == ITS_LOG_SAYS))


def server_log(session: Session, job_id: str) -> str:
    """The server's log of a job as it is now; empty where there is none yet."""
    return str(answered(lambda: session.get_job_logs(job_id)).get("logs", {}).get("server", ""))


def last_said(log: str) -> str:
    """What the server's part of a job said last in its log; nothing where it is too young for that."""
    return "".join(_SAID.findall(log)[-1:])
