"""Kills of private runs: whatever is cut short, no release goes out unpaid and no total passes the budget.

The variable VEILGRAPH_KILLS says how many times each role is killed.
"""

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import about
from tests.faults.host import Host, Order, Outcome
from tests.faults.kills import KILLS, Moment, assert_stopped_cleanly, run_and_kill
from tests.faults.runs import EPOCHS, LABEL_HOLDER, OTHER, ROLES, unfinished
from tests.paradigms.lifetimes import job as private_tables
from tests.paradigms.lifetimes import says
from tests.paradigms.private import entries, ledger, paid
from veilgraph.core.files import private_folder
from veilgraph.core.types import SERVER, PartyId
from veilgraph.privacy.ledger import Ledger, delta_at
from veilgraph.privacy.ledger_files import PEOPLE
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import load_result, train
from veilgraph.runtime.launch.processes import PROCESS_DIED
from veilgraph.runtime.store.lifetime import lifetime_of
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

DELTA = 1e-4
REFUSAL = r"needed|no room|and was not made"
RELEASES = {LABEL_HOLDER: {"sums"}, OTHER: {"features"}}


def released_once(folder: Path) -> JobSettings:
    """From tables: B's nodes release their features, and A's sums over its edges have noise. Neither has slack."""
    settings = private_tables(folder, 1.0)
    says(folder, LABEL_HOLDER, limits={"leakage": [], **about.EDGES, "max_epsilon": 1.0})
    edges = {"unit": "edge", "epsilon_total": 1.0, "delta": DELTA}
    train = {"epochs": EPOCHS, "checkpoint_every": 2, "patience": None}
    return with_overrides(settings, {"privacy": edges, "model.hops": "auto", "train": train})


class Watched:
    """One run, over all its sessions."""

    def __init__(self, settings: JobSettings, run: Path) -> None:
        self.settings, self.run = settings, run
        self._ledgers: dict[PartyId, bytes] = dict.fromkeys(RELEASES, b"")

    def order(self) -> Order:
        return Order(None if self.run.exists() else self.settings, self.run)

    def check_session(self) -> None:
        """Nothing was paid for twice, nor more than there is; what a ledger for life counts is no less."""
        for party, channels in RELEASES.items():
            counted = paid(self.run, party)
            assert counted.keys() <= channels
            contents = [entry["content"] for entry in entries(self.run, party)]
            assert all(contents)
            assert len(contents) == len(set(contents)) <= 1, "it was paid for twice"
            lifetime = lifetime_of(Organisation.read((self.settings.data.parties or {})[party], party))
            with lifetime.lines.held():
                lasting = len(lifetime.lines.entries)
            assert len(contents) <= lasting <= 1, "the ledger for life is paid first"
            assert lifetime.total() <= lifetime.budget.epsilon * (1 + 1e-12)
            path = ledger(self.run, party)
            content = path.read_bytes() if path.exists() else b""
            before = self._ledgers[party]
            assert content.startswith(before[: before.rfind(b"\n") + 1]), f"{party}'s ledger has lost an entry"
            self._ledgers[party] = content
        if self.given():
            assert paid(self.run, OTHER), "what the label holder has was paid for"

    def given(self) -> bool:
        """Whether the label holder has what the other released."""
        return (self.run / "parties" / LABEL_HOLDER / "release.safetensors").is_file()

    def check_end(self, outcome: Outcome) -> None:
        """Complete, or refused for want of budget. Every ledger can be opened, whatever was done to its writer."""
        self.check_session()
        if outcome.error:
            assert outcome.error in ("ConfigError", "BudgetSpent"), outcome
            assert re.search(REFUSAL, outcome.message), outcome
            assert "\n" not in outcome.message
            assert RunDirectory.open(self.run).summary is None
        else:
            result = load_result(self.run)
            assert [record["epoch"] for record in result.metrics] == list(range(1, EPOCHS + 1))
            for party, channels in RELEASES.items():
                assert paid(self.run, party) == Counter(channels)
            assert unfinished(self.run) == []
        job = RunDirectory.open(self.run).settings.hash()
        for party in RELEASES:
            delta = delta_at(ledger(self.run, party))
            Ledger.open(ledger(self.run, party), delta or DELTA, None, job=job).close()


FILES = {
    SERVER: ["seed.json", "sending.json"],
    LABEL_HOLDER: ["epoch-000006.safetensors", "release.safetensors", "ledger.json", "ledger.jsonl", "sending.json"],
    OTHER: ["ledger.json", "ledger.jsonl", "graph.safetensors", "sending.json"],
}
"""Files in the middle of whose first write a party may be killed; of the ledger that is its first line."""


def run_and_kill_in_file(host: Host, order: Order, role: PartyId, name: str) -> Outcome:
    return host.do(Order(order.settings, order.run, grace_s=30.0, dies=(role, name)))


def kill_once(host: Host, watched: Watched, role: PartyId, source: random.Random, life_s: float) -> tuple[str, Outcome]:
    if source.random() < 0.7:
        when = Moment(seconds=source.uniform(0, life_s))
        return str(when), run_and_kill(host, watched.order(), role, when)
    name = source.choice(FILES[role])
    return name, run_and_kill_in_file(host, watched.order(), role, name)


def assert_kills_cost_no_more(folder: Path, host: Host, seed: int) -> list[Watched]:
    """Kills every role once, in random order, and goes on after each kill; a run that ended before is another one."""
    source, settings = random.Random(f"once {seed}"), released_once(folder / "data")
    life_s, told = 2.0, list[str]()
    runs = [Watched(settings, folder / "run 0")]
    try:
        for role in source.sample(ROLES, len(ROLES)):
            while True:
                when, outcome = kill_once(host, runs[-1], role, source, life_s)
                told.append(f"{runs[-1].run.name}: {role} at {when}")
                if outcome.code == PROCESS_DIED:
                    break
                runs[-1].check_end(outcome)
                life_s = min(life_s, outcome.seconds)
                runs.append(Watched(settings, folder / f"run {len(runs)}"))
            assert_stopped_cleanly(outcome, role)
            runs[-1].check_session()
        runs[-1].check_end(host.do(runs[-1].order()))
    except AssertionError as error:
        raise AssertionError(f"after {'; '.join(told)}") from error
    return runs


@pytest.mark.parametrize("seed", range(KILLS))
def test_every_role_is_killed(tmp_path: Path, host: Host, seed: int) -> None:
    assert_kills_cost_no_more(tmp_path, host, seed)


def test_processes_spend_as_threads_do(tmp_path: Path, host: Host) -> None:
    apart = Watched(released_once(tmp_path / "one"), tmp_path / "apart")
    apart.check_end(host.do(apart.order()))
    settings = released_once(tmp_path / "other")
    for party in RELEASES:  # other people of the same ids
        private_folder(tmp_path / "other" / party / "ledger").joinpath(PEOPLE).write_text("others")
    together = Watched(settings, train(settings, tmp_path / "together").path)
    together.check_session()
    for party, channels in RELEASES.items():
        assert paid(apart.run, party) == paid(together.run, party) == Counter(channels)
    ours, theirs = (load_result(run).summary for run in (apart.run, together.run))
    assert ours["privacy"] == theirs["privacy"]
