import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import closing
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from tests.errors import refused
from veilgraph.core.errors import BudgetSpent, RunError
from veilgraph.core.files import append
from veilgraph.privacy import accountant, ledger_files
from veilgraph.privacy.event import GaussianEvent, LaplaceEvent
from veilgraph.privacy.ledger import Ledger

JOB, DELTA = "ab" * 32, 1e-4
NODE = GaussianEvent(5.0)
STRONGER = GaussianEvent(20.0)
REPLACED = GaussianEvent(5.0, neighbours="replacement")
WEAK = GaussianEvent(600.0)
EDGE = GaussianEvent(5.0, unit="edge")
WRITTEN = {"kind": "gaussian", "noise_multiplier": 5.0, "neighbours": "zero-out", "unit": "node"}
UP, DOWN = "embeddings to server", "gradients to server"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def opened(path, budget=None, job=JOB, delta=DELTA, expected=False):
    return closing(Ledger.open(path, delta, budget, job=job, expected=expected))


def lines(path):
    return path.read_bytes().splitlines()


def entries(path):
    return [json.loads(line) for line in lines(path)[1:]]


def delta_of(epsilon, counts):
    """δ at a total ε of Gaussian releases {noise over sensitivity: number}: Balle & Wang 2018, theorem 8."""
    mu = math.sqrt(sum(count / multiplier**2 for multiplier, count in counts.items()))
    if mu == 0:
        return 0.0
    return math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def counts_in(path, neighbours="zero-out", unit="node"):
    """Releases in the file by noise over sensitivity, read without the ledger's code."""
    counts: Counter[float] = Counter()
    for entry in entries(path):
        event = entry["event"]
        if (event["neighbours"], event["unit"]) == (neighbours, unit):
            counts[event["noise_multiplier"] / {"zero-out": 1, "replacement": 2}[neighbours]] += entry["count"]
    return counts


