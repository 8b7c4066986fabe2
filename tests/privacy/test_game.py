"""A game on what mechanisms release: the ε that its player proves is under the ledger's claim, and over it for mutants.

Is a row x, or its neighbour, which is zero or -x? For each of T releases the player chooses x from what it has seen,
and longer than the clip. Directions come in opposite pairs, which changes nothing for an honest mechanism and cancels
noise that is used twice. The player looks at what came out in every way it knows and says "x" above a threshold; way
and threshold are chosen on half of the trials and judged on the others. A bound on an honest mechanism is wrong with a
probability of at most ``FAILURE``. Secrets are always the same, of honest mechanisms as of mutants.

Every row has noise of its own, so each row of one large matrix is a trial.
"""

import math
from contextlib import closing
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests.privacy.chance import fixed
from tests.privacy.lifetime.ledgers import ledger
from veilgraph.privacy import mechanism as mechanisms
from veilgraph.privacy import noise
from veilgraph.privacy.event import sensitivity_in_clips
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime_ledger import Account
from veilgraph.privacy.mechanism import Gaussian, Laplace
from veilgraph.privacy.release_cache import LifetimeCache, Release

CLIP, DELTA, FAILURE = 2.0, 0.02, 1e-6
TRIALS, MATRICES, ROWS = 60_000, 2000, 4
COLUMNS = 3
MECHANISMS = {"gaussian": Gaussian, "laplace": Laplace}
SHIFT = {"gaussian": 1.2, "laplace": 2.0}
"""How far all releases together move, over the noise of one: μ, and for Laplace the sum of pure ε."""

every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
both_relations = pytest.mark.parametrize("neighbours", ["zero-out", "replacement"])
once_and_often = pytest.mark.parametrize("releases", [1, 4])


def built(name, neighbours, parts=1):
    """The mechanism with which ``parts`` releases of a row, or one of that many rows, move by ``SHIFT``."""
    composed = parts if name == "laplace" else math.sqrt(parts)
    return MECHANISMS[name](CLIP, sensitivity_in_clips(neighbours) * composed / SHIFT[name])


def claimed(tmp_path, event, releases=1):
    """What the ledger says that the releases cost."""
    with closing(Ledger.open(tmp_path / "ledger.jsonl", DELTA, None, job="ab" * 32)) as ledger:
        for step in range(releases):
            ledger.spend(event, "embeddings to server", step)
        return ledger.totals()[event.scope]


def known(world):
    """A source that always gives the same secrets, other ones at each call."""
    calls = count()

    def source(length):
        return fixed((world, next(calls)))(length)

    return source


def used_again(world):
    return fixed(world)


# The player


def play(mechanism, neighbours, releases, in_x, source) -> Tensor:
    """Tensor[ways, TRIALS]: how much each row spoke for x in all releases."""
    column = torch.zeros(TRIALS, 1, dtype=torch.int64)
    sign = 1.0 - 2.0 * (torch.arange(TRIALS, dtype=torch.float64)[:, None] % 2)
    seen = []
    for step in range(releases):
        x = torch.zeros(TRIALS, COLUMNS, dtype=torch.float64).scatter_(1, column, CLIP * sign)
        other = -x if neighbours == "replacement" else torch.zeros_like(x)
        released = mechanism.release(2 * (x if in_x else other), source)
        seen.append(looks(mechanism, released, x, other))
        sign = -sign
        if step % 2 == 1:
            column = released.abs().argmax(1, keepdim=True)
            sign = torch.where(released.gather(1, column) < 0, -1.0, 1.0).double()
    return torch.stack(seen).sum(0)


def looks(mechanism, released, x, other) -> Tensor:
    """Tensor[ways, rows]: how much each row speaks for x, in every way that the player knows.

    It is the likelihood ratio, up to a factor, of Laplace or Gaussian noise (a projection on x).
    """
    order = 1 if isinstance(mechanism, Laplace) else 2
    spoken: Tensor = ((released - other).abs() ** order - (released - x).abs() ** order).sum(1)
    return spoken[None]


def proven(in_x, in_other) -> float:
    """The lower bound on ε from Tensor[ways, trials] of both worlds."""
    (choosing, judging), (others, judged) = in_x.chunk(2, dim=1), in_other.chunk(2, dim=1)
    levels = torch.linspace(0, 0.96, 49, dtype=torch.float64)
    thresholds = choosing.quantile(levels, dim=1, interpolation="lower").T.tolist()
    tests = [(way, threshold) for way, values in enumerate(thresholds) for threshold in values]

    def bound(test, x, other) -> float:
        way, threshold = test
        true, false = (int((world[way] >= threshold).sum()) for world in (x, other))
        return epsilon_lower_bound(true, false, x.shape[1], DELTA, 1 - FAILURE)

    return bound(max(tests, key=lambda test: bound(test, choosing, others)), judging, judged)


def proven_by_rows(mechanism, neighbours, releases, source) -> float:
    worlds = [play(mechanism, neighbours, releases, in_x, source(in_x)) for in_x in (True, False)]
    return proven(*worlds)


