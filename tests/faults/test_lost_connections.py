"""Two parties lose their connection while both live: all stop at once, and the run goes on."""

import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.runs import EPOCHS, LABEL_HOLDER, OTHER, assert_undisturbed, graph_job, table_job
from tests.paradigms.cutting import lines_of, wait_for
from veilgraph.core.errors import PeerFailed
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.factory import SocketLink, socket_mesh
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.store.run_directory import Record, RunDirectory

ENDS_WITHIN_S = 10.0
"""Far below the job's timeout, which must not be needed."""
TIMEOUT_S = 120.0

Programs = Mapping[PartyId, Callable[[Link], None]]
Errors = dict[PartyId, BaseException | None]


def cut_while_running(
    programs: Programs, one: PartyId, other: PartyId, ready: Callable[[], None], cut: threading.Event
) -> Errors:
    """Runs the parties in threads over sockets and cuts a connection when ``ready`` returns."""
    mesh = socket_mesh(list(programs))
    links = {party: SocketLink(party, mesh[party], TIMEOUT_S) for party in programs}

    def run(party: PartyId) -> None:
        with closing(links[party]) as link:  # as a process that ends
            programs[party](link)

    with ThreadPoolExecutor(len(programs)) as pool:
        running = {party: pool.submit(run, party) for party in programs}
        ready()
        try:
            mesh[one][other].shutdown(socket.SHUT_RDWR)
            cut.set()
            late = wait_for_all(running.values(), ENDS_WITHIN_S).not_done
        finally:
            for link in links.values():
                link.close()
    assert not late, f"{[party for party, future in running.items() if future in late]} did not notice"
    return {party: future.exception() for party, future in running.items()}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("one", "other", "epochs"),
    [(LABEL_HOLDER, OTHER, 3), (LABEL_HOLDER, SERVER, 8), (SERVER, OTHER, 5), (OTHER, LABEL_HOLDER, 0)],
)
def test_a_lost_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: PartyId, other: PartyId, epochs: int
) -> None:
    run = tmp_path / "run"
    source = random.Random(f"{one} {other}")
    errors: Errors = {}
    cut = threading.Event()
    append = RunDirectory.append_metrics

    def append_and_wait(self: RunDirectory, record: Record) -> None:
        """Before the last epoch, for the cut: on a busy machine it could come after the end."""
        append(self, record)
        if record["epoch"] == EPOCHS - 1:
            cut.wait(30)

    def ready() -> None:
        wait_for(lambda: lines_of(run) >= epochs, 30, f"{epochs} epochs")
        time.sleep(source.uniform(0, 0.01))

    def run_over_sockets(programs: Programs, *_: object) -> None:
        errors.update(cut_while_running(programs, one, other, ready, cut))
        raise PeerFailed("the test's own")

    settings = (graph_job if epochs else table_job)(tmp_path / "data", {"timeout_s": TIMEOUT_S})
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append_metrics", append_and_wait)
        patch.setattr(jobs, "run_threads", run_over_sockets)
        with pytest.raises(PeerFailed, match="the test's own"):
            jobs.train(settings, run)
    assert lines_of(run) < EPOCHS
    assert set(errors) == {LABEL_HOLDER, OTHER, SERVER}
    for party, error in errors.items():
        assert isinstance(error, PeerFailed), (party, error)
        assert str(error).startswith(f"{party} cannot ")
    # One of the two may be told first of the third, which ended because of the other.
    assert any(peer in str(errors[party]) for party, peer in ((one, other), (other, one)))
    jobs.resume(run)
    assert_undisturbed(run, tmp_path / "undisturbed")
