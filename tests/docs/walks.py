"""The files that a small run passes on its way to the moments of docs/explanation/architecture.md: stacks of calls."""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from veilgraph.core.types import Kind
from veilgraph.graph import build
from veilgraph.graph.settings import DataSettings
from veilgraph.link.view import RecordedLink
from veilgraph.paradigms.vertical.network import HolderNetwork
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.organisations import export_dataset

SOURCE = Path(__file__).parents[2] / "src" / "veilgraph"
Walk = tuple[str, ...]
"""Files of our own, each without its suffix, from the caller to the called."""

_NOISED: dict[str, Any] = {
    "data": {"dataset": "synthetic", "holders": 3, "split": [0.5, 0.25, 0.25], "stratify": False},
    "model": {"dim": 4},
    "label_privacy": {"epsilon": 4},
    "train": {"epochs": 1},
}


class Walks:
    """Moment → its walks, which differ from party to party."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found = defaultdict[str, set[Walk]](set)
        self._patch = patch

    def watch(self, where: Any, name: str, moment: Callable[..., str | None]) -> None:
        """Has the stack of the calls of a function kept under the moment's name; None: not of this call."""
        original = getattr(where, name)

        def watched(*args: Any, **options: Any) -> Any:
            at = moment(*args)
            if at is not None:
                last = getattr(sys.modules[original.__module__], "__file__", None)
                self.found[at].add(_stack(None if last is None else Path(last)))
            return original(*args, **options)

        self._patch.setattr(where, name, watched)


def _stack(last: Path | None) -> Walk:
    files = [] if last is None else [last]
    frame = sys._getframe(2)
    while frame is not None:
        files.append(Path(frame.f_code.co_filename))
        frame = frame.f_back  # type: ignore[assignment]
    names = [str(file.relative_to(SOURCE).with_suffix("")) for file in reversed(files) if SOURCE in file.parents]
    return tuple(name for place, name in enumerate(names) if not place or names[place - 1] != name)


def recorded_walks(folder: Path, patch: pytest.MonkeyPatch) -> Mapping[str, set[Walk]]:
    """Of a job from tables and of one with noise, an epoch each."""
    walks = Walks(patch)
    walks.watch(pyarrow.csv, "open_csv", lambda *_: "a table is read")
    walks.watch(build, "encode", lambda *_: "features are encoded")
    walks.watch(HolderNetwork, "__init__", lambda *_: "a network is made")
    walks.watch(Objective, "__init__", lambda *_: "labels are given")
    walks.watch(Objective, "training_loss", lambda *_: "the loss is computed")
    walks.watch(RecordedLink, "send", lambda link, to, tag, _: f"{link.party} sends {to} {tag.kind.name}")
    walks.watch(RecordedLink, "receive", lambda link, of, tag, *_: f"{link.party} gets {of}'s {tag.kind.name}")
    parties = export_dataset(DataSettings(dataset="synthetic", holders=2), folder / "tables", overlap=0.75, seed=3)
    walks.found.clear()
    data = {"parties": {name: str(path) for name, path in parties.items()}, "feature_scaling": "standard"}
    train(parse_job({"data": data, "model": {"dim": 4}, "train": {"epochs": 1}}), folder / "run")
    walks.watch(Ledger, "spend", lambda *_: "a release is paid")
    walks.watch(LabelResponse, "release", lambda *_: "noise is added")
    train(parse_job(_NOISED), folder / "noised")
    assert f"B sends A {Kind.MASKED_OPERAND.name}" in walks.found
    return walks.found