def proven_by_matrices(mechanism, source) -> float:
    """From matrices whose first row is x or zero, among rows that the player knows."""
    x = torch.tensor([[CLIP, 0.0, 0.0]], dtype=torch.float64)
    zero, others = torch.zeros_like(x), x.roll(1).repeat(ROWS - 1, 1)

    def seen(first, secrets):
        rows = 2 * torch.cat([first, others])
        released = torch.stack([mechanism.release(rows, secrets) for _ in range(MATRICES)])
        noise_beside = released[:, 1] - others[0]
        return torch.cat([looks(mechanism, released[:, 0] - guess, x, zero) for guess in (0.0, noise_beside)])

    return proven(seen(x, source("x")), seen(zero, source("zero")))


# Honest mechanisms


@pytest.mark.cases(2)
@every_mechanism
@both_relations
@once_and_often
def test_what_is_proven_is_under_the_claim_and_not_far(tmp_path, name, neighbours, releases):
    mechanism = built(name, neighbours, releases)
    claim = claimed(tmp_path, mechanism.event(neighbours), releases)
    bound = proven_by_rows(mechanism, neighbours, releases, known)
    assert 0.3 * claim < bound <= claim


@pytest.mark.cases(1)
@every_mechanism
@pytest.mark.parametrize("snapshots", [1, 2])
def test_two_snapshots_of_a_history_are_under_the_claim(tmp_path, name, snapshots):
    """Of each row, a trial, both jobs see x and then its opposite, or the opposite and then x: a history, and another.

    Two jobs of one snapshot see the first alone. Drawn anew for rows that changed, it would differ for them alone.
    """
    mechanism, trials = built(name, "replacement", snapshots), TRIALS // 3
    x = torch.zeros(trials, COLUMNS, dtype=torch.float64)
    x[:, 0] = CLIP
    worlds = []
    for world in (1.0, -1.0):
        lifetime, looked = ledger(tmp_path / f"{world}"), []
        each = lifetime.each_key(map(str, range(trials)))
        account = Account(lifetime, np.unique(each), DELTA, "ab" * 32, "job")
        for job, turn in enumerate((world, -world)):
            sent = LifetimeCache(account, each, snapshot=str(job % snapshots))
            make = partial(mechanism.release, source=fixed((world, job)))
            of = Release("embeddings", mechanism.event("replacement"), repr(mechanism))
            released = sent.release(of, turn * x, make)
            looked.append((1 if job == 0 else -1) * looks(mechanism, released, -x, x))
        worlds.append(-(looked[0] if snapshots == 1 else looked[0] + looked[1]))
        assert torch.equal(looked[0], -looked[1]) == (snapshots == 1)
        claim = lifetime.total()
    assert 0.3 * claim < proven(*worlds) <= claim


@pytest.mark.cases(1)
@every_mechanism
def test_a_row_among_known_ones_is_under_the_claim(tmp_path, name):
    mechanism = built(name, "zero-out")
    assert 0 < proven_by_matrices(mechanism, known) <= claimed(tmp_path, mechanism.event())


# Mutants


def replace_samplers(monkeypatch, drawn):
    for sampler in (noise.gaussian, noise.laplace):
        monkeypatch.setattr(noise, sampler.__name__, partial(drawn, sampler))


def halve_the_noise(monkeypatch):
    replace_samplers(monkeypatch, lambda sampler, shape, scale, source: sampler(shape, scale / 2, source))


def forget_to_clip(monkeypatch):
    monkeypatch.setattr(mechanisms, "clip_to_grid", lambda x, clip, order, step: x.double())


def share_noise_between_rows(monkeypatch):
    def drawn(sampler, shape, scale, source):
        return sampler((shape[0] // ROWS, shape[1]), scale, source).repeat_interleave(ROWS, 0)

    replace_samplers(monkeypatch, drawn)


@pytest.mark.cases(2)
@every_mechanism
@both_relations
@once_and_often
@pytest.mark.parametrize("mutate", [halve_the_noise, forget_to_clip])
def test_mutant_of_a_release(tmp_path, monkeypatch, name, neighbours, releases, mutate):
    mechanism = built(name, neighbours, releases)
    claim = claimed(tmp_path, mechanism.event(neighbours), releases)
    mutate(monkeypatch)
    assert proven_by_rows(mechanism, neighbours, releases, known) > claim


@pytest.mark.cases(1)
@every_mechanism
@both_relations
def test_mutant_one_noise_for_all_releases(tmp_path, name, neighbours):
    mechanism = built(name, neighbours, 4)
    claim = claimed(tmp_path, mechanism.event(neighbours), 4)
    assert proven_by_rows(mechanism, neighbours, 4, used_again) > claim


@pytest.mark.cases(1)
@every_mechanism
def test_mutant_known_rows_tell_the_noise_of_another(tmp_path, monkeypatch, name):
    mechanism = built(name, "zero-out")
    share_noise_between_rows(monkeypatch)
    assert proven_by_matrices(mechanism, known) > claimed(tmp_path, mechanism.event())
