"""One suite for every keeper: what was put is got, by whoever opens the same place again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from veilgraph.core.errors import RunError
from veilgraph.core.keeper import FolderKeeper, Keeper, MemoryKeeper

KEEPERS: dict[str, Callable[[Path], Keeper]] = {"folder": FolderKeeper, "memory": lambda path: MemoryKeeper()}


every_keeper = pytest.mark.parametrize("make", KEEPERS.values(), ids=KEEPERS.keys())


@every_keeper
def test_what_was_put_last_is_got(tmp_path: Path, make: Callable[[Path], Keeper]) -> None:
    keeper = make(tmp_path)
    assert keeper.get("release") is None
    keeper.put("release", {"rows": torch.ones(2, 3), "empty": torch.empty(0, 4)}, {"number": 1})
    keeper.put("other", {}, {})
    rows = torch.arange(6).reshape(2, 3).t()
    keeper.put("release", {"rows": rows}, {"number": 2, "names": ["a", "b"]})
    rows[0] = 9
    kept = keeper.get("release")
    assert kept is not None
    assert list(kept.tensors) == ["rows"]
    assert kept.tensors["rows"].tolist() == [[0, 3], [1, 4], [2, 5]], "a copy, and not the caller's own"
    assert kept.facts == {"number": 2, "names": ["a", "b"]}
    assert "release" in keeper.place("release")


@every_keeper
def test_what_is_got_may_be_changed(tmp_path: Path, make: Callable[[Path], Keeper]) -> None:
    keeper = make(tmp_path)
    keeper.put("release", {"rows": torch.zeros(2)}, {"number": 1})
    first = keeper.get("release")
    assert first is not None
    first.tensors["rows"][0] = 5
    first.facts["number"] = 7
    again = keeper.get("release")
    assert again is not None
    assert again.tensors["rows"].tolist() == [0, 0]
    assert again.facts == {"number": 1}


def test_a_folder_keeps_for_whoever_opens_it_next_and_tells_damage(tmp_path: Path) -> None:
    FolderKeeper(tmp_path).put("release", {"rows": torch.ones(2)}, {"number": 1})
    kept = FolderKeeper(tmp_path).get("release")
    assert kept is not None
    assert kept.facts == {"number": 1}
    path = FolderKeeper(tmp_path).path("release")
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(RunError, match="damaged"):
        FolderKeeper(tmp_path).get("release")
