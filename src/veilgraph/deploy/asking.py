"""How an administrator asks sites: signed requests over the broker, each until it is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from veilgraph.core.errors import ConfigError, LinkError, ProtocolError
from veilgraph.core.types import PartyId
from veilgraph.deploy.broker import REQUESTS
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import JobReport, JobReports
from veilgraph.deploy.request import Answer, Request, expiry, read_answer
from veilgraph.deploy.roles import Roles
from veilgraph.link.identity import Identity, Trust
from veilgraph.link.nats_client import Brokers, Subscription, token

_AGAIN_S: Final = 2.0


class AdministratorConnection:
    """Sends an administrator's signed requests to sites and takes answers; a lost connection is made again."""

    def __init__(self, name: str, project: str, identity: Identity, brokers: Brokers) -> None:
        self._name, self._project, self._identity = name, project, identity
        self._changed = threading.Condition()
        self._trouble = "none has answered yet"
        self._asked: Request | None = None
        self._answers: dict[PartyId, Answer] = {}
        self._subscription = Subscription(brokers, f"vg.{token(name)}.*.*", self._take_answer, self._note_trouble)
        threading.Thread(target=self._subscription.run, name="answers", daemon=True).start()

    def connect(self, within_s: float) -> None:
        """Waits for a connection; raises ``LinkError`` where no broker can be reached in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._trouble, within_s):
                raise LinkError(self._trouble, code="no-broker")

    def ask(self, sites: Sequence[PartyId], within_s: float, **what: Any) -> dict[PartyId, Answer]:  # noqa: ANN401
        """Send sites (names in certificates) a request, and resend it until all have answered or ``within_s`` is over.

        ``what`` are fields of the ``Request``. Returns the answers that came; raises ``LinkError`` as ``connect``.
        """
        request = Request(project=self._project, sites=list(sites), expires=expiry(datetime.now(UTC)), **what)
        message, deadline = request.signed(self._identity), time.monotonic() + within_s
        with self._changed:
            self._asked, self._answers = request, {}
        while True:
            self.connect(max(0.0, deadline - time.monotonic()))
            for site in sites:
                if site not in self._answers:
                    self._subscription.publish(f"vg.{token(site)}.{token(self._name)}.{REQUESTS}", message)
            with self._changed:
                left_s = min(_AGAIN_S, max(0.0, deadline - time.monotonic()))
                self._changed.wait_for(lambda: self._trouble or len(self._answers) == len(sites), left_s)
                if len(self._answers) == len(sites) or time.monotonic() >= deadline:
                    return dict(self._answers)

    def jobs(self, sites: Sequence[PartyId], within_s: float) -> dict[PartyId, list[JobReport]]:
        """Ask sites for their jobs; the result lacks sites whose answer is missing or malformed. Errors as ``ask``."""
        said: dict[PartyId, list[JobReport]] = {}
        for site, answer in self.ask(sites, within_s, ask="status").items():
            with suppress(ValidationError):
                said[site] = JobReports.model_validate(answer.content).jobs
        return said

    def close(self) -> None:
        """Ends the connection."""
        self._subscription.close()

    def _note_trouble(self, trouble: str) -> None:
        """Note what keeps the connection down, "" while it is up, and wake whoever waits."""
        with self._changed:
            self._trouble = trouble
            self._changed.notify_all()

    def _take_answer(self, subject: str, message: memoryview) -> None:
        """Keep a site's verified answer to the newest request; ignore anything else."""
        with self._changed:
            request = self._asked
        _, _, of, answered = subject.split(".")
        site = next((each for each in request.sites if token(each) == of), None) if request else None
        if request is None or site is None or answered != request.id:
            return
        with suppress(ProtocolError):  # whose it is not, answers nothing: the request is sent again
            # a site's name is the one in its certificate: no party ``server`` here
            trust = Trust(self._identity.roots, self._identity.revoked)
            answer = read_answer(message, trust, request, site, datetime.now(UTC))
            with self._changed:
                self._answers.setdefault(site, answer)
                self._changed.notify_all()


def not_connected(missing: Sequence[PartyId], roles: Roles) -> LinkError:
    """The error that names sites which have not joined, and the command to run there."""
    holders = [site for site in missing if site in roles.holders]
    ways = [f"{', '.join(holders)}; start there: veilgraph net join KIT --party party.yaml"] if holders else []
    if roles.deals in missing:
        ways.append(f"{roles.deals}, which deals; start there: veilgraph net join KIT")
    return LinkError(f"not connected: {'; and '.join(ways)}", code="not-connected", party=missing[0])


_CONNECT_S: Final = 30.0  # longest wait for the broker


@contextmanager
def administrator(kit: Kit, connect_s: float = _CONNECT_S) -> Iterator[AdministratorConnection]:
    """Open a connection with an administrator's kit; ``ConfigError`` for another kit, ``LinkError`` as ``connect``."""
    if kit.kind != "administrator":
        raise ConfigError(f"{kit.path} is the kit of {kit.name}; give an administrator's")
    with closing(AdministratorConnection(kit.name, kit.roles.project, kit.identity(), kit.brokers())) as made:
        try:
            made.connect(connect_s)
        except LinkError as error:
            server = kit.roles.server
            words = f"{kit.name} cannot reach the server at {server}: is it running? ({error})"
            raise LinkError(words, code="no-broker", party=server) from error
        yield made
