"""Keepers: the suite that each must pass, and what a folder does besides."""

from pathlib import Path

import torch
from safetensors.torch import save
from veilgraph_testing.keeper import KeeperConformance

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.tensor_file import FolderKeeper, Keeper, MemoryKeeper, load_tensors, save_tensors


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
    deep = save({"rows": torch.ones(2)}, {"facts": "[" * 10_000})
    for damaged in (path.read_bytes()[:20], save({"rows": torch.ones(2)}), deep):  # the second has no facts
        path.write_bytes(damaged)
        with refused(RunError, key=path):
            FolderKeeper(tmp_path).get("release")


def test_tensors_that_share_memory_or_lie_apart_in_it_are_saved_as_they_are(tmp_path: Path) -> None:
    whole = torch.arange(12).reshape(3, 4)
    tensors = {"whole": whole, "again": whole, "part": whole[1:2], "turned": whole.T, "none": whole[:0]}
    save_tensors(tmp_path / "t.safetensors", tensors, {"n": 1})
    found, facts = load_tensors(tmp_path / "t.safetensors")
    assert facts == {"n": 1}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
