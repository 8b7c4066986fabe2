"""Recordings of cameras as tables, with a job that predicts where people go, and the truth beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from veilgraph.core.files import private_folder
from veilgraph.core.types import PartyId
from veilgraph.protocol.job_file import parse_job
from veilgraph.samples.organisations import TableFormat, accepting, write_table, write_yaml, writing
from veilgraph_trajectories.dataset import COLUMNS
from veilgraph_trajectories.settings import TrajectoriesSettings
from veilgraph_trajectories.world import Camera, trajectories_world

_DIGITS: Final = 3
"""Of metres: millimetres."""


def export_trajectories(
    settings: TrajectoriesSettings,
    out: Path,
    seed: int,
    format: TableFormat = "csv",  # noqa: A002 - the option's name
) -> dict[PartyId, Path]:
    """Makes recordings and writes what each camera would export, and the truth beside them.

    In a folder for each camera: ``rows``, in random order, of object, frame, x and y, and ``party.yaml``. Beside these
    ``averaging.yaml``, a job of all cameras, whose revelations party files accept, and ``truth/`` with ``people`` and
    ``obstacles``.

    Args:
        settings: how many cameras, what they see.
        out: folder, made here.
        seed: of the recordings and of the rows' orders.
        format: of the tables.

    Returns:
        Camera → its party file.

    Raises:
        RunError: ``out`` is in use or cannot be written.
    """
    with writing(out):
        world = trajectories_world(settings, seed)
        files = {camera.name: out / camera.name / "party.yaml" for camera in world.cameras}
        content = _job(seed, files)
        limits = accepting(parse_job(content, "averaging"))
        orders = np.random.default_rng(seed)
        for camera, file in zip(world.cameras, files.values(), strict=True):
            private_folder(file.parent)
            _write_rows(camera, file.with_name(f"rows.{format}"), orders)
            nodes = {"file": f"rows.{format}", "id": "row", "features": [{"columns": list(COLUMNS)}]}
            write_yaml({"party": camera.name, "nodes": nodes, "edges": [], **limits}, file)
        write_yaml(content, out / "averaging.yaml")
        _write_truth(world.cameras, private_folder(out / "truth"), format)
    return files


def _job(seed: int, files: dict[PartyId, Path]) -> dict[str, Any]:
    return {
        "name": "trajectories",
        "paradigm": "averaging",
        "seed": seed,
        "data": {"parties": {name: str(file.absolute()) for name, file in files.items()}},
        "averaging": {"task": {"name": "trajectories"}},
        "model": {"dim": 32},
        "train": {"learning_rate": 0.005, "weight_decay": 0.0, "epochs": 60, "evaluate_every": 5, "patience": None},
    }


def _write_rows(camera: Camera, path: Path, orders: np.random.Generator) -> None:
    order = orders.permutation(len(camera.frame))
    values = camera.person[order], camera.frame[order], *camera.position[order].round(_DIGITS).T
    columns = dict(zip(COLUMNS, values, strict=True))
    names = pa.array([f"{one}@{frame}" for one, frame in zip(*values[:2], strict=True)])
    write_table({"row": names, **columns}, path)


def _write_truth(cameras: tuple[Camera, ...], folder: Path, suffix: TableFormat) -> None:
    """Everybody's way and speed, and what stood in it."""
    people, obstacles = [], []
    for camera in cameras:
        tracks, count = camera.tracks, len(camera.tracks.speed)
        doors = camera.scene.doors[tracks.route].mean(axis=2)
        come, gone = doors[:, 0], doors[:, -1]
        people.append(
            {
                "camera": np.full(count, camera.name),
                "object": np.arange(count),
                "desired_speed": tracks.speed.round(_DIGITS),
                "arrived": tracks.arrived,
                **{f"from_{axis}": values for axis, values in zip("xy", come.T.round(_DIGITS), strict=True)},
                **{f"to_{axis}": values for axis, values in zip("xy", gone.T.round(_DIGITS), strict=True)},
            }
        )
        found = camera.scene.obstacles.round(_DIGITS)
        names = ("x1", "y1", "x2", "y2", "radius")
        obstacles.append({"camera": np.full(len(found), camera.name), **dict(zip(names, found.T, strict=True))})
    for name, parts in (("people", people), ("obstacles", obstacles)):
        columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        write_table(columns, folder / f"{name}.{suffix}")
