"""Trajectories: scores against a loop, what is trained on and judged, tables of cameras, and what is refused."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_testing.graphs import seeded
from veilgraph_trajectories import trajectories
from veilgraph_trajectories.export import export_trajectories
from veilgraph_trajectories.settings import TrajectoriesSettings
from veilgraph_trajectories.task import Trajectories

import veilgraph as vg
from tests.errors import About, refused
from tests.paradigms.averaging.own_graphs import graphs_for, ids_of, task_job
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.limits import refusal
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import train

Places = dict[tuple[int, int], np.ndarray[tuple[int], np.dtype[np.float64]]]
OBSERVE, PREDICT, TRAIN, VAL = 3, 4, 12, 20
"""Of the jobs here, whose frames are 0 to 29: a tenth of 0.4 and 0.7 of 30."""


def places(graph: PartyGraph) -> Places:
    return {(int(o), int(f)): np.array([x, y]) for o, f, x, y in graph.features.tolist()}


def starts_of(split: str) -> list[int]:
    """First frames of the windows that lie in a part of 30 frames, every fourth."""
    first, end = {"train": (0, TRAIN), "val": (TRAIN, VAL), "test": (VAL, 1000)}[split]
    return [start for start in range(0, 30, PREDICT) if first <= start and start + OBSERVE + PREDICT <= end]


def test_a_new_network_scores_as_constant_velocity_does_in_a_loop() -> None:
    settings, graphs = task_job("trajectories"), graphs_for("trajectories")
    found = PlainAveraging(settings, graphs).scores().record()
    for split in ("train", "val", "test"):
        average, final, squares = [], [], []
        for graph in graphs:
            there = places(graph)
            for start in starts_of(split):
                for each in range(6):
                    path = [there.get((each, start + t)) for t in range(OBSERVE + PREDICT)]
                    for t in range(OBSERVE, OBSERVE + PREDICT):
                        before, now, then = path[t - 2 : t + 1] if t > 1 else (None, None, None)
                        if now is not None and then is not None:
                            guess = now if before is None else 2 * now - before
                            squares.append(((guess - then) ** 2).sum())
                    if all(place is not None for place in path):
                        last, went = path[OBSERVE - 1], path[OBSERVE - 1] - path[OBSERVE - 2]  # type: ignore[operator]
                        off = [
                            np.linalg.norm(last + step * went - path[OBSERVE - 1 + step])  # type: ignore[operator]
                            for step in range(1, PREDICT + 1)
                        ]
                        average.append(np.mean(off))
                        final.append(off[-1])
        if split != "test":
            assert found[f"{split}_loss"] == pytest.approx(np.mean(squares), abs=1e-5)
        assert found[f"{split}_ade"] == (pytest.approx(np.mean(average), abs=1e-5) if average else None)
        assert found[f"{split}_fde"] == (pytest.approx(np.mean(final), abs=1e-5) if final else None)


def test_the_future_says_nothing_of_what_is_predicted() -> None:
    """Frames after those observed, and all of other parts, are changed: predictions and the loss stay."""
    settings, (graph, *_) = task_job("trajectories"), graphs_for("trajectories")
    columns = graph.features.clone()
    frames = columns[:, 1]
    columns[frames >= TRAIN, 2:] += torch.randn(int((frames >= TRAIN).sum()), 2, generator=seeded(1))
    twin = PlainAveraging(settings, [graph])
    twin.round(1)
    streams = LearningStreams(settings.seed, graph.party)
    kept, changed = (
        twin.task.own(each, streams) for each in (graph, PartyGraph(graph.party, columns, graph.edge_index))
    )
    assert twin.task.examples(kept) == twin.task.examples(changed)
    losses = [twin.task.loss(twin.network, each, seeded(0)) for each in (kept, changed)]
    assert torch.equal(*losses)
    with torch.no_grad():
        outputs = [twin.task.judging.output(twin.network, each) for each in (kept, changed)]
    rows = (kept.all.start + OBSERVE <= TRAIN) & kept.all.here[:, OBSERVE - 1]
    assert torch.equal(*(output[rows] for output in outputs))
    assert not torch.equal(*outputs)


def test_every_frame_is_predicted_at_most_once_of_each_object(tmp_path: Path) -> None:
    settings, graphs = task_job("trajectories", {"train": {"epochs": 1}}), graphs_for("trajectories")
    run = train(settings, tmp_path / "run", parties=graphs, ids=ids_of(graphs))
    for graph in graphs:
        text = (run.path / "parties" / graph.party / "predictions.csv").read_text().splitlines()
        found = [(int(row["object"]), int(row["frame"])) for row in csv.DictReader(text)]
        assert len(set(found)) == len(found)
        last_seen = {(o, f) for o, f in places(graph) if f % PREDICT == OBSERVE - 1}
        assert set(found) == {(o, f + step) for o, f in last_seen for step in range(1, PREDICT + 1)}


def test_a_batch_is_a_share_of_the_windows_drawn_anew() -> None:
    settings, (graph, *_) = (
        task_job("trajectories", {"averaging": {"task": {"batch": 0.5}}}),
        graphs_for("trajectories"),
    )
    twin = PlainAveraging(settings, [graph])
    own = twin.task.own(graph, LearningStreams(settings.seed, graph.party))
    losses = {float(twin.task.loss(twin.network, own, seeded(seed)).detach()) for seed in range(12)}
    assert own.count == len(starts_of("train")) == 2
    assert len(losses) == 2, "one of two windows"


def test_cameras_tables_are_their_recordings(tmp_path: Path) -> None:
    world = {"cameras": 2, "recordings": 1, "frames": 12, "objects": 4.0}
    files = export_trajectories(TrajectoriesSettings(**world), tmp_path / "world", 3)
    cameras = trajectories(seed=3, **world).cameras
    for camera, file in zip(cameras, files.values(), strict=True):
        with (file.parent / "rows.csv").open() as table:
            rows = {(int(row["object"]), int(row["frame"])): row for row in csv.DictReader(table)}
        assert rows.keys() == set(zip(camera.person.tolist(), camera.frame.tolist(), strict=True))
        for each, frame, (x, y) in zip(camera.person, camera.frame, camera.position, strict=True):
            row = rows[each, frame]
            assert (float(row["x"]), float(row["y"])) == pytest.approx((x, y), abs=6e-4)
            assert row["row"] == f"{each}@{frame}"
    with (tmp_path / "world" / "truth" / "people.csv").open() as table:
        people = list(csv.DictReader(table))
    assert len(people) == sum(len(camera.tracks.speed) for camera in cameras)
    job = read_job(tmp_path / "world" / "averaging.yaml")
    assert job.data.names == ("A", "B")
    assert job.measures == Trajectories.measures
    for name, file in files.items():
        assert refusal(Organisation.read(file, name).settings.limits, job, name) is None


REFUSED: dict[str, tuple[Settings, About]] = {
    "local": ({"model": {"local": {"model": "gcn"}}}, {"key": "model.local"}),
    "dropout": ({"model": {"dropout": 0.1}}, {"key": "model.dropout", "value": 0.1}),
    "activation": ({"model": {"activation": "tanh"}}, {"key": "model.activation"}),
    "split": ({"averaging": {"task": {"name": "trajectories", "split": [0.8, 0.3]}}}, {"key": "split"}),
    "observe": ({"averaging": {"task": {"name": "trajectories", "observe": 1}}}, {"key": "averaging.task.observe"}),
}


@pytest.mark.parametrize(("change", "about"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_job_cannot_be(change: Settings, about: About) -> None:
    base: Settings = {"paradigm": "averaging", "averaging": {"task": {"name": "trajectories"}}}
    with refused(ConfigError, **about):
        vg.Job(**{**base, **change})


def test_what_rows_cannot_be() -> None:
    settings, (graph, *_) = task_job("trajectories").averaging.task, graphs_for("trajectories")
    half, twice = graph.features.clone(), torch.cat([graph.features, graph.features[:1]])
    half[0, 1] += 0.5
    for features in (half, twice, graph.features[:, :3], graph.features * 2**25):
        with refused(DataError, key="features", party=graph.party):
            settings.check_graph(PartyGraph(graph.party, features, graph.edge_index))
    joined = replace(graph, edge_index=torch.tensor([[0], [1]]))
    named = replace(graph, labels=torch.zeros(graph.num_nodes, dtype=torch.int64), num_classes=2)
    for each, key in ((joined, "edges"), (named, "labels")):
        with refused(DataError, key=key, party=graph.party):
            settings.check_graph(each)
    settings.check_graph(graph)
