"""Predictions of a run, for people and for programs: at the label holder or, in paradigm horizontal, every holder."""

from __future__ import annotations

import csv
import io
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.types import PartyId
from veilgraph.graph.ids import pack_ids, unpack_ids
from veilgraph.run.run_directory import PartyStore, RunDirectory, load_tensors, save_tensors

_FILE: Final = "predictions.safetensors"
_ROWS: Final = "nodes"
_VERSION_CHARACTERS: Final = 12


@dataclass(frozen=True)
class Predictions:
    """Predictions for some nodes.

    Attributes:
        nodes: Tensor[n] int64, rows of the common nodes or, in paradigm horizontal, of the holder's own. All of them
            but where a job predicts named nodes alone.
        classes: Tensor[n] int64.
        probabilities: Tensor[n, C], rows sum to 1.
        ids: the nodes' ids; vertical: where they came from tables, else None.
        class_names: C names where they came from tables with labels, else None.
        model_version: the first characters of the SHA-256 of that holder's part of the model.
        made_at: when the parties computed them, UTC, ISO 8601.
    """

    nodes: Tensor
    classes: Tensor
    probabilities: Tensor
    ids: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    model_version: str = ""
    made_at: str = ""

    def of(self, places: Sequence[int]) -> Predictions:
        """Those in some places, in the order given."""
        chosen = torch.tensor(places, dtype=torch.int64)
        ids = None if self.ids is None else tuple(self.ids[place] for place in places)
        return Predictions(
            self.nodes[chosen],
            self.classes[chosen],
            self.probabilities[chosen],
            ids,
            self.class_names,
            self.model_version,
            self.made_at,
        )

    def of_nodes(self, nodes: Sequence[int]) -> Predictions:
        """Those of some nodes, by their number, in the order given.

        Raises:
            ConfigError: one is no node, or was not predicted.
        """
        if torch.equal(self.nodes, torch.arange(len(self.nodes))):
            return self.of(checked_nodes(nodes, len(self.nodes)))
        places = {node: place for place, node in enumerate(self.nodes.tolist())}
        absent = [node for node in nodes if node not in places]
        if absent:
            raise ConfigError(
                f"nodes: {absent[0]!r} is not one of the {len(places)} that the newest joint inference is of; name it "
                "in another prediction",
                key="nodes",
                value=absent[0],
            )
        return self.of([places[node] for node in nodes])

    def of_ids(self, ids: Sequence[str]) -> Predictions:
        """Those of the nodes with these ids, in the order given.

        Raises:
            ConfigError: the run has no ids, or an id is not one of the predicted nodes.
        """
        if self.ids is None:
            raise ConfigError("ids: this run's nodes have no ids, since it was not trained from tables; give nodes")
        rows = {text: row for row, text in enumerate(self.ids)}
        unknown = [text for text in ids if text not in rows]
        if unknown:
            raise ConfigError(
                f"ids: {unknown[0]!r} ({len(unknown)} of {len(ids)}) is not among the {len(rows)} nodes of the "
                "newest joint inference, which all holders know (in paradigm horizontal: a holder whose part is here); "
                "mend it, or let the parties predict anew"
            )
        return self.of([rows[text] for text in ids])

    def names(self) -> list[str]:
        """Each node's id, or its row where there are no ids."""
        return [str(node) for node in self.nodes.tolist()] if self.ids is None else list(self.ids)

    def class_labels(self) -> list[str]:
        """The C classes' names, or their numbers where they have none."""
        count = self.probabilities.shape[1]
        return [str(index) for index in range(count)] if self.class_names is None else list(self.class_names)

    def csv(self) -> str:
        """``node,class,p0,p1,…`` or, from tables, ``id,class,p_<class>,…``: one line per node."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        labels = self.class_labels()
        separator = "p" if self.class_names is None else "p_"
        writer.writerow(["node" if self.ids is None else "id", "class", *(f"{separator}{label}" for label in labels)])
        columns = self.names(), self.classes.tolist(), self.probabilities.tolist()
        for name, predicted, chances in zip(*columns, strict=True):
            writer.writerow([name, labels[predicted], *(f"{chance:.6f}" for chance in chances)])
        return text.getvalue()


def save_predictions(
    store: PartyStore,
    probabilities: Tensor,
    ids: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    nodes: Tensor | None = None,
) -> None:
    """Writes a holder's predictions as CSV and as safetensors.

    Args:
        store: of the holder.
        probabilities: Tensor[C common or N_p own nodes, or as many as ``nodes``, classes].
        ids: of these nodes, where they came from tables.
        class_names: where they came from tables with labels.
        nodes: Tensor[R] int64, where not all are predicted.
    """
    facts = {
        "class_names": None if class_names is None else list(class_names),
        "model_version": sha256(store.model_path.read_bytes()).hexdigest()[:_VERSION_CHARACTERS],
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    packed = {} if ids is None else pack_ids(ids)
    if nodes is not None:
        packed[_ROWS] = nodes
    save_tensors(store.path / _FILE, {"probabilities": probabilities, **packed}, facts)
    write_whole(store.path / "predictions.csv", load_predictions(store).csv().encode())


def load_predictions(store: PartyStore) -> Predictions:
    """Reads what ``save_predictions`` wrote.

    Raises:
        RunError: it is missing or damaged.
    """
    tensors, facts = load_tensors(store.path / _FILE)
    probabilities, ids, class_names = tensors["probabilities"], unpack_ids(tensors), facts.get("class_names")
    return Predictions(
        tensors.get(_ROWS, torch.arange(len(probabilities))),
        probabilities.argmax(dim=1),
        probabilities,
        None if ids is None else tuple(ids),
        None if class_names is None else tuple(class_names),
        str(facts.get("model_version", "")),
        str(facts.get("made_at", "")),
    )


def reading(run: RunDirectory) -> PartyId:
    """The holder whose predictions are the run's, unless others are asked for: the label holder (or reporter).

    In one organisation's part of a horizontal run across organisations it is that organisation.
    """
    settings = run.settings
    here = [party for party in settings.scoring if settings.data.is_apart and run.party_path(party).is_dir()]
    return settings.data.label_party if len(here) != 1 else here[0]


def joined(predictions: Sequence[Predictions]) -> Predictions:
    """Those of several holders of a horizontal run: each node as the first has it that knows it.

    The nodes' numbers are those of the first holder's rows, and go on for the others'.

    Args:
        predictions: one or more, with ids.
    """
    first, *others = predictions
    ids, chances = list(first.ids or ()), [first.probabilities]
    known = set(ids)
    for other in others:
        new = [row for row, text in enumerate(other.ids or ()) if text not in known]
        added = other.of(new)
        ids += added.ids or ()
        known.update(added.ids or ())
        chances.append(added.probabilities)
    probabilities = torch.cat(chances)
    names = next((each.class_names for each in predictions if each.class_names is not None), None)
    everyone = torch.arange(len(ids))
    return replace(
        first,
        nodes=everyone,
        classes=probabilities.argmax(dim=1),
        probabilities=probabilities,
        ids=tuple(ids),
        class_names=names,
    )


def checked_nodes(nodes: Sequence[int], count: int) -> list[int]:
    """The nodes as numbers.

    Raises:
        ConfigError: one is no whole number from 0 to ``count`` − 1.
    """
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
