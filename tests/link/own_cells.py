"""Cells of FLARE's in this process, and their end: FLARE keeps their names, and what it counts of them, for ever."""

from __future__ import annotations

from collections.abc import Mapping

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.stats_pool import StatsPoolManager


def end(cells: Mapping[str, CoreCell]) -> None:
    """Stops the cells, so that others may have their names."""
    for name, cell in cells.items():
        cell.stop()
        CoreCell.ALL_CELLS.pop(name, None)
        for pool in [pool for pool in StatsPoolManager.pools if pool.endswith(f"@{name}")]:
            del StatsPoolManager.pools[pool]
