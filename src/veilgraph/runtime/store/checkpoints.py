"""The checkpoints of one party's part of a run, and its model: how the new takes the place of the old.

Nothing is removed before something newer stands for it at every party. A session that begins sets the old model aside:
it does not fit other parties' new ones. What the session went back over is set aside when it saves its first
checkpoint, and removed when it saves its second or its model: a party only gets there when every other has saved the
first. A session that is cut off before leaves what it found, in place or in ``replaced``, and the next may go on from
either.

    epoch-*.safetensors          the two newest; beside them, once the training is done, the final one: the best weights
                                 alone, of the last epoch. It alone is left when every party has ended the session
    common.json                  the newest point that every party is known to have: no party's word, without leave,
                                 takes this one behind it; epoch 0: the beginning of a session. And whether every party
                                 has ended the session, so that all have its last
    replaced/                    what a session went back over, until it has got as far as to need it no more
    replaced/before/             the same, where the tables were read anew: with the graph that it was of
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.files import adapter_of, private_folder, read_json, run_errors, write_json
from veilgraph.core.tensor_file import Record, load_facts, load_tensors, save_tensors
from veilgraph.protocol.agreement import BEGINNING, Point, Start

_KEPT: Final = 2
_FINAL: Final = "final"
BEST: Final = "best/"
"""Before names of the best weights; a final checkpoint has no other tensors."""
_REPLACED, _BEFORE, _COMMON = "replaced", "before", "common.json"


class Checkpoints:
    """The checkpoints of one party's part of a run; one object for each session."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, model
        self._replaced = folder / _REPLACED
        self._start = Start(BEGINNING, 0, "")
        self._saved, self._is_final = 0, False
        self._unconfirmed: Point | None = None

    def path(self, epoch: int) -> Path:
        """Where the checkpoint of an epoch lies."""
        return self._folder / f"epoch-{epoch:06d}.safetensors"

    def epochs(self) -> list[int]:
        """Epochs of the checkpoints in place (not those set aside), ascending."""
        return sorted(map(_epoch_of, _checkpoint_files(self._folder)))

    def has_trained(self) -> bool:
        """Whether there is a checkpoint, in place or set aside, or a model with weights."""
        return bool(self.epochs()) or any(self._replaced.rglob("*.safetensors")) or _has_weights(self._model)

    def points(self, *, restarts: bool) -> list[Point]:
        """The points that this party can resume from: its last two, of which others may lack the newer, and the final.

        With them those that an unfinished session set aside. Without ``restarts`` none is before the newest point that
        all parties are known to have. Raises ``RunError``: a checkpoint is damaged.
        """
        held, aside = sorted(self._points_in_place()), [*map(_point_of, _checkpoint_files(self._replaced))]
        if restarts:
            return [*aside, *held]
        common, ended = self._read_common() or (BEGINNING, False)
        newest = held[-1:] if ended else held[-_KEPT - self._has_final(held) :]
        return [point for point in (*aside, *newest) if point >= common]

    def begin(self, start: Start) -> None:
        """Begin a session at ``start``: set the old model aside, and note that all parties have that point."""
        self._start, self._saved = start, 0
        if self._model.is_file():
            self._model.replace(private_folder(self._replaced) / self._model.name)
        self._set_common(Point(start.number, 0, start.session) if start.point == BEGINNING else start.point)

    def confirm(self, *, everybody: bool) -> None:
        """Note that all parties have the newest checkpoint, if ``everybody`` took part in a pass after it was saved."""
        if everybody and self._unconfirmed is not None:
            self._set_common(self._unconfirmed)
            self._unconfirmed = None

    def end(self) -> None:
        """Note that every party has ended the session, and erase all checkpoints but the final one, if there is one."""
        if (kept := self._read_common()) is not None:
            self._set_common(kept[0], ended=True)
        held = sorted(self._points_in_place())
        if self._has_final(held):
            self._remove(iter(held[:-1]))

    def save(self, epoch: int, tensors: Mapping[str, Tensor], facts: Record) -> None:
        """Write a checkpoint of the session whole, then drop those that no party can need any more."""
        if self._saved == 0:
            self._set_others_aside()
        save_tensors(self.path(epoch), tensors, facts | self._session_facts())
        self._saved += 1
        self._unconfirmed = Point(self._start.number, epoch, self._start.session)
        if self._saved == 1:
            self._remove(point for point in self._points_in_place() if _is_before(point, self._start.point))
        else:
            self.settle()

    def finish(self, epoch: int, best: Mapping[str, Tensor], facts: Record) -> None:
        """Write the final checkpoint, of the best weights alone: a session that resumes from it trains no more."""
        if self._saved == 0:
            self._set_others_aside()
        start, named = self._start.point, self._session_facts()
        if epoch == start.epoch:  # nothing was trained: another party may have this point, and no other
            named = self._session_facts(start)
        save_tensors(self.path(epoch), best, {**facts, **named, _FINAL: True})
        self._is_final = True

    def adopt(self, point: Point, tensors: Mapping[str, Tensor], facts: Record, *, final: bool) -> None:
        """Write a checkpoint that another party sent, so that a session can resume from its ``point``."""
        named = self._session_facts(point) | ({_FINAL: True} if final else {})
        save_tensors(self.path(point.epoch), tensors, {**facts, **named})

    def settle(self) -> None:
        """Delete what was set aside, and all but the newest checkpoints on the session's way: two, and a final one."""
        own = (self._start.number, self._start.session)
        start, places = self._start.point, self._points_in_place()
        line = [p for p in places if p == start or (p.number, p.session) == own or _is_before(p, start)]
        kept = sorted(line)[-_KEPT - self._is_final :]
        self._remove(point for point in places if point not in kept)
        shutil.rmtree(self._replaced, ignore_errors=True)

    def is_settled(self) -> bool:
        """Whether nothing is set aside."""
        return not self._replaced.is_dir()

    def load(self, point: Point) -> tuple[Path, dict[str, Tensor], Record]:
        """Reads the checkpoint of a point: its path, tensors and facts. ``RunError`` where it is missing or damaged."""
        path = next((path for path in self._all_files() if _point_of(path) == point), self.path(point.epoch))
        return path, *load_tensors(path)

    def set_aside_with(self, files: Sequence[Path]) -> None:
        """Move ``files``, in order, then the model and all checkpoints, to replaced/before: tables are read anew."""
        (self._folder / _COMMON).unlink(missing_ok=True)
        if self.has_trained():
            before = private_folder(self._replaced / _BEFORE)
            for path in (*files, self._model, *self._all_files()):
                if path.is_file():
                    _move_aside(path, before / path.name)

    def _session_facts(self, of: Start | Point | None = None) -> Record:
        """The facts by which a checkpoint names the session that saved it, by default this one: number and id."""
        named = of or self._start
        return {"number": named.number, "session": named.session}

    def _set_others_aside(self) -> None:
        """Before the first save, put the start's checkpoint in place and move those not on the way here aside."""
        start = self._start.point
        from_aside = [path for path in _checkpoint_files(self._replaced) if _point_of(path) == start]
        for path in from_aside:
            path.replace(self._folder / path.name)
        for path in reversed(_checkpoint_files(self._folder)):
            point = _point_of(path)
            own = (point.number, point.session) == (self._start.number, self._start.session)
            if point != start and not own and not _is_before(point, start):
                _move_aside(path, private_folder(self._replaced) / path.name)

    def _points_in_place(self) -> list[Point]:
        """Points of the checkpoints in place; with them the session's beginning, if that is the common point."""
        kept = self._read_common()
        begun = [kept[0]] if kept is not None and not kept[0].epoch else []
        return [*map(_point_of, _checkpoint_files(self._folder)), *begun]

    def _has_final(self, held: Sequence[Point]) -> bool:
        return bool(held and held[-1].epoch) and is_final(load_facts(self.path(held[-1].epoch)))

    def _read_common(self) -> tuple[Point, bool] | None:
        """The newest point that every party has, and whether every party has ended the session."""
        path = self._folder / _COMMON
        if not path.is_file():
            return None
        number, epoch, session, ended = read_json(path, tuple[int, int, str, bool], "delete it and resume")
        return Point(number, epoch, session), ended

    def _set_common(self, point: Point, *, ended: bool = False) -> None:
        write_json(self._folder / _COMMON, [*point, ended])

    def _all_files(self) -> list[Path]:
        return [*_checkpoint_files(self._folder), *_checkpoint_files(self._replaced)]

    def _remove(self, points: Iterator[Point]) -> None:
        for point in list(points):
            if point.epoch:
                self.path(point.epoch).unlink(missing_ok=True)


