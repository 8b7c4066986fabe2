"""Keepers: the suite that each must pass, and what a folder does besides."""

from pathlib import Path

import torch
from safetensors.torch import save
from veilgraph_testing.keeper import KeeperConformance

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.tensor_file import FolderKeeper, Keeper, MemoryKeeper


class TestFolder(KeeperConformance):
    def keeper(self, folder: Path) -> Keeper:
        return FolderKeeper(folder)


class TestMemory(KeeperConformance):
    def keeper(self, folder: Path) -> Keeper:
        return MemoryKeeper()


def test_a_folder_keeps_for_whoever_opens_it_next_and_tells_damage(tmp_path: Path) -> None:
    FolderKeeper(tmp_path).put("release", {"rows": torch.ones(2)}, {"number": 1})
    kept = FolderKeeper(tmp_path).get("release")
    assert kept is not None
    assert kept.facts == {"number": 1}
    path = FolderKeeper(tmp_path).path("release")
    for damaged in (path.read_bytes()[:20], save({"rows": torch.ones(2)})):  # the second has no facts
        path.write_bytes(damaged)
        with refused(RunError, key=path):
            FolderKeeper(tmp_path).get("release")
