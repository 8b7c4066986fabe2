"""What every mechanism promises."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from typing import Any, ClassVar, Final

import numpy as np
import pytest
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.privacy.accountant import per_step, total
from veilgraph.privacy.event import EVENTS, Event, Neighbours, from_json, sensitivity_in_clips, to_json
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.privacy.settings import MECHANISMS
from veilgraph_testing.generators import untouched
from veilgraph_testing.lower_bound import epsilon_lower_bound

DELTA: Final = 1e-5
_GAMES: Final = 100_000
_THRESHOLDS: Final = np.linspace(-2.0, 12.0, 29)
"""Of a distinguisher, over the spread of the noise; chosen before any game is played."""
_CONFIDENCE: Final = 1 - 1e-6
_BAD: Final = (math.nan, math.inf, -math.inf, 1e151)


def fixed_source(name: str = "") -> SecretSource:
    """The same bytes in the same order whenever it is made: for tests alone."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(f"{name}/{next(calls)}".encode()).digest(size)


def check_event(event: Event) -> None:
    """What holds of every event: ledgers can keep it, and more of it costs more."""
    assert EVENTS[event.kind] is type(event), "its kind is not the name that finds it"
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    assert hash(event) == hash(from_json(to_json(event)))
    one, two = total({event: 1}, DELTA), total({event: 2}, DELTA)
    assert 0 < one < math.inf
    assert one < two < 2 * one * (1 + 1e-9)
    assert per_step(event, DELTA / 10) >= one


def check_source(release: Any, x: Tensor) -> None:  # noqa: ANN401 - (x, source) → a tensor
    """All randomness is of the source that is given: no generator of the process has a part in it."""
    asked: list[int] = []

    def source(size: int) -> bytes:
        asked.append(size)
        return system_secrets(size)

    with untouched():
        first = release(x, source).to_dense()
    assert sum(asked) >= SEED_BYTES, "its randomness has fewer bits than a key"
    assert not torch.equal(first, release(x, system_secrets).to_dense()), "it comes out the same twice"
    same = [release(x, fixed_source("same")).to_dense() for _ in range(2)]
    assert torch.equal(*same), "something beside the source has a part in it"


def check_worlds(one: Tensor, other: Tensor, event: Event) -> None:
    """No threshold tells two neighbouring worlds apart better than one release's event allows.

    ``one`` and ``other`` are Tensor[T] of what a distinguisher makes of releases in each world.
    """
    claimed, spread = per_step(event, DELTA), float(other.std())
    scores = [np.sort((side - other.mean()).numpy()) / spread for side in (one, other)]
    for threshold in _THRESHOLDS:
        here, there = (len(side) - int(np.searchsorted(side, threshold)) for side in scores)
        proven = epsilon_lower_bound(here, there, len(one), DELTA, _CONFIDENCE)
        assert proven <= claimed, f"ε is at least {proven:.3g}, and the event says {claimed:.3g}"