def is_final(facts: Record) -> bool:
    """Whether a checkpoint's facts mark it as the final one of a training."""
    return facts.get(_FINAL) is True


def _move_aside(path: Path, to: Path) -> None:
    """Move a file, or delete it where ``to`` exists: what was set aside first is what was whole."""
    if to.exists():
        path.unlink()
    else:
        path.replace(to)


def _is_before(point: Point, start: Point) -> bool:
    """Whether a point lies on the way to another: earlier both in the order saved and by its epoch."""
    return point < start and point.epoch < start.epoch


def _checkpoint_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch-*.safetensors"))


def _epoch_of(path: Path) -> int:
    return int(path.stem.removeprefix("epoch-"))


def _point_of(path: Path) -> Point:
    """The point of a checkpoint, by its facts and file name; ``RunError``: it is damaged."""
    facts = load_facts(path)
    if not {"judgement", "stopped"} <= facts.keys():
        raise RunError(f"{path}: damaged (no judgement in it); delete it and resume")
    with run_errors(path, "delete it and resume, or train again"):
        found = (facts.get("number", 0), _epoch_of(path), facts.get("session", ""))
        return cast("Point", adapter_of(Point).validate_python(found))


def _has_weights(model: Path) -> bool:
    """Whether the model file has tensors, or is damaged; a party that learns nothing has an empty one."""
    try:
        with safe_open(model, framework="pt") as file:
            return bool(list(file.keys()))
    except FileNotFoundError:
        return False
    except (OSError, SafetensorError):
        return True  # damaged, and perhaps worth restoring
