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
from veilgraph.core.files import adapter_of, private_folder, read_json, undamaged, write_json
from veilgraph.core.tensor_file import Record, load_facts, load_tensors, save_tensors
from veilgraph.protocol.agreement import BEGINNING, Point, Start

_KEPT: Final = 2
_FINAL: Final = "final"
BEST: Final = "best/"
"""Before names of the best weights; a final checkpoint has no other tensors."""
_REPLACED, _BEFORE, _COMMON = "replaced", "before", "common.json"


class Checkpoints:
    """Of one party; one object for each session."""

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
        """Of the checkpoints in place, ascending."""
        return sorted(map(_epoch, _files(self._folder)))

    def has_trained(self) -> bool:
        """Whether there is anything that a new beginning would replace."""
        return bool(self.epochs()) or any(self._replaced.rglob("*.safetensors")) or _has_weights(self._model)

    def points(self, *, restarts: bool) -> list[Point]:
        """The points to go on from: the last two, of which another party may have saved the older alone, and the final.

        What an unfinished session set aside is as good. Nothing behind a point that all are known to have is among them
        without leave. Raises ``RunError``: a checkpoint is damaged.
        """
        held, aside = sorted(self._in_place()), [*map(_point, _files(self._replaced))]
        if restarts:
            return [*aside, *held]
        common, ended = self._kept() or (BEGINNING, False)
        newest = held[-1:] if ended else held[-_KEPT - self._has_final(held) :]
        return [point for point in (*aside, *newest) if point >= common]

    def begin(self, start: Start) -> None:
        """A session begins: nothing is removed, and the old model is set aside."""
        self._start, self._saved = start, 0
        if self._model.is_file():
            self._model.replace(private_folder(self._replaced) / self._model.name)
        self._set_common(Point(start.number, 0, start.session) if start.point == BEGINNING else start.point)

    def confirm(self, *, everybody: bool) -> None:
        """Passes were made after the newest checkpoint; ``everybody``: only parties that have it took part."""
        if everybody and self._unconfirmed is not None:
            self._set_common(self._unconfirmed)
            self._unconfirmed = None

    def end(self) -> None:
        """Every party has said that it has ended the session: all have its final checkpoint, and others are erased."""
        if (kept := self._kept()) is not None:
            self._set_common(kept[0], ended=True)
        held = sorted(self._in_place())
        if self._has_final(held):
            self._remove(iter(held[:-1]))

    def save(self, epoch: int, tensors: Mapping[str, Tensor], facts: Record) -> None:
        """Writes a checkpoint of the session whole, and drops what is needed no more."""
        if self._saved == 0:
            self._set_aside()
        save_tensors(self.path(epoch), tensors, facts | self._named())
        self._saved += 1
        self._unconfirmed = Point(self._start.number, epoch, self._start.session)
        if self._saved == 1:
            self._remove(point for point in self._in_place() if _is_before(point, self._start.point))
        else:
            self.settle()

    def finish(self, epoch: int, best: Mapping[str, Tensor], facts: Record) -> None:
        """Writes the final checkpoint: who goes on from it trains no more. It has no optimizer's state."""
        if self._saved == 0:
            self._set_aside()
        start, named = self._start.point, self._named()
        if epoch == start.epoch:  # nothing was trained: another party may have this point, and no other
            named = self._named(start)
        save_tensors(self.path(epoch), best, {**facts, **named, _FINAL: True})
        self._is_final = True

    def adopt(self, point: Point, tensors: Mapping[str, Tensor], facts: Record, *, final: bool) -> None:
        """Writes the checkpoint of a point that another party gave, before a session goes on from it."""
        named = self._named(point) | ({_FINAL: True} if final else {})
        save_tensors(self.path(point.epoch), tensors, {**facts, **named})

    def settle(self) -> None:
        """Every party has got beyond what was set aside: only what the session goes on from is kept."""
        own = (self._start.number, self._start.session)
        start, places = self._start.point, self._in_place()
        line = [p for p in places if p == start or (p.number, p.session) == own or _is_before(p, start)]
        kept = sorted(line)[-_KEPT - self._is_final :]
        self._remove(point for point in places if point not in kept)
        shutil.rmtree(self._replaced, ignore_errors=True)

    def is_settled(self) -> bool:
        """Whether nothing is set aside."""
        return not self._replaced.is_dir()

    def load(self, point: Point) -> tuple[Path, dict[str, Tensor], Record]:
        """Reads the checkpoint of a point: its path, tensors and facts. ``RunError`` where it is missing or damaged."""
        path = next((path for path in self._all() if _point(path) == point), self.path(point.epoch))
        return path, *load_tensors(path)

    def set_aside_with(self, files: Sequence[Path]) -> None:
        """Before tables are read anew: sets aside the model, all checkpoints, and ``files`` they are of, in order."""
        (self._folder / _COMMON).unlink(missing_ok=True)
        if self.has_trained():
            before = private_folder(self._replaced / _BEFORE)
            for path in (*files, self._model, *self._all()):
                if path.is_file():
                    _move(path, before / path.name)

    def _named(self, of: Start | Point | None = None) -> Record:
        """What a checkpoint says of the session that saved it: by default this one."""
        named = of or self._start
        return {"number": named.number, "session": named.session}

    def _set_aside(self) -> None:
        """Before the first checkpoint is saved: the way is made free, and nothing is lost on it."""
        start = self._start.point
        from_aside = [path for path in _files(self._replaced) if _point(path) == start]
        for path in from_aside:
            path.replace(self._folder / path.name)
        for path in reversed(_files(self._folder)):
            point = _point(path)
            own = (point.number, point.session) == (self._start.number, self._start.session)
            if point != start and not own and not _is_before(point, start):
                _move(path, private_folder(self._replaced) / path.name)

    def _in_place(self) -> list[Point]:
        kept = self._kept()
        begun = [kept[0]] if kept is not None and not kept[0].epoch else []
        return [*map(_point, _files(self._folder)), *begun]

    def _has_final(self, held: Sequence[Point]) -> bool:
        return bool(held and held[-1].epoch) and is_final(load_facts(self.path(held[-1].epoch)))

    def _kept(self) -> tuple[Point, bool] | None:
        """The newest point that every party has, and whether every party has ended the session."""
        path = self._folder / _COMMON
        if not path.is_file():
            return None
        number, epoch, session, ended = read_json(path, tuple[int, int, str, bool], "delete it and resume")
        return Point(number, epoch, session), ended

    def _set_common(self, point: Point, *, ended: bool = False) -> None:
        write_json(self._folder / _COMMON, [*point, ended])

    def _all(self) -> list[Path]:
        return [*_files(self._folder), *_files(self._replaced)]

    def _remove(self, points: Iterator[Point]) -> None:
        for point in list(points):
            if point.epoch:
                self.path(point.epoch).unlink(missing_ok=True)


