"""Views of the parties of a run, and what several parties have when they put theirs together.

Whoever knows its own summand has the sum of the others' only; the dealer and a holder together have what the dealt
masks hide. ``docs/threat-model.md`` says against which coalitions a claim is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from veilgraph.core.arguments import argument
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import load_party
from veilgraph.link.view import read_view
from veilgraph.protocol.evidence import Evidence, evidence_of, source_of
from veilgraph.protocol.view import View
from veilgraph.run.predictions import load_predictions
from veilgraph.run.run_directory import PartyStore, RunDirectory


def load_view(run: RunDirectory, party: PartyId) -> View:
    """Reads a party's view; of the run's files only the job's and the party's own are opened.

    Raises:
        RunError: no view of the party was recorded, or it cannot be read.
    """
    files = run.party(party).views() if run.party_path(party).is_dir() else []
    if not files:
        raise RunError(
            f"{run.path} has no recorded view of {party}; train the job again with {argument('record_views', 'True')}"
        )
    everything = [seen for number, path in enumerate(files) for seen in read_view(path, number)]
    own = tuple(seen for seen in everything if seen.sender == seen.receiver)
    messages = tuple(seen for seen in everything if seen.sender != seen.receiver)
    if not messages:
        raise RunError(f"{run.path}: the view of {party} has no message; record it again")
    graph = None if party == SERVER else load_party(run.party(party).graph_path)
    works = tuple(path.stem.partition("-")[2] for path in files)
    predicted = partial(predictions_of, run.party(party)) if party in run.settings.duties.scoring else None
    return View(party, run.settings, messages, own, graph, works, predicted)


def predictions_of(store: PartyStore) -> Tensor:
    """The newest predictions of a holder, in the order of its data's rows: tables may have changed since.

    Raises:
        RunError: there are none.
        DataError: they are about other nodes.
    """
    found, ids = load_predictions(store), store.ids()
    if found.keys or not found.probabilities.shape[1]:
        raise DataError("the predictions are no probabilities of nodes' classes, which attacks on predictions read")
    if found.compared is None or ids is None:
        return found.uncalibrated
    places, common = {name: row for row, name in enumerate(found.compared)}, ids[: load_party(store.graph_path).common]
    missing = sum(name not in places for name in common)
    if missing:
        raise DataError(f"the newest predictions lack {missing} of the {len(common)} nodes that the run was trained on")
    return found.uncalibrated[[places[name] for name in common]]


def joined_evidence(views: Sequence[View]) -> list[Evidence]:
    """Everything in several parties' views that attacks on the others can be mounted on.

    What must say nothing to each by itself is not tested: for them together it may say something, and is used below.

    Raises:
        RunError: a message cannot be read.
    """
    members = {view.party for view in views}
    outside = [name for name in views[0].settings.data.names if name not in members]
    found: dict[tuple[object, ...], Evidence] = {}
    for view in views:
        for each in evidence_of(view):
            about = tuple(party for party in each.about if party in outside)
            key = (each.sort, each.words, about)
            if not each.permitted or not about:
                continue
            if key not in found:
                found[key] = replace(each, about=about)
            elif each.updates:  # of the same h0, and each knows its own
                updates = zip(found[key].updates, each.updates, strict=False)
                found[key] = replace(found[key], updates=tuple(one + other for one, other in updates))
    holders = [view.of_training for view in views if view.party != SERVER]
    server = next((view.of_training for view in views if view.party == SERVER), None)
    more = source_of(views[0].settings).joined(server, holders, outside) if outside and holders else ()
    return [*found.values(), *more]
