"""Pairs of sessions of one job: cut and resumed, repeated, of changed data, of other survivors, in copied folders."""

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.attacks.sums import Seen, watching
from tests.pairs.drawn import Drawn
from tests.paradigms.averaging.jobs import dropping_out, sums_of
from tests.paradigms.cutting import CutError, cut_at
from veilgraph.audit.sealing import Session, read_sessions
from veilgraph.core.errors import BudgetSpent, ProtocolError
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import adds_noise
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory


@dataclass
class Pair:
    """What two sessions, or more, leave.

    Attributes:
        job: that was run.
        runs: their directories.
        sums: of averaging: what the server opened, and what holders put in.
        uncut: the run without interruption that the newest of ``runs`` should equal; None where none should.
        changed: whose data changed in between; empty for nobody's.
    """

    job: Drawn
    runs: list[Path]
    sums: Seen
    uncut: Path | None = None
    changed: PartyId = ""
    sessions: list[Session] = field(default_factory=list)

    def read(self) -> None:
        """Reads what crossed the wire, session by session."""
        self.sessions = read_sessions([RunDirectory.open(path) for path in self.runs])


Play = Callable[[Drawn, random.Random, Path, Seen], Pair]


def trained(job: Drawn, out: Path, *, private: bool) -> Path:
    return train(job.settings, out, private_seeds=private, record_views=True, view_passes=0).path


def _cut(job: Drawn, draw: random.Random, out: Path, *, private: bool) -> Path:
    with cut_at(draw.randint(1, job.settings.train.epochs)), pytest.raises(CutError):
        trained(job, out, private=private)
    return out


def _resumed(job: Drawn, draw: random.Random, folder: Path, sums: Seen) -> Pair:
    """Cut, resumed, and asked for a prediction; with the job's own seeds it is what it would have been uncut."""
    run = _cut(job, draw, folder / "run", private=False)
    goes_on = _goes_on(run)
    opened = len(sums.sums), len(sums.values)
    everybody = {graph.party for graph in job.graphs}
    all_in = all(set(one.counted) == everybody for one in sums.sums)  # the one that was cut off may count as late
    uncut = train(job.settings, folder / "uncut").path if repeats(job) and all_in else None
    del sums.sums[opened[0] :], sums.values[opened[1] :]  # of the uncut run, which is no session of the pair
    if goes_on:
        predict(run)
    return Pair(job, [run], sums, uncut)


def _goes_on(run: Path) -> bool:
    """Resumes a run; False where all planned rounds were paid for before a checkpoint, and it says that it cannot."""
    try:
        resume(run)
    except BudgetSpent as error:
        if error.code != "no-checkpoint":
            raise
        return False
    return True


def _repeated(job: Drawn, draw: random.Random, folder: Path, sums: Seen) -> Pair:
    private = draw.random() < 0.5
    return Pair(job, [trained(job, folder / name, private=private) for name in ("one", "other")], sums)


def _changed(job: Drawn, draw: random.Random, folder: Path, sums: Seen) -> Pair:
    one = trained(job, folder / "one", private=True)
    whose = job.change(draw)
    return Pair(job, [one, trained(job, folder / "other", private=True)], sums, changed=whose)


def _copied(job: Drawn, draw: random.Random, folder: Path, sums: Seen) -> Pair:
    """A run is cut, copied, and both copies go on."""
    run = _cut(job, draw, folder / "run", private=draw.random() < 0.5)
    copy = Path(shutil.copytree(run, folder / "copy"))
    for path in (run, copy):
        _goes_on(path)
    return Pair(job, [run, copy], sums)


def _other_survivors(job: Drawn, draw: random.Random, folder: Path, sums: Seen) -> Pair:
    """A holder misses sums of the first session and is back in the second."""
    late = draw.choice([graph.party for graph in job.graphs])
    epoch = draw.randint(1, job.settings.train.epochs)
    missed = draw.sample(sums_of(epoch), draw.randint(1, 2))
    out = folder / "run"
    late_in_these = dropping_out({late: dict.fromkeys(missed, 1)})
    with late_in_these, suppress(AssertionError, ProtocolError):  # where it ends by itself, or too few are left
        _cut(job, draw, out, private=True)
    try:
        _goes_on(out)
    except ProtocolError as error:
        if error.code not in ("other-survivors", "too-few"):
            raise
    return Pair(job, [out], sums)


KINDS: Mapping[str, Play] = {
    "resumed": _resumed,
    "repeated": _repeated,
    "changed": _changed,
    "copied": _copied,
    "survivors": _other_survivors,
}


def kinds_of(job: Drawn) -> Sequence[str]:
    """The kinds of pairs that a job can be played in."""
    tolerates = job.settings.passes.tolerates_dropouts
    return [kind for kind in KINDS if kind != "survivors" or tolerates]


def repeats(job: Drawn) -> bool:
    """Whether a run that is resumed should equal one without a cut: no noise is drawn in its sessions."""
    return not adds_noise(job.settings)


@contextmanager
def played(job: Drawn, kind: str, draw: random.Random, folder: Path) -> Iterator[Pair]:
    """A pair of sessions, in a folder to be made."""
    with ExitStack() as stack:
        sums = stack.enter_context(watching())
        pair = KINDS[kind](job, draw, folder, sums)
        pair.read()
        yield pair
