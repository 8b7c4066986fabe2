"""The course of a job at the server, without an engine, and the errors in a process's log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal

from veilgraph.core.errors import VeilgraphError, error_of_json
from veilgraph.deploy import engine
from veilgraph.deploy.failures import Failure
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.submission import encode_request

JOB_ID = "aaaaaaaa-1111-4111-8111-111111111111"
JOB = {"data": {"holders": ["bank", "shop"], "label_holder": "bank"}}


def logged(caplog: pytest.LogCaptureFixture) -> list[VeilgraphError]:
    """The errors in this process's log, its own and those that administrators are told of."""
    found = [error_of_json(record.getMessage().removeprefix("failed ")) for record in caplog.records]
    return [error for error in found if error is not None]


class Course:
    """A job at the server's controller, with an engine made up.

    Attributes:
        panics: why it ended the job.
        targets: the sites that it started.
        unsaid: errors that the server's own part is not to say itself; None: it did none.
        own: what the server's own part does, given whether it is to stop; None: it may have none.
    """

    def __init__(self, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context = SimpleNamespace(
            get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(kit.path)),
            get_prop=lambda _: JOB_ID,
        )
        self.controller = engine.ServerController(encode_request(JOB, "train", resume=False))
        self.panics: list[str] = []
        self.targets: list[str] = []
        self.unsaid: tuple[type[VeilgraphError], ...] | None = None
        self.own: Callable[[Callable[[], bool]], Failure | None] | None = None
        self.answers: list[tuple[str, Failure | None]] = []
        monkeypatch.setattr(self.controller, "broadcast", self._broadcast)
        monkeypatch.setattr(self.controller, "system_panic", lambda why, _: self.panics.append(why))
        monkeypatch.setattr(engine.log, "isEnabledFor", lambda level: level >= logging.INFO)
        monkeypatch.setattr(engine, "installed", lambda: True)
        monkeypatch.setattr(engine, "take_part", lambda *given, **named: pytest.fail("the relay took part"))
        self._run = engine.run_part
        monkeypatch.setattr(engine, "run_part", self._part)
        monkeypatch.setattr(engine, "ABORT_POLL_S", 0.001)
        monkeypatch.setattr(engine, "CAUSE_S", 0.01)

    def _part(self, job, work, resume, context, stopped, unsaid=()) -> Failure | None:
        self.unsaid = unsaid
        if self.own is not None:
            return self.own(stopped)
        return self._run(job, work, resume, context, stopped, unsaid)

    def _broadcast(self, task: object, context: object, targets: list[str], min_responses: int) -> None:
        self.targets = targets
        for name, failure in self.answers:
            self.answer(name, failure)

    def answer(self, name: str, failure: Failure | None) -> None:
        """A site ends its part."""
        headers = {} if failure is None else {engine.FAILURE: failure.model_dump_json()}
        code = ReturnCode.OK if failure is None else ReturnCode.EXECUTION_EXCEPTION
        reply = make_reply(code, headers=headers)
        self.controller._finished(SimpleNamespace(client=SimpleNamespace(name=name), result=reply), None)

    def run(self, *answers: tuple[str, Failure | None], aborted: bool = False) -> None:
        self.answers = list(answers)
        signal = Signal()
        if aborted:
            signal.trigger(True)
        self.controller.control_flow(signal, self.context)
