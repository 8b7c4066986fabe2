"""What trials were made, and with what they ended: one line each in a file that a later session goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from veilgraph.core.errors import RunError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph_tuning.space import Space, Value

_FILE: Final = "trials.jsonl"

Ending = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """Some settings, and what they reached.

    Attributes:
        number: from 0, which is the job as it was given.
        settings: dotted key → value; of trial 0 none.
        ending: complete; pruned, as others were ahead of it; or failed.
        values: figure of the validation nodes for every seed that was trained to the end, higher is better.
        curve: epoch → that figure, with the first seed.
        seconds: that it took.
        why: it failed.
    """

    number: int
    settings: Mapping[str, Value]
    ending: Ending
    values: tuple[float, ...] = ()
    curve: Mapping[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    why: str = ""

    @property
    def value(self) -> float:
        """The mean over seeds; only of a complete trial."""
        return sum(self.values) / len(self.values)


class TrialFile:
    """The trials of one job in one space.

    Args:
        folder: where the file is, or is made.
        about: what all trials have in common; of a file that is there it must be the same.

    Raises:
        RunError: the file is of another job or space, or no file of trials.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._path, self._about = folder / _FILE, json.loads(json.dumps(about))
        self.trials: list[Trial] = []
        if self._path.exists():
            self._read()

    def _read(self) -> None:
        try:
            about, *lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
            self.trials = [_trial(line) for line in lines]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{self._path} is no file of trials ({error}); choose another directory") from error
        if about != self._about:
            wanted, found = self._about, about if isinstance(about, dict) else {}
            differs = sorted(key for key in {*wanted, *found} if found.get(key) != wanted.get(key))
            raise RunError(
                f"{self._path} has trials of another {' and '.join(differs) or 'version'}; choose another directory, "
                "or ask for the same"
            )

    def add(self, trial: Trial) -> None:
        """Keeps one more, before it is told of."""
        self.trials.append(trial)
        lines = [self._about, *(asdict(each) for each in self.trials)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with os_errors_as(RunError, f"{self._path} cannot be written", "choose a writable directory"):
            write_whole(self._path, text.encode())

    def best(self) -> Trial | None:
        """The first of those that reached most; None where none is complete."""
        complete = [trial for trial in self.trials if trial.ending == "complete"]
        return max(complete, key=lambda trial: trial.value, default=None)


def described(space: Space) -> dict[str, str]:
    """A space for ``about``."""
    return {key: str(choice) for key, choice in space.items()}


def _trial(line: dict[str, Any]) -> Trial:
    curve = {int(epoch): float(value) for epoch, value in line["curve"].items()}
    return Trial(**{**line, "values": tuple(map(float, line["values"])), "curve": curve})
