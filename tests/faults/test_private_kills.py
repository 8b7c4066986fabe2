"""Kills of private runs: whatever is cut short, no release goes out unpaid and no total passes the budget.

The variable VEILGRAPH_KILLS says how many times each role is killed with each schedule.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import about, nightly
from tests.faults.host import Host, Order, Outcome
from tests.faults.kills import KILLS, Moment, assert_stopped_cleanly, run_and_kill
from tests.faults.runs import EPOCHS, LABEL_HOLDER, OTHER, ROLES, SMALL, table_job, unfinished
from tests.paradigms.private import DELTA, arrived, ledger, paid, planned, sent, spent_total
from tests.paradigms.runs import saved_job
from tests.roles.federation import Settings
from veilgraph.core.types import SERVER, PartyId
from veilgraph.privacy.ledger import Ledger
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import load_result, train
from veilgraph.runtime.launch.processes import PROCESS_DIED
from veilgraph.runtime.store.lifetime import beside, lifetime_at, lifetime_of
from veilgraph.runtime.store.run_directory import RunDirectory

BUDGET = 8.0
INDIVIDUAL: Settings = {"initial": {"method": "individual"}}
REFUSAL = r"more releases fit the budget|no training step|and was not made"


def private(**privacy: Any) -> Settings:
    return {"privacy": {"unit": "row", "schedule": "every-step", "epsilon_total": BUDGET, "delta": DELTA, **privacy}}


def every_step_job(folder: Path) -> JobSettings:
    """Without slack: what is paid twice is missing at the end."""
    return saved_job(folder, SMALL, private(), {"model": {**INDIVIDUAL, "rounds": 2}, "train": {"select_by": "last"}})


def once_job(folder: Path) -> JobSettings:
    """From tables: an alignment that is lost is another order of the rows, and costs a release."""
    privacy = private(schedule="once", predictions=2)
    settings = table_job(folder, privacy, {"model": {**INDIVIDUAL, "local": {"model": "appnp"}}})
    for path in (settings.data.parties or {}).values():
        assert path is not None
        accepted = yaml.safe_load(path.read_text()) | {"limits": {"leakage": [], **about.ROWS, "max_epsilon": BUDGET}}
        path.write_text(yaml.safe_dump(accepted))
    return settings


JOBS: dict[str, Callable[[Path], JobSettings]] = {"every-step": every_step_job, "once": once_job}


class Watched:
    """One run, and all that was seen to leave its holders over all its sessions."""

    def __init__(self, settings: JobSettings, run: Path) -> None:
        self.settings, self.run = settings, run
        self.seen: dict[PartyId, Counter[str]] = {party: Counter() for party in (LABEL_HOLDER, OTHER)}
        self._ledgers: dict[PartyId, bytes] = dict.fromkeys(self.seen, b"")

    def order(self) -> Order:
        return Order(None if self.run.exists() else self.settings, self.run)

    def check_session(self) -> None:
        """What was sent was paid for. Who was killed has not counted, but the server has what reached it."""
        for party in self.seen:
            self.seen[party] += sent(self.run, party) | arrived(self.run, party)
            counted = paid(self.run, party)
            once = self.settings.privacy is not None and self.settings.privacy.once
            if once and counted:  # the very bytes that were paid for may be sent again, and the ledger names them
                assert self.seen[party].keys() <= counted.keys()
                lines = ledger(self.run, party).read_text(encoding="utf-8").splitlines()[1:]
                contents = [json.loads(line)["content"] for line in lines if line.endswith("}")]
                assert all(contents)
                assert len(set(contents)) == len(contents), "the same bytes were paid for twice"
            else:
                assert self.seen[party] <= counted, f"{party} sent {self.seen[party]} and paid for {counted}"
            assert counted.total() <= planned(self.settings, party).releases
            self.check_lifetime(party, counted, once=bool(once))
            assert spent_total(self.run, party) <= BUDGET
            path = ledger(self.run, party)
            content = path.read_bytes() if path.exists() else b""
            before = self._ledgers[party]
            assert content.startswith(before[: before.rfind(b"\n") + 1]), f"{party}'s ledger has lost an entry"
            self._ledgers[party] = content
        for traffic in (self.run / "parties").glob("*/traffic.json"):
            traffic.unlink()

    def check_lifetime(self, party: PartyId, counted: Counter[str], *, once: bool) -> None:
        """The ledger for life is paid first: it counts no less than the run's."""
        tables, graphs = self.settings.data.parties or {}, self.settings.data.graphs or {}
        if party in tables:
            lifetime = lifetime_of(Organisation.read(tables[party], party))
        else:
            lifetime = lifetime_at(beside(graphs[party]))
        with lifetime.lines.held():
            entries = lifetime.lines.entries
        found = Counter[str]()
        for entry in entries:
            found[entry.channel] += entry.count
        assert counted.keys() <= found.keys() if once else counted <= found, (party, counted, found)
        assert lifetime.total() <= lifetime.budget.epsilon * (1 + 1e-12)

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
            epochs = len(result.metrics)
            assert [record["epoch"] for record in result.metrics] == list(range(1, epochs + 1))
            assert 1 <= epochs <= EPOCHS
            if self.settings.privacy is not None and self.settings.privacy.once:
                assert epochs == EPOCHS
                assert not self.seen[LABEL_HOLDER]
            else:
                assert result.summary["best_epoch"] == epochs
            assert unfinished(self.run) == []
        job = RunDirectory.open(self.run).settings.hash()
        for party in self.seen:
            Ledger.open(ledger(self.run, party), DELTA, BUDGET, job=job).close()


FILES = {
    SERVER: ["epoch-000004.safetensors", "model.safetensors"],
    LABEL_HOLDER: ["epoch-000006.safetensors", "release.safetensors", "ledger.json", "ledger.jsonl", "sending.json"],
    OTHER: ["epoch-000002.safetensors", "release.safetensors", "ledger.json", "ledger.jsonl", "graph.safetensors"],
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


def assert_kills_cost_no_more(folder: Path, host: Host, schedule: str, seed: int) -> list[Watched]:
    """Kills every role once, in random order, and goes on after each kill; a run that ended before is another one."""
    source, settings = random.Random(f"{schedule} {seed}"), JOBS[schedule](folder / "data")
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
@pytest.mark.parametrize("schedule", [pytest.param("every-step", marks=nightly), "once"])
def test_every_role_is_killed(tmp_path: Path, host: Host, schedule: str, seed: int) -> None:
    assert_kills_cost_no_more(tmp_path, host, schedule, seed)


@pytest.mark.cases(1)
@pytest.mark.parametrize("schedule", JOBS)
def test_processes_spend_as_threads_do(tmp_path: Path, host: Host, schedule: str) -> None:
    settings = JOBS[schedule](tmp_path / "data")
    apart = Watched(settings, tmp_path / "apart")
    apart.check_end(host.do(apart.order()))
    together = Watched(settings, train(settings, tmp_path / "together").path)
    together.check_session()
    assert apart.seen == together.seen
    for party in apart.seen:
        assert paid(apart.run, party) == apart.seen[party]
        assert paid(together.run, party) == together.seen[party]
    ours, theirs = (load_result(run).summary for run in (apart.run, together.run))
    assert ours["privacy"] == theirs["privacy"]