def is_final(facts: Record) -> bool:
    """Whether a checkpoint with these facts is that of a training that is done."""
    return facts.get(_FINAL) is True


def _move(path: Path, to: Path) -> None:
    """What was set aside first is what was whole; a later session that was cut off has nothing to add to it."""
    if to.exists():
        path.unlink()
    else:
        path.replace(to)


def _is_before(point: Point, start: Point) -> bool:
    """Whether a point lies on the way to another."""
    return point < start and point.epoch < start.epoch


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch-*.safetensors"))


def _epoch(path: Path) -> int:
    return int(path.stem.removeprefix("epoch-"))


def _point(path: Path) -> Point:
    facts = load_facts(path)
    if not {"judgement", "stopped"} <= facts.keys():
        raise RunError(f"{path}: damaged (no judgement in it); delete it and resume")
    with undamaged(path, "delete it and resume, or train again"):
        found = (facts.get("number", 0), _epoch(path), facts.get("session", ""))
        return cast("Point", adapter_of(Point).validate_python(found))


def _has_weights(model: Path) -> bool:
    """Whether there is a model with anything in it; of a party that learns nothing it is empty."""
    try:
        with safe_open(model, framework="pt") as file:
            return bool(list(file.keys()))
    except FileNotFoundError:
        return False
    except (OSError, SafetensorError):
        return True  # damaged, and perhaps worth restoring