class MechanismConformance:
    """Of a mechanism for rows. Inherit it and name one that is installed or one of ours.

    Attributes:
        name: as jobs have it.
        columns: d of rows to try, enough of them for the mechanism.
    """

    name: ClassVar[str]
    columns: ClassVar[int] = 4

    def make(self, clip: float = 1.0, multiplier: float = 1.0) -> Mechanism:
        """One of them."""
        return MECHANISMS[self.name](clip, multiplier)

    def rows(self, count: int = 50) -> Tensor:
        """Rows, most of them too long for the clip."""
        generator = torch.Generator().manual_seed(1)
        return 2 * torch.randn(count, self.columns, dtype=torch.float64, generator=generator)

    def test_it_is_a_frozen_mechanism(self) -> None:
        kind = MECHANISMS[self.name]
        assert issubclass(kind, Mechanism)
        assert kind.order in (1, 2)
        made = self.make(3.0, 0.5)
        assert (made.clip, made) == (3.0, kind(3.0, 0.5))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, "clip", 2.0)  # noqa: B010

    @pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
    def test_a_clip_out_of_range_is_refused(self, clip: float) -> None:
        with pytest.raises(ConfigError):
            self.make(clip)

    @pytest.mark.parametrize("multiplier", [0.0, -1.0, math.inf, math.nan])
    def test_noise_out_of_range_is_refused(self, multiplier: float) -> None:
        with pytest.raises(ConfigError):
            self.make(multiplier=multiplier)

    @pytest.mark.parametrize("bad", _BAD)
    def test_numbers_without_a_norm_are_refused(self, bad: float) -> None:
        x = self.rows()
        x[2, 1] = bad
        with pytest.raises(RangeOverflow):
            self.make().release(x, system_secrets)

    @pytest.mark.parametrize("count", [0, 1, 50])
    def test_a_release_is_finite_and_leaves_the_rows_alone(self, count: int) -> None:
        x = self.rows(count).requires_grad_()
        before = x.detach().clone()
        released = self.make().release(x, system_secrets)
        assert released.shape == x.shape
        assert released.dtype == torch.float64
        assert not released.requires_grad
        assert bool(released.isfinite().all())
        assert torch.equal(x.detach(), before)

    def test_its_noise_is_of_a_secret_source_alone(self) -> None:
        check_source(self.make().release, self.rows())

    def test_noise_may_be_drawn_ahead(self) -> None:
        made, x = self.make(), self.rows()
        ahead = made.apply(x, made.draw(tuple(x.shape), fixed_source("ahead")))
        assert torch.equal(ahead, made.release(x, fixed_source("ahead")))

    def test_almost_no_noise_leaves_the_clipped_rows(self) -> None:
        x, clip, order = self.rows(), 2.0, MECHANISMS[self.name].order
        lengths = torch.linalg.vector_norm(x, order, dim=1, keepdim=True)
        released = self.make(clip, 1e-9).release(x, system_secrets)
        torch.testing.assert_close(released, x * torch.clamp_max(clip / lengths, 1), rtol=0, atol=1e-6)

    def test_no_row_is_longer_than_the_clip_and_none_leaves_the_grid(self) -> None:
        made, x = self.make(1.5, 0.5), self.rows(2000)
        if not made.is_plain:
            return
        clipped = made.apply(x, torch.zeros_like(x))
        assert float(torch.linalg.vector_norm(clipped, made.order, dim=1).max()) <= 1.5
        cells = made.release(x, system_secrets) / made.cell
        assert torch.equal(cells, cells.round()), "low bits tell of the rows"

    def test_the_noise_has_the_variance_that_it_says(self) -> None:
        made = self.make(2.0, 1.5)
        drawn = made.draw((50_000, self.columns), fixed_source("variance"))
        assert abs(float(drawn.mean())) < 6 * (made.variance / drawn.numel()) ** 0.5
        assert abs(float(drawn.var()) / made.variance - 1) < 0.06

    def test_its_event_composes(self) -> None:
        for neighbours in ("zero-out", "replacement"):
            event = self.make(multiplier=3.0).event(neighbours)
            assert (event.neighbours, event.unit) == (neighbours, "row")
            check_event(event)
            assert per_step(self.make(multiplier=6.0).event(neighbours), DELTA) < per_step(event, DELTA)
        near, far = (per_step(self.make().event(each), DELTA) for each in ("zero-out", "replacement"))
        assert near < far, "replacement moves a row by more"

    @pytest.mark.parametrize("neighbours", ["zero-out", "replacement"])
    @pytest.mark.parametrize("releases", [1, 5])
    @pytest.mark.parametrize("epsilon", [0.5, 2.0])
    def test_calibration_gives_what_was_asked(self, epsilon: float, releases: int, neighbours: Neighbours) -> None:
        kind, clips = MECHANISMS[self.name], sensitivity_in_clips(neighbours)
        found = kind.for_total(epsilon, DELTA, releases, clips)
        cost = total({kind(1.0, found).event(neighbours): releases}, DELTA)
        assert 0.98 * epsilon <= cost <= epsilon
        one = kind(1.0, kind.for_one(epsilon, DELTA, clips, "analytic")).event(neighbours)
        assert 0.98 * epsilon <= per_step(one, DELTA) <= epsilon

    def test_many_rows_move_further_and_an_edge_costs_more(self) -> None:
        kind = MECHANISMS[self.name]
        assert kind.rows_moved(1) == 1 < kind.rows_moved(9) <= 9
        event = self.make(multiplier=20.0).event("replacement")
        try:
            edge = event.of_unit("edge", 9)
        except ConfigError:
            return  # it says that it is of rows alone
        assert (edge.unit, edge.neighbours) == ("edge", "replacement")
        wider = self.make(multiplier=20.0 / kind.rows_moved(9)).event("replacement")
        assert per_step(edge, DELTA) == pytest.approx(per_step(wider, DELTA), rel=1e-6)

    @pytest.mark.parametrize("neighbours", ["zero-out", "replacement"])
    def test_neighbours_are_as_alike_as_the_event_says(self, neighbours: Neighbours) -> None:
        made = self.make(1.0, 1.0 * sensitivity_in_clips(neighbours))
        here = torch.zeros(_GAMES, self.columns, dtype=torch.float64)
        here[:, 0] = 10.0  # far beyond the clip
        there = torch.zeros_like(here) if neighbours == "zero-out" else -here
        source = fixed_source("neighbours")
        worlds = [made.release(x, source)[:, 0] for x in (here, there)]
        check_worlds(worlds[0], worlds[1], made.event(neighbours))