def test_an_entry_is_on_the_disk_before_the_release(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    with opened(path) as ledger:
        synced.clear()
        ledger.spend(NODE, UP, 7)
        assert synced == [path.stat().st_size]
        (entry,) = entries(path)
    assert (entry["step"], entry["channel"], entry["count"]) == (7, UP, 1)
    assert entry["event"] == WRITTEN
    assert entry["total"] == pytest.approx(accountant.total({NODE: 1}, DELTA))
    assert entry["previous"] == hashlib.sha256(lines(path)[0]).hexdigest()


def test_the_release_over_the_budget_is_refused_with_all_numbers_and_nothing_is_written(path):
    with opened(path, budget=accountant.total({NODE: 3}, DELTA)) as ledger:
        for step in range(3):
            ledger.spend(NODE, UP, step)
        before = path.read_bytes()
        with pytest.raises(BudgetSpent) as caught:
            ledger.spend(NODE, DOWN, 3)
        assert path.read_bytes() == before
        spent, wanted = (f"{accountant.total({NODE: n}, DELTA):.6g}" for n in (3, 4))
        for word in (f"{DOWN}, step 3", f"from {spent} to {wanted}", f"budget of {spent}", "node", "more noise"):
            assert word in str(caught.value)
        ledger.spend(EDGE, DOWN, 3)


def test_resuming_goes_on_from_what_was_spent_and_another_budget_changes_only_what_may_follow(path):
    with opened(path) as ledger:
        ledger.reserve(NODE, UP, 0, 10)
    spent = accountant.total({NODE: 10}, DELTA)
    with opened(path, budget=spent / 2, expected=True) as ledger:
        assert ledger.totals()["node", "zero-out"] == pytest.approx(spent)
        assert ledger.room(NODE) == 0
        with pytest.raises(BudgetSpent):
            ledger.spend(NODE, UP, 0)
    with opened(path, budget=spent * 2, expected=True) as ledger:
        ledger.spend(NODE, UP, 10)
    assert counts_in(path) == {5.0: 11}


def test_reserved_releases_are_paid_once_and_count_even_if_they_are_not_used(path):
    with opened(path) as ledger:
        assert ledger.reserve(NODE, UP, 0, 3) == 3
        for step in range(3):
            ledger.spend(NODE, UP, step)
        assert len(entries(path)) == 1
        ledger.spend(NODE, UP, 3)
        assert [entry["count"] for entry in entries(path)] == [3, 1]
        ledger.reserve(NODE, UP, 4, 5)
        ledger.spend(NODE, DOWN, 4)
        ledger.spend(STRONGER, UP, 4)
        assert [entry["count"] for entry in entries(path)] == [3, 1, 5, 1, 1]
    with opened(path) as ledger:
        ledger.spend(NODE, UP, 4)
        assert ledger.summary()[0].releases == 3 + 1 + 5 + 1 + 1
        assert entries(path)[-1]["count"] == 1


@pytest.mark.parametrize(
    ("event", "budget"),
    [*product([NODE, STRONGER, REPLACED, EDGE], [0.01, 0.5, 2.0, 18.3, 213.51]), (LaplaceEvent(3.0), 0.5)],
)
@pytest.mark.parametrize("before", [0, 1])
def test_room_is_the_largest_number_that_fits(path, budget, event, before):
    with opened(path, budget=budget) as ledger:
        if before:
            ledger.spend(WEAK, DOWN, 0)
        mine = (event.unit, event.neighbours) == (WEAK.unit, WEAK.neighbours)
        others = Counter({WEAK: before} if mine else {})
        room = ledger.room(event)
        assert accountant.total(others + Counter({event: room}), DELTA) <= budget
        assert accountant.total(others + Counter({event: room + 1}), DELTA) > budget
        if room:
            assert ledger.reserve(event, UP, 0, room + 9) == room
        assert ledger.room(event) == 0


EVENTS = st.builds(
    GaussianEvent,
    st.sampled_from([1.0, 3.0, 5.0, 20.0, 100.0]),
    st.sampled_from(["zero-out", "replacement"]),
    st.sampled_from(["node", "edge"]),
)
ACTIONS = st.lists(st.tuples(EVENTS, st.sampled_from([UP, DOWN]), st.integers(1, 4), st.booleans()), max_size=12)


@settings(max_examples=40)
@given(st.floats(0.05, 30.0), ACTIONS)
def test_no_sequence_of_releases_passes_the_budget(budget, actions):
    made: Counter[GaussianEvent] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        for event, channel, count, reserves in actions:
            with opened(path, budget) as ledger:
                try:
                    if reserves:
                        ledger.reserve(event, channel, 0, count)
                    for step in range(count):
                        ledger.spend(event, channel, step)
                        made[event] += 1
                except BudgetSpent:
                    assert ledger.room(event) == 0
        for unit in ("node", "edge"):
            for neighbours, sensitivity in (("zero-out", 1), ("replacement", 2)):
                counts = counts_in(path, neighbours, unit) if path.exists() else {}
                assert delta_of(budget, counts) <= DELTA * (1 + 1e-9)
                for event, count in made.items():
                    if (event.unit, event.neighbours) == (unit, neighbours):
                        assert counts[event.noise_multiplier / sensitivity] >= count


def test_a_kill_at_any_byte_of_a_write_loses_no_release(path):
    with opened(path) as ledger:
        for step, channel in enumerate([UP, "Einbettungen für B", DOWN]):
            ledger.spend(NODE, channel, step)
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    near_ends = {end + by for end in ends for by in (-2, -1, 0, 1) if end + by <= len(whole)}
    for size in sorted({*range(ends[0], len(whole) + 1, 5), *near_ends} - {*range(ends[0])}):
        path.write_bytes(whole[:size])
        released = sum(end <= size for end in ends[1:])
        with opened(path, expected=True) as ledger:
            counted = sum(each.releases for each in ledger.summary())
            assert counted in {released, released + 1}
            assert counted == released or size + 1 in ends
            ledger.spend(STRONGER, UP, 9)
        with opened(path, expected=True) as ledger:
            assert sum(each.releases for each in ledger.summary()) == counted + 1
    for size in range(0, ends[0], 3):
        path.write_bytes(whole[:size])
        with refused(RunError, key=path, value=1):
            opened(path)


KILLED = """
import sys
from pathlib import Path
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.ledger import Ledger
ledger = Ledger.open(Path(sys.argv[1]), 1e-4, None, job=sys.argv[2])
for step in range(10**6):
    ledger.spend(GaussianEvent(5.0), "embeddings to server", step)
    sys.stdout.write("x")
    sys.stdout.flush()
"""


def test_a_killed_process_has_paid_for_every_release_and_lets_go_of_the_ledger(path):
    with subprocess.Popen([sys.executable, "-c", KILLED, path, JOB], stdout=subprocess.PIPE) as process:
        assert process.stdout
        made = len(process.stdout.read(20))
        with refused(RunError, key=path):
            opened(path)
        process.kill()
        made += len(process.stdout.read())
    with opened(path, expected=True) as ledger:
        assert made <= ledger.summary()[0].releases <= made + 1


def three_entries(path):
    with opened(path) as ledger:
        for step in range(3):
            ledger.spend(NODE, UP, step)
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("line", [1, 2, 3])
@pytest.mark.parametrize("change", [None, (b"0", b"1"), (b": ", b":"), (b"\n", b"\r\n")])
def test_a_removed_or_changed_line_is_found(path, line, change):
    kept = three_entries(path)
    kept[line - 1 : line] = [] if change is None else [kept[line - 1].replace(*change)]
    path.write_bytes(b"".join(kept))
    with refused(RunError, key=path, **({"value": line} if change is None else {})):
        opened(path)


def test_swapped_lines_are_found(path):
    first, second, third, fourth = three_entries(path)
    path.write_bytes(b"".join([first, third, second, fourth]))
    with refused(RunError, key=path, value=2):
        opened(path)


def test_a_ledger_that_is_gone_is_not_begun_anew(path):
    with refused(RunError, key=path):
        opened(path, expected=True)
    assert not path.exists()


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        *product([4], [{"count": count} for count in (0, -3, 1.5, True)]),
        (4, {"step": -1}),
        (4, {"channel": ""}),
        *product([4], [{"total": total} for total in (-1.0, math.inf)]),
        (4, {"event": {"kind": "none"}}),
        (4, {"event": {**WRITTEN, "noise_multiplier": 0}}),
        (4, {"event": []}),
        (4, {"refund": 3}),
        *product([5], [b"\n", b"{\n", b"\xff\n", b"[]\n", b"1\n", b"\x00" * 50 + b"\n"]),
    ],
)
def test_a_line_that_is_no_entry_is_refused_with_its_number(path, line, changes):
    kept = three_entries(path)
    if isinstance(changes, dict):
        changes = json.dumps({**json.loads(kept.pop()), **changes}).encode() + b"\n"
    path.write_bytes(b"".join([*kept, changes]))
    with refused(RunError, key=path, value=line):
        opened(path)


