"""What every keeper must do. Needs pytest to run, and nothing of it to be imported."""

from __future__ import annotations

from pathlib import Path

import torch

from veilgraph.core.tensor_file import Keeper, Kept


class KeeperConformance:
    """Inherit it in a class that pytest finds, and say how a keeper is made."""

    def keeper(self, folder: Path) -> Keeper:
        """A keeper that has nothing yet, in an empty folder."""
        raise NotImplementedError(f"{type(self).__name__} must say how its keeper is made: define keeper(folder)")

    def kept(self, keeper: Keeper, name: str) -> Kept:
        """What is there; fails where nothing is."""
        kept = keeper.get(name)
        assert kept is not None, f"nothing is kept as {name!r}"
        return kept

    def test_what_was_put_last_is_got(self, tmp_path: Path) -> None:
        """All of it, with shapes, types and layout, and nothing of what it took the place of."""
        keeper = self.keeper(tmp_path)
        assert keeper.get("rows") is None
        keeper.put("rows", {"a": torch.ones(2, 3), "b": torch.empty(0, 4)}, {"number": 1})
        keeper.put("other", {}, {})
        assert self.kept(keeper, "rows").tensors["b"].shape == (0, 4)
        keeper.put("rows", {"c": torch.arange(6, dtype=torch.int64).reshape(2, 3).t()}, {"names": ["x", "y"]})
        tensors, facts = self.kept(keeper, "rows")
        assert {name: (each.dtype, each.tolist()) for name, each in tensors.items()} == {
            "c": (torch.int64, [[0, 3], [1, 4], [2, 5]])
        }
        assert facts == {"names": ["x", "y"]}
        assert self.kept(keeper, "other") == ({}, {})
        assert "rows" in keeper.place("rows")

    def test_what_was_put_or_got_may_be_changed(self, tmp_path: Path) -> None:
        """It is a copy."""
        keeper, rows, facts = self.keeper(tmp_path), torch.zeros(2), {"number": 1}
        keeper.put("rows", {"a": rows}, facts)
        rows += 1
        facts["number"] = 2
        got = self.kept(keeper, "rows")
        got.tensors["a"][0] = 5
        got.facts["number"] = 7
        again = self.kept(keeper, "rows")
        assert again.tensors["a"].tolist() == [0, 0]
        assert again.facts == {"number": 1}
