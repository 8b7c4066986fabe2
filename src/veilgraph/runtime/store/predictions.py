"""Predictions of a run, at the label holder or, where holders judge alike, every one.

Where a job predicts named nodes alone, who names them keeps in its own part which these are.
"""

from __future__ import annotations

import csv
import io
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, TextIO

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import whole_file
from veilgraph.core.tensor_file import Record
from veilgraph.core.text import csv_cell, listed
from veilgraph.core.types import PartyId
from veilgraph.graph.party import pack_ids, unpack_ids
from veilgraph.nn.calibration import Calibration
from veilgraph.protocol.judge import ANSWERED, Predicted
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import MAX_NODES
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory, load_tensors, save_tensors

_ROWS: Final = "nodes"
_COLUMN, _ALIKE, _PREPARED = "column.", "alike.", "prepared"
CALIBRATION: Final = "calibration"
"""Of the facts of a holder's part of the model, and of its predictions."""
SEPARATOR: Final = "\t"
"""Between the words of a row's name."""
ROWS_AT_ONCE: Final = 1 << 14
"""Rows of a table that are made into text at a time: texts of all its cells would take many times its memory."""


@dataclass(frozen=True)
class Predictions:
    """Predictions for some nodes, or for what else a job is about.

    Attributes:
        nodes: Tensor[n] int64, rows of the common nodes or, in paradigm horizontal, of the holder's own.
        classes: Tensor[n] int64, of the highest of ``probabilities``; 0 where no classes are predicted.
        probabilities: Tensor[n, C], rows sum to 1, calibrated where the holder could; C is 0 where none are predicted.
        ids: the nodes' ids as the holder's own table has them; vertical: where they came from tables, else None.
        class_names: C names where they came from tables with labels, else None.
        model_version: the first characters of the SHA-256 of that holder's part of the model.
        made_at: when the parties computed them, UTC, ISO 8601.
        columns: name → Tensor[n], of what is predicted and no class.
        keys: what the words of an id are, with tabs between them; empty where an id is a node's.
        alike: the ids as holders compare them, where the table has them otherwise.
        classes_alone: the job opens no probabilities; ``probabilities`` has 1 for the class, and is shown nowhere.
        calibration: what made the probabilities of the network's ``own``, Tensor[n, C]; None where nothing did.
        prepared: name of the session in which holders kept shares of these and more predictions; "" where none did.
        askable: id → row of each node that such shares are of, as ``rows`` has ids.
    """

    nodes: Tensor
    classes: Tensor
    probabilities: Tensor
    ids: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    model_version: str = ""
    made_at: str = ""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    alike: tuple[str, ...] | None = None
    classes_alone: bool = False
    calibration: Calibration | None = None
    own: Tensor | None = None
    prepared: str = ""
    askable: Mapping[str, int] = field(default_factory=dict)

    @property
    def compared(self) -> tuple[str, ...] | None:
        """The ids as holders compare them: the same for a node at every holder."""
        return self.ids if self.alike is None else self.alike

    def rows(self) -> dict[str, int]:
        """Id → its row here; ids both as the holder's own table has them and as holders compare them."""
        return _rows_by_id(self.alike, self.ids)

    @property
    def uncalibrated(self) -> Tensor:
        """Tensor[n, C]: the network's own probabilities; ``probabilities`` where nothing calibrated them."""
        return self.probabilities if self.own is None else self.own

    def count_tied(self) -> int:
        """Count the nodes of the most frequent probabilities; 0 where no two have the same, or none are opened."""
        if self.classes_alone or not self.uncalibrated.numel():
            return 0
        most = int(torch.unique(self.uncalibrated, dim=0, return_counts=True)[1].max())
        return most if most > 1 else 0

    def of(self, places: Sequence[int]) -> Predictions:
        """The predictions at some positions from 0 to n - 1 (not node numbers), in the order given."""
        chosen = torch.tensor(places, dtype=torch.int64)
        ids, alike = (
            None if each is None else tuple(each[place] for place in places) for each in (self.ids, self.alike)
        )
        return replace(
            self,
            nodes=self.nodes[chosen],
            classes=self.classes[chosen],
            probabilities=self.probabilities[chosen],
            ids=ids,
            alike=alike,
            columns={name: values[chosen] for name, values in self.columns.items()},
            own=None if self.own is None else self.own[chosen],
        )

    def of_nodes(self, nodes: Sequence[int]) -> Predictions:
        """Those of some nodes, by number, in the order given; ``ConfigError``: one is no node, or was not predicted."""
        if torch.equal(self.nodes, torch.arange(len(self.nodes))):
            return self.of(checked_nodes(nodes, len(self.nodes)))
        places = {node: place for place, node in enumerate(self.nodes.tolist())}
        if absent := [node for node in nodes if node not in places]:
            raise ConfigError(
                f"nodes: {absent[0]!r} is not one of the {len(places)} that the newest joint inference is of; name it "
                "in another prediction",
                value=absent[0],
            )
        return self.of([places[node] for node in nodes])

    def of_ids(self, ids: Sequence[str]) -> Predictions:
        """Those of nodes with these ids, in the order given; ``ConfigError``: one is not predicted, or none has ids."""
        if self.ids is None:
            raise ConfigError("ids: this run's nodes have no ids, since it was not trained from tables; give nodes")
        which = (
            f"the {len(self.ids)} nodes of the newest joint inference (those common to all holders, or each holder's "
            "own); mend it, or let the parties predict anew"
        )
        return self.of(_rows_of_ids(ids, self.rows(), which))

    def names(self) -> list[str]:
        """Each node's id, or its row where there are no ids."""
        return [str(node) for node in self.nodes.tolist()] if self.ids is None else list(self.ids)

    def class_labels(self) -> list[str]:
        """The C classes' names, or their numbers where they have none."""
        count = self.probabilities.shape[1]
        return [str(index) for index in range(count)] if self.class_names is None else list(self.class_names)

    def csv(self) -> str:
        """``node,class,p0,p1,…`` or, from tables, ``id,class,p_<class>,…``: one line per node; of classes alone no p.

        Where other rows are named, or no classes predicted, the names' words and the columns are there instead. No
        spreadsheet runs a cell (``csv_cell``).
        """
        return _csv_text(self.cells())

    def cells(self) -> Iterator[list[str]]:
        """Yield the cells of ``csv`` row by row, first that of their names."""
        labels = [csv_cell(label) for label in self.class_labels()]
        separator = "p" if self.class_names is None else "p_"
        shown = [] if self.classes_alone else [f"{separator}{label}" for label in labels]
        yield [*self._key_columns(), *self.columns, *(["class", *shown] if labels else [])]
        for start in range(0, len(self.nodes), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            names = self.ids[rows] if self.ids is not None else map(str, self.nodes[rows].tolist())
            classes, probabilities = self.classes[rows].tolist(), self.probabilities[rows].tolist()
            told = zip(*(values[rows].tolist() for values in self.columns.values()), strict=True)
            more = list(told) if self.columns else [()] * len(classes)
            for name, predicted, chances, told_of in zip(names, classes, probabilities, more, strict=True):
                found = [labels[predicted], *(f"{chance:.6f}" for chance in chances if shown)] if labels else []
                yield [*map(csv_cell, self._split_name(name)), *(f"{each:.6g}" for each in told_of), *found]

    def _key_columns(self) -> tuple[str, ...]:
        return self.keys or ("node" if self.ids is None else "id",)

    def _split_name(self, name: str) -> list[str]:
        return name.split(SEPARATOR) if self.keys else [name]

    def found(self, decimals: int | None = None) -> list[dict[str, Any]]:
        """A dict for each node: ``class``, ``probabilities`` (to ``decimals``) if the job opens them, and columns."""
        labels, found = self.class_labels(), [dict[str, Any]() for _ in self.nodes]
        for each, predicted, chances in zip(found, self.classes.tolist(), self.probabilities.tolist(), strict=True):
            if labels:
                told = chances if decimals is None else [round(chance, decimals) for chance in chances]
                each["class"] = labels[predicted]
                if not self.classes_alone:
                    each["probabilities"] = dict(zip(labels, told, strict=True))
        for name, values in self.columns.items():
            for each, value in zip(found, values.tolist(), strict=True):
                each[name] = value
        return found

    def records(self) -> list[dict[str, Any]]:
        """A dict for each node: its ``id``, without ids its ``node``, or a name's words; then what ``found`` gives."""
        words = [[node] for node in self.nodes.tolist()] if self.ids is None else map(self._split_name, self.ids)
        named = (dict(zip(self._key_columns(), each, strict=True)) for each in words)
        return [name | found for name, found in zip(named, self.found(), strict=True)]


def _csv_text(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    _write_csv(rows, text)
    return text.getvalue()


def _write_csv(rows: Iterable[Sequence[str]], file: TextIO) -> None:
    csv.writer(file, lineterminator="\n").writerows(rows)


def csv_of_holders(found: Mapping[PartyId, Predictions]) -> str:
    """``Predictions.csv`` of several holders' own nodes, whose names come first; of one holder alone without it."""
    tables = {holder: each.cells() for holder, each in found.items()}
    if len(tables) == 1:
        return _csv_text(*tables.values())
    heads = [next(table) for table in tables.values()]
    rows = ([csv_cell(holder), *row] for holder, table in tables.items() for row in table)
    return _csv_text(chain([["holder", *heads[0]]], rows))


def _rows_by_id(*several: Sequence[str] | None) -> dict[str, int]:
    """Id → row, of ids for the same rows; a later one that names another row takes the place of an earlier one."""
    return {text: row for ids in several if ids for row, text in enumerate(ids)}


def save_predictions(
    store: PartyStore,
    predicted: Predicted,
    ids: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    *,
    alike: Sequence[str] | None = None,
    calibration: Calibration | None = None,
) -> None:
    """Write a holder's predictions as CSV and, with probabilities before calibration, as safetensors."""
    facts: Record = {
        "class_names": None if class_names is None else list(class_names),
        "model_version": sha256(store.model_path.read_bytes()).hexdigest()[:12],
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    more: Record = {"columns": list(predicted.columns), "keys": list(predicted.keys)}
    more |= {"classes_alone": predicted.classes_alone, CALIBRATION: calibration and asdict(calibration)}
    more |= {_PREPARED: predicted.prepared}
    tensors = {"probabilities": predicted.probabilities}
    tensors |= ({} if ids is None else pack_ids(ids)) | ({} if alike is None else pack_ids(alike, _ALIKE))
    tensors |= {} if predicted.nodes is None else {_ROWS: predicted.nodes}
    tensors |= {_COLUMN + name: values for name, values in predicted.columns.items()}
    facts |= {name: said for name, said in more.items() if said}
    save_tensors(store.path / "predictions.safetensors", tensors, facts)
    with whole_file(store.path / "predictions.csv") as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        _write_csv(load_predictions(store).cells(), text)
        text.detach()  # after it has written the rest; the file is closed elsewhere


def load_predictions(store: PartyStore) -> Predictions:
    """Read what ``save_predictions`` wrote, and what was opened since of predictions whose shares were kept.

    Raises ``RunError``: a file is missing or damaged.
    """
    tensors, facts = load_tensors(store.path / "predictions.safetensors")
    prepared, opened = str(facts.get(_PREPARED, "")), store.keeper.get(ANSWERED)
    if prepared and opened is not None and opened.facts["prepared"] == prepared:
        tensors |= {"probabilities": opened.tensors["probabilities"], _ROWS: opened.tensors["nodes"]}
    own, class_names, calibration = tensors["probabilities"], facts.get("class_names"), calibration_in(facts)
    probabilities = own if calibration is None else calibration.of(own)
    ids, alike = (None if each is None else tuple(each) for each in map(partial(unpack_ids, tensors), ("", _ALIKE)))
    askable = _rows_by_id(alike, ids) if prepared else {}
    if prepared and ids is not None:  # of every node, opened or not
        nodes = tensors[_ROWS].tolist()
        ids, alike = (None if each is None else tuple(each[node] for node in nodes) for each in (ids, alike))
    return Predictions(
        tensors.get(_ROWS, torch.arange(len(own))),
        probabilities.argmax(dim=1) if own.shape[1] else torch.zeros(len(own), dtype=torch.int64),
        probabilities,
        ids,
        None if class_names is None else tuple(class_names),
        str(facts.get("model_version", "")),
        str(facts.get("made_at", "")),
        {name: tensors[_COLUMN + name] for name in facts.get("columns", ())},
        tuple(facts.get("keys", ())),
        alike,
        bool(facts.get("classes_alone")),
        calibration,
        own,
        prepared,
        askable,
    )


def calibration_in(facts: Record) -> Calibration | None:
    """Read the calibration in a model's or predictions' facts; None where there is none, as in older runs."""
    found = facts.get(CALIBRATION)
    return None if found is None else Calibration(float(found["scale"]), tuple(found["shifts"]))


def predicting_holder(run: RunDirectory) -> PartyId:
    """The holder whose predictions are the run's: the only scoring one whose part is here, else the label holder."""
    settings = run.settings
    here = [party for party in settings.duties.scoring if settings.data.is_apart and run.party_path(party).is_dir()]
    return settings.data.label_party if len(here) != 1 else here[0]


def load_by_holder(run: RunDirectory) -> dict[PartyId, Predictions]:
    """Holder → its newest predictions, of all whose part is here: the run's own first (``predicting_holder``).

    All have the classes' names that any has. Errors as ``load_predictions``.
    """
    first = predicting_holder(run)
    here = [party for party in run.settings.duties.scoring if party != first and run.party_path(party).is_dir()]
    found = {party: load_predictions(run.party(party)) for party in (first, *here)}
    names = next((each.class_names for each in found.values() if each.class_names is not None), None)
    return {party: replace(each, class_names=names) for party, each in found.items()}


def join_predictions(predictions: Sequence[Predictions]) -> Predictions:
    """Join predictions of several holders (horizontal): one for each id, of the first that has it; nodes from 0 on."""
    first, *_ = predictions
    alike = [text for each in predictions for text in each.compared or ()]
    places = {text: place for place, text in reversed(list(enumerate(alike)))}  # the first of each
    everything = replace(
        first,
        nodes=torch.arange(len(alike)),
        classes=torch.cat([each.classes for each in predictions]),
        probabilities=torch.cat([each.probabilities for each in predictions]),
        ids=tuple(text for each in predictions for text in each.ids or ()),
        alike=tuple(alike),
        class_names=next((each.class_names for each in predictions if each.class_names is not None), None),
        columns={name: torch.cat([each.columns[name] for each in predictions]) for name in first.columns},
        calibration=None,
        own=torch.cat([each.uncalibrated for each in predictions]),
    )
    found = everything.of(sorted(places.values()))
    return replace(found, nodes=torch.arange(len(places)), alike=None if found.ids == found.alike else found.alike)


def checked_nodes(nodes: Sequence[int], count: int) -> list[int]:
    """The nodes as a list of int. Raises ``ConfigError`` where one is no whole number from 0 to ``count`` − 1."""
    checked = []
    for node in nodes:
        try:
            number = operator.index(node)
        except TypeError:
            number = -1
        if not 0 <= number < count:
            raise ConfigError(f"nodes: {node!r} is not a node; give whole numbers from 0 to {count - 1}")
        checked.append(number)
    return checked


_KEPT: Final = "wanted"
_MISSING: Final = "missing."  # of these, what a holder does not have
_NODES: Final = "nodes"


_OTHERS: Final = "others"


def name_in_run(run: RunDirectory, nodes: Sequence[int] | None, ids: Sequence[str] | None) -> None:
    """Write which nodes the next prediction of a run on this machine is of; ``ConfigError`` where none is named.

    ``nodes`` are the label holder's; where several holders name nodes of their own, each is given the ``ids``, and
    names those that are its own.
    """
    naming = run.settings.duties.scoring
    for party in naming:
        forget_named(run.party(party))
    for party in naming if ids is not None else (run.settings.data.label_party,):
        name_nodes(run.party(party), nodes, ids, among_others=len(naming) > 1)


def name_nodes(
    store: PartyStore, nodes: Sequence[int] | None, ids: Sequence[str] | None, *, among_others: bool = False
) -> None:
    """Write, in one holder's part of a run, which nodes the next prediction is of; ``ConfigError`` where none is named.

    ``among_others``: ids that it does not have are another's.
    """
    chosen = ids if nodes is None else nodes
    if not chosen:
        raise ConfigError(
            "nodes: the job has named_nodes, so that no node is predicted but those that are named; give nodes or ids"
        )
    if nodes is None:
        store.keeper.put(_KEPT, pack_ids(list(dict.fromkeys(ids or ()))), {_OTHERS: True} if among_others else {})
    else:
        numbers = torch.tensor(list(dict.fromkeys(checked_nodes(nodes, MAX_NODES))), dtype=torch.int64)
        store.keeper.put(_KEPT, {_NODES: numbers}, {})


def name_next_nodes(path: Path, nodes: Sequence[int] | None = None, *, ids: Sequence[str] | None = None) -> int:
    """Write which nodes the next inference across organisations is of, at a holder that may; return how many.

    Raises ``RunError``: it is not such a holder's part; ``ConfigError``: no node is named, or the job predicts all.
    """
    run = RunDirectory.open(path)
    settings = run.settings
    outcome = settings.outcome
    if not outcome.predicts_named or outcome.keeps_shares or not settings.data.is_apart:
        raise ConfigError(
            f"{path}: nodes are named ahead of a prediction across organisations of a job with named_nodes and not "
            "online, which this is not; leave --ask out",
            key="ask",
        )
    party, naming = predicting_holder(run), settings.duties.scoring
    if not run.party_path(party).is_dir():
        only = "alone names" if len(naming) == 1 else "name"
        raise RunError(f"{path} has no part of {listed(naming)}, who {only} nodes; name them there", party=party)
    name_nodes(run.party(party), nodes, ids)
    return len(set(nodes if nodes is not None else ids or ()))


def named_nodes(store: PartyStore, aligned: Aligned) -> Tensor | None:
    """The nodes named for this prediction, as rows of the common nodes: Tensor[R] int64; None where none were named.

    Raises ``ConfigError``: a node is not among the common ones. Nobody else learns which.
    """
    kept = store.keeper.get(_KEPT)
    if kept is None or aligned.graph is None:
        return None
    common, ids = aligned.graph.common, unpack_ids(kept.tensors)
    if ids is None:
        return torch.tensor(checked_nodes(kept.tensors[_NODES].tolist(), common), dtype=torch.int64)
    rows = {text: row for all_ids in (aligned.ids or (), aligned.written) for row, text in enumerate(all_ids[:common])}
    if kept.facts.get(_OTHERS):
        missing = pack_ids([text for text in ids if text not in rows], _MISSING)
        store.keeper.put(_KEPT, {**kept.tensors, **missing}, kept.facts)
        ids = [text for text in ids if text in rows]
    named = _rows_of_ids(ids, rows, f"the {common} nodes that all holders know now; name others")
    return torch.tensor(named, dtype=torch.int64)


def check_named(run: RunDirectory) -> None:
    """Refuse ids that no holder of a run in one place has: ``ConfigError``. Each has read its tables by then."""
    naming = run.settings.duties.scoring
    kept = [run.party(party).keeper.get(_KEPT) for party in naming]
    missing = [() if each is None else unpack_ids(each.tensors, _MISSING) or () for each in kept]
    if unknown := sorted(set(missing[0]).intersection(*missing[1:])):
        words = f"ids: {unknown[0]!r} ({len(unknown)} of those named) is not a node of {listed(naming)}; name others"
        raise ConfigError(words, key="ids", value=unknown[0])


def _rows_of_ids(ids: Sequence[str], rows: Mapping[str, int], which: str) -> list[int]:
    """The row of each id; ``ConfigError``: some are not in ``rows``, which ``which`` describes."""
    if unknown := [text for text in ids if text not in rows]:
        words = f"ids: {unknown[0]!r} ({len(unknown)} of {len(ids)}) is not among {which}"
        raise ConfigError(words, value=unknown[0])
    return [rows[text] for text in ids]


def forget_named(store: PartyStore) -> None:
    """Delete the file that says which nodes the next prediction is of."""
    store.keeper.path(_KEPT).unlink(missing_ok=True)
