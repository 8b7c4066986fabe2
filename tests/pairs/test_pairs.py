"""Random jobs over pairs of sessions tell no more than the claims say; faults that are planted in them are found.

``python -m tests.pairs`` plays 200 of every paradigm, as ``make nightly`` does here.
"""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import nightly
from tests.cli.commands import veilgraph
from tests.pairs.claims import found_in
from tests.pairs.drawn import PARADIGMS, Drawn, drawn
from tests.pairs.playing import one
from tests.pairs.sessions import played
from tests.paradigms.runs import saved_job
from tests.paradigms.sealed.two_sessions import draws_of_the_place
from veilgraph.core.errors import ProtocolError
from veilgraph.core.tensor_file import Record
from veilgraph.privacy.release_cache import LifetimeCache
from veilgraph.protocol.agreement import Point
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.checkpoints import Checkpoints

SOME, ALL = 1, 200


@pytest.mark.cases(250)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed < SOME else [nightly]) for seed in range(ALL)])
@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_a_pair_of_sessions_tells_what_the_claims_say(paradigm: str, seed: int, tmp_path: Path) -> None:
    kind, found = one(paradigm, seed, tmp_path / "pair")
    assert found == [], kind


Plant = Callable[[pytest.MonkeyPatch], None]


def planted(target: str, value: object) -> Plant:
    return lambda patch: patch.setattr(target, value)


def the_same(size: int) -> bytes:
    """A source of secrets that repeats itself."""
    return hashlib.shake_256(b"planted").digest(size)


same_secrets = planted("veilgraph.runtime.session.party.system_secrets", the_same)
same_seeds = planted("veilgraph.runtime.launch.jobs.private_seed", lambda: (1 << 256) | 7)
unrecorded = planted("veilgraph_averaging.settings.AveragingJob.records_survivors", False)
unpaid = planted("veilgraph.privacy.lifetime_ledger.Lifetime.charge", lambda self, *rest, **named: None)


def releases_follow(patch: pytest.MonkeyPatch) -> None:
    """What has changed is released as it is now, under the noise of before."""
    patch.setattr("veilgraph_node_dp.publisher.system_secrets", the_same)
    patch.setattr(LifetimeCache, "release", lambda self, of, rows, make: make(rows))


def other_weights(patch: pytest.MonkeyPatch) -> None:
    load = Checkpoints.load

    def scaled(self: Checkpoints, point: Point) -> tuple[Path, dict[str, Any], Record]:
        path, tensors, facts = load(self, point)
        return path, {name: each * 2 if each.is_floating_point() else each for name, each in tensors.items()}, facts

    patch.setattr(Checkpoints, "load", scaled)


@dataclass(frozen=True)
class Fault:
    """A fault, and a job in which it shows.

    Attributes:
        plant: puts it in.
        paradigm: of the job.
        kind: of the pair.
        words: of what has to be found.
        job: whether it shows in such a job.
        late: the first session is cut off in its last epoch, behind a checkpoint.
        first: number of the first random job that is looked at; in some a change touches nothing that is released.
    """

    plant: Plant
    paradigm: str
    kind: str
    words: str
    job: Callable[[JobSettings], bool] = lambda job: True
    late: bool = False
    first: int = 0


class Late(random.Random):
    """Draws the last of every range of numbers."""

    def randint(self, a: int, b: int) -> int:
        return b


def initial(method: str) -> Callable[[JobSettings], bool]:
    return lambda job: job.label_privacy is None and job.model_dump()["model"]["initial"]["method"] == method


def trains_privately(job: JobSettings) -> bool:
    return job.training_plan is not None


def adds_noise_to_features(job: JobSettings) -> bool:
    release = job.noise.feature_release
    return release is not None and release.mechanism in ("gaussian", "laplace")


def is_open(job: JobSettings) -> bool:
    return not adds_noise(job)


def goes_on(job: JobSettings) -> bool:
    return is_open(job) and job.train.checkpoint_every < job.train.epochs


FAULTS: dict[str, Fault] = {
    "secrets of products": Fault(same_secrets, "vertical", "repeated", "STATIC_DIFFERENCE: ", initial("collaborative")),
    "masks of products over changed data": Fault(
        same_secrets, "vertical", "changed", "differ by small numbers", initial("collaborative")
    ),
    "masks of sums over changed data": Fault(
        same_secrets, "vertical", "changed", "differ by small numbers", initial("secure-sum")
    ),
    "keys of nodes": Fault(same_secrets, "horizontal", "repeated", "NODE_KEY: "),
    "masks of products, when resumed": Fault(same_secrets, "vertical", "resumed", "SEED: ", initial("collaborative")),
    "keys of masks, in a copy": Fault(same_secrets, "vertical", "copied", "KEY: ", initial("secure-sum")),
    "seeds over changed data": Fault(same_seeds, "averaging", "changed", "differ by what changed of ", is_open),
    "survivors": Fault(unrecorded, "averaging", "survivors", "differ by the values of ", is_open),
    "a dealer's stream": Fault(
        draws_of_the_place, "sealed", "resumed", "the same low bits", lambda job: len(job.data.names) > 2
    ),
    "seeds of a dealer": Fault(same_secrets, "sealed", "copied", "SEED: "),
    "noise over changed data": Fault(
        releases_follow, "node-dp", "changed", "noise of one|of a release", adds_noise_to_features, first=6
    ),
    "a ledger": Fault(unpaid, "averaging", "repeated", "for life counts 0", trains_privately),
    "a ledger of perturbed rows": Fault(unpaid, "node-dp", "changed", "for life counts 0"),
    "weights of a checkpoint": Fault(
        other_weights, "vertical", "resumed", "differs from the uncut one", goes_on, late=True
    ),
    "weights of a round": Fault(
        other_weights, "averaging", "resumed", "differs from the uncut one|other-weights", goes_on, late=True
    ),
}


def a_job(fault: Fault, folder: Path) -> tuple[Drawn, random.Random]:
    """The first random job in which the fault shows."""
    for seed in range(fault.first, 100):
        draw = random.Random(f"{fault.paradigm}/{seed}")
        job = drawn(fault.paradigm, draw, folder / f"data {seed}")
        if fault.job(job.settings):
            return job, Late() if fault.late else draw
    raise AssertionError("no such job")


QUICK = {
    "secrets of products",
    "keys of nodes",
    "survivors",
    "seeds of a dealer",
    "noise over changed data",
    "a ledger of perturbed rows",
    "weights of a round",
}
"""Of every paradigm; the others are found nightly."""


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else [nightly]) for name in FAULTS])
def test_a_planted_fault_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    job, draw = a_job(fault, tmp_path)
    fault.plant(monkeypatch)
    try:
        with played(job, fault.kind, draw, tmp_path) as pair:
            found = found_in(pair)
    except ProtocolError as error:
        found = [error.code]
    assert any(words in each for each in found for words in fault.words.split("|")), found


def test_the_command_finds_secrets_that_are_drawn_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_secrets(monkeypatch)
    job = saved_job(tmp_path / "data", {"train": {"epochs": 2}, "model": {"initial": {"method": "collaborative"}}})
    one, other = (train(job, tmp_path / name, record_views=True).path for name in ("one", "other"))
    result = veilgraph("audit", one, "--beside", other, "--json")
    assert result.exit_code == 3, result.output
    for kind in ("SEED", "STATIC_DIFFERENCE", "MASKED", "SHARE"):
        assert any(f": {kind}: two sessions have" in each for each in json.loads(result.stdout)["found"]), kind
