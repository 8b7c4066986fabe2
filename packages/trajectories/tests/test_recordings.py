"""Recordings of people who walk: physics, known truth, and what follows from the seed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from veilgraph_trajectories import forces, trajectories
from veilgraph_trajectories.dataset import TRAJECTORIES
from veilgraph_trajectories.scenes import draw_scene
from veilgraph_trajectories.settings import SCENE_KINDS, SceneKind, TrajectoriesSettings
from veilgraph_trajectories.walk import ARRIVED, SPEEDS
from veilgraph_trajectories.windows import Windows, side_by_side, windows
from veilgraph_trajectories.world import PAUSE, Camera

import veilgraph as vg
from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.settings import DataSettings

Real = NDArray[np.float64]
INTERVAL = 0.4
EACH_KIND = pytest.mark.parametrize(
    "kind", [kind if kind in ("crossing", "plaza") else pytest.param(kind, marks=nightly) for kind in SCENE_KINDS]
)


@cache
def camera(kind: SceneKind) -> Camera:
    return trajectories(cameras=2, recordings=3, frames=50, objects=9, scenes=[kind], seed=5).cameras[0]


# Physics


@nightly
@pytest.mark.cases(1)
@EACH_KIND
def test_people_keep_apart_and_out_of_obstacles_and_are_neither_too_fast_nor_lost(kind: SceneKind) -> None:
    seen = camera(kind)
    tracks, scene = seen.tracks, seen.scene
    one, other = seen.edges(forces.BODY)
    apart = np.linalg.norm(seen.position[one] - seen.position[other], axis=1)
    assert (apart > forces.BODY / 2).all(), "two bodies are one inside the other"
    for *ends, radius in scene.obstacles:
        away = seen.position - forces.nearest(seen.position, np.array(ends[:2]), np.array(ends[2:]))
        assert (np.linalg.norm(away, axis=1) > radius).all(), "somebody walks through an obstacle"
    speed = np.linalg.norm(tracks.velocity, axis=1)
    assert (speed <= forces.TOP_SPEED * tracks.speed[seen.person] + 1e-9).all()
    assert (tracks.speed >= SPEEDS[0] * scene.speed).all()
    assert (tracks.speed <= SPEEDS[1] * scene.speed).all()
    assert 0.7 < np.median(speed) / scene.speed < 1.2
    assert (seen.position > -1).all()
    assert (seen.position < np.array(scene.size) + 1).all()
    follows = np.lexsort((seen.frame, seen.person))
    same = np.diff(seen.person[follows]) == 0
    assert (np.diff(seen.frame[follows])[same] == 1).all(), "somebody was away in between"
    moved = np.linalg.norm(np.diff(seen.position[follows], axis=0)[same], axis=1)
    assert (moved <= INTERVAL * forces.TOP_SPEED * tracks.speed[seen.person[follows][1:][same]] + 1e-9).all()


@nightly
@EACH_KIND
def test_people_reach_the_door_that_they_walk_to(kind: SceneKind) -> None:
    seen = camera(kind)
    tracks, doors = seen.tracks, seen.scene.doors[seen.tracks.route]
    last = np.full(len(tracks.speed), -1)
    last[seen.person] = np.arange(len(seen.person))  # rows are in the order of time
    end = seen.position[last]
    left = np.linalg.norm(end - forces.nearest(end, doors[:, -1, 0], doors[:, -1, 1]), axis=1)
    at_end = tracks.frame[last] == seen.frames - 1
    assert (tracks.arrived != at_end).all(), "who is not there at the end has arrived, and nobody else"
    assert (left[tracks.arrived] < ARRIVED + INTERVAL * forces.TOP_SPEED * tracks.speed[tracks.arrived]).all()
    first = np.flatnonzero(tracks.frame == 0)
    assert tracks.arrived[seen.person[first]].mean() > 0.75, "most who are there at first are through in 20 s"
    assert 0.4 < len(seen.frame) / (3 * seen.frames) / seen.scene.objects < 1.6, "people in sight at once"


def test_who_is_alone_walks_at_the_desired_speed() -> None:
    """The limiting case: no others near, no obstacles, no noise."""
    world = trajectories(cameras=2, recordings=4, frames=20, objects=2, scenes=["crossing"], noise=0.0)
    seen = world.cameras[0]
    free = np.ones(len(seen.frame), bool)
    free[seen.edges(12.0)[0]] = False
    assert free.sum() > 20
    speed = np.linalg.norm(seen.tracks.velocity[free], axis=1)
    assert speed == pytest.approx(seen.tracks.speed[seen.person[free]], rel=0.02)


def test_forces_are_what_potentials_say() -> None:
    """Against numerical gradients of V⁰exp(−b/σ) and U⁰exp(−d/R)."""
    draws = np.random.default_rng(0)
    sights = []
    for _ in range(60):
        angle, size, velocity = draws.uniform(0, 2 * np.pi), draws.uniform(0.6, 4), draws.uniform(-2, 2, 2)
        r, look = size * np.array([np.cos(angle), np.sin(angle)]), unit(draws.uniform(-1, 1, 2))

        def repulsion(place: Real, step: Real = velocity) -> float:
            far, near = np.linalg.norm(place), np.linalg.norm(place - step)
            return float(2.0 * np.exp(-np.sqrt((far + near) ** 2 - step @ step) / 2))

        pushed = -slope(repulsion, r)
        sights.append(look @ -pushed >= np.linalg.norm(pushed) * np.cos(np.deg2rad(100)))
        found = forces.between(r[None], velocity[None], look[None])[0]
        assert found == pytest.approx(pushed * (1.0 if sights[-1] else 0.5), rel=1e-3, abs=1e-5)

        def border(place: Real) -> float:
            nearest = np.array([np.clip(place[0], -1.0, 1.5), -5.0])
            return float(5 * np.exp(-(np.linalg.norm(place - nearest) - 0.3) / 0.4))

        wall = np.array([[-1.0, -5.0, 1.5, -5.0, 0.3]])
        assert forces.borders(r[None], wall)[0] == pytest.approx(-slope(border, r), rel=1e-3, abs=1e-6)
        driven = forces.driving(velocity[None], look[None], np.array([1.3]))[0]
        assert driven == pytest.approx((1.3 * look - velocity) / 0.5)
    assert 5 < sum(sights) < 55, "some are seen, and some are not"


def unit(vector: Real) -> Real:
    return vector / np.linalg.norm(vector)


def slope(function: Callable[[Real], float], place: Real, step: float = 1e-6) -> Real:
    return np.array([(function(place + d) - function(place - d)) / (2 * step) for d in step * np.eye(2)])


# What follows from the seed


def test_the_seed_fixes_a_camera_whatever_others_there_are() -> None:
    small = {"recordings": 1, "frames": 10, "objects": 3}
    one, more = (trajectories(cameras=count, seed=3, **small) for count in (2, 3))
    other = trajectories(cameras=2, seed=4, **small)
    for place, seen in enumerate(one.cameras):
        assert np.array_equal(seen.position, more.cameras[place].position)
        assert not np.array_equal(seen.position, other.cameras[place].position)
    assert [seen.scene.kind for seen in more.cameras] == ["corridor", "crossing", "plaza"]
    with refused(ConfigError, key="name", value="Z"):
        one.camera("Z")
    with refused(ConfigError, key="scenes"):
        trajectories(scenes=["plaza", "plaza"])
    with refused(ConfigError, key="recordings", value=100_000):
        trajectories(recordings=100_000, frames=100_000)


@pytest.mark.parametrize(("variety", "kinds"), [(0.0, 1), (1.0, 4)])
def test_cameras_of_a_kind_differ_as_far_as_variety_says(variety: float, kinds: int) -> None:
    settings = TrajectoriesSettings(scenes=("gate",), variety=variety)
    scenes = [draw_scene(settings, number, np.random.default_rng(number)) for number in range(4)]
    assert len({(scene.speed, scene.size, scene.objects) for scene in scenes}) == kinds


def test_edges_are_of_one_frame_and_recordings_do_not_meet() -> None:
    seen = camera("plaza")
    found = set(map(tuple, seen.edges(2.5).T.tolist()))
    wanted = set()
    for frame in np.unique(seen.frame):
        rows = np.flatnonzero(seen.frame == frame)
        pairs = rows[cKDTree(seen.position[rows]).query_pairs(2.5, output_type="ndarray")]
        wanted |= {tuple(pair) for pair in [*pairs.tolist(), *pairs[:, ::-1].tolist()]}
    assert found == wanted
    assert len(found) > 50
    gaps = np.diff(np.unique(seen.frame))
    assert set(gaps.tolist()) == {1, 1 + PAUSE}


def test_holders_of_a_job_are_cameras() -> None:
    said: dict[str, Any] = {"cameras": 2, "recordings": 2, "frames": 10, "objects": 3}
    settings = DataSettings.model_validate({"dataset": "trajectories", "made": said})
    parts = load_parts(settings, 7)
    world = trajectories(seed=7, **said)
    for part, seen in zip(parts, world.cameras, strict=True):
        assert part.graph.features[:, 0].tolist() == seen.person.tolist()
        assert part.graph.features[:, 1].tolist() == seen.frame.tolist()
        assert np.allclose(part.graph.features[:, 2:], seen.position, atol=1e-5)
    whole = vg.datasets.load("trajectories", made=said, seed=7)
    assert torch.equal(whole.x, torch.cat([part.graph.features for part in parts]))
    assert whole.camera.tolist() == [0] * parts[0].graph.num_nodes + [1] * parts[1].graph.num_nodes
    changed: dict[str, dict[str, Any]] = {
        "data.holders": {"holders": 3},
        "data.partition": {"partition": {"by": "labels"}},
    }
    for key, changes in changed.items():
        with refused(DataError, key=key):
            TRAJECTORIES.parts(whole, DataSettings.model_validate({**settings.model_dump(), **changes}), 7)
    with refused(DataError, key="data.split"):
        vg.datasets.load("trajectories", made=said, split=[0.5, 0.2, 0.3])


# Windows


@st.composite
def rows(draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.int64], Real]:
    pairs = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 20)), unique=True, max_size=40))
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1], np.random.default_rng(len(pairs)).uniform(0, 4, (len(pairs), 2))


def cut(objects: NDArray[np.int64], frame: NDArray[np.int64], position: Real) -> Windows:
    return windows(objects, frame, position, length=5, stride=3, radius=2.0, dtype=torch.float64)


@given(rows())
def test_windows_are_what_a_loop_finds(given_rows: tuple[NDArray[np.int64], NDArray[np.int64], Real]) -> None:
    objects, frame, position = given_rows
    there = {(o, f): p for o, f, p in zip(objects.tolist(), frame.tolist(), position, strict=True)}
    tracks: list[tuple[int, int]] = []
    at: dict[tuple[int, int], int] = {}
    for start in range(int(frame.min()), int(frame.max()) + 1, 3) if len(frame) else ():
        for each in sorted(set(objects.tolist())):
            if any((each, start + t) in there for t in range(5)):
                at[start, each] = len(tracks)
                tracks.append((start, each))
    found = cut(objects, frame, position)
    assert list(zip(found.start.tolist(), found.object.tolist(), strict=True)) == tracks
    for place, (start, each) in enumerate(tracks):
        for t in range(5):
            where = there.get((each, start + t))
            assert bool(found.here[place, t]) == (where is not None)
            assert found.positions[place, t].tolist() == ([0, 0] if where is None else where.tolist())
    pairs = {(at[s, a], at[s, b]) for s, a in tracks for z, b in tracks if s == z and a != b}
    assert set(map(tuple, found.pairs.T.tolist())) == pairs
    for t, near in enumerate(found.near):
        close = {
            pair
            for pair in pairs
            if all((tracks[each][1], tracks[each][0] + t) in there for each in pair)
            and np.hypot(*(found.positions[pair[0], t] - found.positions[pair[1], t]).tolist()) < 2.0
        }
        assert set(map(tuple, near.T.tolist())) == close


@given(rows(), rows())
def test_windows_side_by_side_are_found_again(
    one: tuple[NDArray[np.int64], NDArray[np.int64], Real], other: tuple[NDArray[np.int64], NDArray[np.int64], Real]
) -> None:
    parts = cut(*one), cut(*other)
    both = side_by_side(parts)
    owner = torch.arange(2).repeat_interleave(torch.tensor([len(part) for part in parts]))
    for place, part in enumerate(parts):
        again = both.take(owner == place)
        assert torch.equal(again.positions, part.positions)
        assert torch.equal(again.here, part.here)
        assert torch.equal(again.pairs, part.pairs)
        assert torch.equal(again.object, part.object)
        assert torch.equal(again.start, part.start)
        assert all(torch.equal(mine, its) for mine, its in zip(again.near, part.near, strict=True))
