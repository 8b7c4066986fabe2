"""A party that has not saved a checkpoint yet, where another one does not need it for its next step."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import veilgraph as vg
from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.tensor_file import Record
from veilgraph.runtime.launch.jobs import resume
from veilgraph.runtime.store.checkpoints import Checkpoints


@pytest.mark.parametrize(
    "changes",
    [
        *({"model": {"initial": {"method": method}}} for method in ("individual", "collaborative", "secure-sum")),
        {"paradigm": "horizontal"},
        {"paradigm": "averaging"},
        {"paradigm": "sealed", "model": {"blocks": ["own"]}},
        {"paradigm": "sealed", "model": {"blocks": ["own"]}, "trust": "majority"},
    ],
    ids=lambda changes: changes.get("trust") or changes.get("paradigm") or changes["model"]["initial"]["method"],
)
def test_who_was_not_needed_yet_is_not_taken_to_have_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, Any]
) -> None:
    """The server's step uses what holders published for the evaluation before: it says nothing of their checkpoints.

    Where a holder deals, no step needs the server.
    """
    save, slow = Checkpoints.save, "server" if "trust" in changes else "B"

    def late(own: Checkpoints, epoch: int, tensors: Mapping[str, Tensor], facts: Record) -> None:
        if epoch == 4 and own.path(epoch).parent.parent.name == slow:
            time.sleep(1.0)
            raise RunError("no room; free some", code="no-room")
        save(own, epoch, tensors, facts)

    monkeypatch.setattr(Checkpoints, "save", late)
    train = {"epochs": 6, "checkpoint_every": 2, "patience": None, "select_by": "accuracy"}
    with refused(RunError, code="no-room"):
        vg.fit(
            {"data": {"dataset": "synthetic", "holders": 3 if "trust" in changes else 2}, "train": train, **changes},
            out=tmp_path / "run",
        )
    known = json.loads((tmp_path / "run" / "parties" / "server" / "checkpoints" / "common.json").read_bytes())
    assert known[1] == 2 or "paradigm" in changes, "the control: the evaluation after it shows that all have it"
    monkeypatch.undo()
    assert resume(tmp_path / "run").summary["best_epoch"] <= 6
