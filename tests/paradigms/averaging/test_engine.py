"""The same run over a broker, every message sealed, as in memory; with a holder that drops out too."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests import nightly
from tests.attacks.relay import Network, network
from tests.mpc.aggregation.rounds import DropsOut, GivesUp
from tests.paradigms.averaging.jobs import Dropped, dropping_out, job, sums_of
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import train


def over_broker(net: Network, dropped: Dropped) -> Callable[..., None]:
    """Stands in for ``run_threads``."""

    def run(programs: Mapping[PartyId, Callable[[Link], None]], timeout_s: float, tick: object, wire: object) -> None:
        session = net.session(*programs)

        def play(party: PartyId) -> None:
            with closing(net.link(party, session, timeout_s)) as link:
                serves = party == SERVER
                programs[party](GivesUp(link, dropped) if serves else DropsOut(link, dropped.get(party, {})))

        with ThreadPoolExecutor(len(programs)) as pool:
            for ended in [pool.submit(play, party) for party in programs]:
                ended.result()

    return run


@nightly
def test_a_run_over_a_broker_is_the_run_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = job({"data": {"holders": 3}, "averaging": {"threshold": 2}, "train": {"select_by": "last"}})
    dropped = {"B": {sums_of(2)[0]: 3, sums_of(3)[1]: 1}}
    with dropping_out(dropped):
        here = train(settings, tmp_path / "here")
    with network() as net:
        monkeypatch.setattr(jobs, "run_threads", over_broker(net, dropped))
        there = train(settings, tmp_path / "there")
        net.close()
    assert torch.equal(here.predictions.probabilities, there.predictions.probabilities)
    assert here.summary["sent_bytes"] == there.summary["sent_bytes"]
