"""Recordings of ``data.made`` as rows of holders: each camera is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import torch
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.settings import Settings
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph_trajectories.settings import TrajectoriesSettings
from veilgraph_trajectories.world import Camera, trajectories_world

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

COLUMNS: Final = ("object", "frame", "x", "y")


class Trajectories(DataSet):
    """People whom several cameras see: rows of (object, frame, x, y), without labels and without edges."""

    settings: ClassVar[type[Settings] | None] = TrajectoriesSettings

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        """All cameras' rows, one camera after the other: ``x`` [R, 4] float32, ``camera`` [R] int64.

        Raises:
            DataError: ``split`` is given.
        """
        from torch_geometric.data import Data  # noqa: PLC0415

        if settings.split is not None:
            raise DataError(
                f"data.split={list(settings.split)} divides labelled nodes, and trajectories are divided in time, by "
                "averaging.task.split; leave it out"
            )
        world = trajectories_world(_described(settings), seed)
        parts = [rows(camera) for camera in world.cameras]
        which = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))
        return Data(x=torch.cat(parts), camera=which, edge_index=torch.empty(2, 0, dtype=torch.int64))

    @override
    def parties(self, settings: DataSettings, seed: int) -> list[PartyGraph]:
        raise DataError(
            "data.dataset='trajectories': each camera has rows of its own, and no two holders the same; take paradigm "
            "averaging, or write tables with: veilgraph data export-trajectories"
        )

    @override
    def parts(self, data: Data, settings: DataSettings, seed: int) -> list[HorizontalPart]:
        """A camera for each holder.

        Raises:
            DataError: there are not as many cameras as holders, or ``partition`` is given.
        """
        cameras = _described(settings).cameras
        if len(settings.names) != cameras:
            raise DataError(
                f"data.holders={len(settings.names)} are to be the cameras, and data.made.cameras={cameras}; "
                "make them the same"
            )
        if settings.partition not in (PartitionSettings(), PartitionSettings(by="nodes")):
            raise DataError("data.partition: trajectories are divided by cameras, and in no other way; leave it out")
        found = []
        for number, name in enumerate(settings.names):
            ids = (data.camera == number).nonzero().squeeze(1)
            graph = PartyGraph(name, data.x[ids], torch.empty(2, 0, dtype=torch.int64))
            graph.validate()
            found.append(HorizontalPart(graph, ids))
        return found


def rows(camera: Camera) -> torch.Tensor:
    """Tensor[R, 4] float32: object, frame, x, y."""
    numbers = torch.from_numpy(camera.person), torch.from_numpy(camera.frame)
    return torch.cat([torch.stack(numbers, dim=1), torch.from_numpy(camera.position)], dim=1).float()


def _described(settings: DataSettings) -> TrajectoriesSettings:
    """What the job says of the cameras, or the defaults."""
    made = settings.made
    return made if isinstance(made, TrajectoriesSettings) else TrajectoriesSettings()


TRAJECTORIES: Final = Trajectories()