def test_a_ledger_is_of_one_job_and_one_delta_and_is_let_go_of_when_it_is_refused(path):
    three_entries(path)
    for other in ({"job": "cd" * 32}, {"delta": 1e-6}):
        with refused(RunError, key=path):
            opened(path, **other)
    with opened(path) as ledger:
        ledger.spend(NODE, UP, 3)


def test_two_ledgers_on_one_path_are_refused(path):
    with opened(path), refused(RunError, key=path):
        opened(path)
    with opened(path) as ledger:
        ledger.spend(NODE, UP, 0)


@pytest.mark.parametrize("failure", ["write", "part", "fsync"])
def test_after_a_failed_write_nothing_is_released_and_the_file_opens_again(path, monkeypatch, failure):
    with opened(path) as ledger:
        ledger.spend(NODE, UP, 0)
        with monkeypatch.context() as patch:
            patch.setattr(ledger_files, "append", full_disk(failure))
            with refused(RunError, key=path):
                ledger.spend(NODE, UP, 1)
        with refused(RunError, key=path):
            ledger.spend(NODE, UP, 1)
    with opened(path, expected=True) as ledger:
        assert ledger.summary()[0].releases == (2 if failure == "fsync" else 1)
        ledger.spend(NODE, UP, 1)


def full_disk(failure):
    """In place of ``append``: on a disk that is full."""

    def write(path, content, *, sync):
        if failure != "write":
            append(path, content[:40] if failure == "part" else content)
        raise OSError(28, "No space left on device")

    return write


def test_a_closed_ledger_pays_for_nothing_not_even_what_was_reserved(path):
    with opened(path) as ledger:
        ledger.reserve(NODE, UP, 0, 3)
    with refused(RunError, key=path):
        ledger.spend(NODE, UP, 0)
    assert ledger.summary()[0].releases == 3


def test_a_closed_ledger_charges_nothing_for_life(path):
    """Whoever releases after a write has failed is refused before the ledger for life pays."""
    for_life: Any = SimpleNamespace(charged=[])
    for_life.charge = lambda event, channel, count, **_: for_life.charged.append(count)
    ledger = Ledger.open(path, DELTA, None, job=JOB, lifetime=for_life)
    ledger.spend(NODE, UP, 0)
    ledger.close()
    with refused(RunError, key=path):
        ledger.spend(NODE, UP, 1)
    assert for_life.charged == [1]


@pytest.mark.parametrize(("room", "paid"), [(None, 5), (9, 5), (3, 3), (0, 1)])
def test_a_reservation_takes_what_the_ledger_for_life_has_room_for_and_it_pays_for_no_more(path, room, paid):
    """Where that has room for none, it is asked for one, and says itself why not."""
    charged = []
    for_life: Any = SimpleNamespace(charge=lambda event, channel, count, **_: charged.append(count))
    for_life.room = lambda event: room
    with closing(Ledger.open(path, DELTA, None, job=JOB, lifetime=for_life)) as ledger:
        assert ledger.reserve(NODE, UP, 0, 5) == ledger.reserved(NODE, UP) == paid
        ledger.spend(NODE, DOWN, 0, by_rows=True)
    assert charged == [paid], "by rows it is paid beside this"
    assert [entry["count"] for entry in entries(path)] == [paid, 1]


def test_threads_share_a_budget_without_passing_it(path):
    budget = accountant.total({NODE: 50}, DELTA)
    made: Counter[str] = Counter()

    def release(channel):
        try:
            for step in range(30):
                if step % 3 == 0:
                    ledger.reserve(NODE, channel, step, 2)
                ledger.spend(NODE, channel, step)
                made[channel] += 1
        except BudgetSpent:
            pass

    with opened(path, budget) as ledger:
        threads = [threading.Thread(target=release, args=(f"channel {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert ledger.room(NODE) == 0
    assert counts_in(path) == {5.0: 50}
    assert 0 < made.total() <= 50
    with opened(path, expected=True) as ledger:
        for each in ledger.summary():
            assert made[each.channel] <= each.releases
