"""What must hold between the graphs of a federation's holders: names, common nodes, and who alone has the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import refuse


def find_only_label_holder(graphs: Sequence[PartyGraph], label_holder: PartyId | None) -> PartyId:
    """Return the party of the only graph with labels; check the federation. ``label_holder``: who it must be."""
    holders = [graph.party for graph in graphs]
    check_names(holders)
    labelled = [graph.party for graph in graphs if graph.labels is not None]
    with_targets = next((graph.party for graph in graphs if graph.targets is not None), None)
    if not labelled and with_targets is not None:  # which is said of it
        check_federation(graphs, label_holder or with_targets)
    found = only_labelled(holders, labelled, label_holder)
    check_federation(graphs, found)
    return found


def only_labelled(
    holders: Sequence[PartyId], labelled: Sequence[PartyId], label_holder: PartyId | None = None
) -> PartyId:
    """Return the only holder with labels; ``DataError``: none, several, or another than ``label_holder`` has them."""
    key, way_out = "labels", "leave data.y and its masks (in tables: label) out at the others"
    if label_holder is not None:
        check_is_holder(label_holder, holders)
    if not labelled:
        raise DataError(
            f"labels: none of the holders {', '.join(holders)} has any, and one alone must have them; give data.y with "
            "train_mask and val_mask (in tables: label and split) at that one",
            code="labels-nowhere",
            key=key,
        )
    if len(labelled) > 1:
        raise DataError(
            f"labels: {', '.join(labelled)} have them, and one holder alone trains on its labels, the label holder; "
            f"{way_out}; or choose paradigm horizontal or averaging, where each has nodes and labels of its own",
            code="labels-at-several",
            key=key,
            value=list(labelled),
        )
    if label_holder not in (None, labelled[0]):
        raise DataError(
            f"labels: {labelled[0]} has them, and data.label_holder is {label_holder!r}; name {labelled[0]} there, or "
            "leave it out",
            code="labels-elsewhere",
            key=key,
            value=labelled[0],
            party=label_holder,
        )
    return labelled[0]


def check_classes(graph: PartyGraph) -> None:
    """Refuse training nodes of a single class, where no other party has labels. Targets are not checked."""
    if graph.labels is None or graph.train_mask is None:
        return
    trained = graph.labels[graph.train_mask]
    if len(trained) and bool((trained == trained[0]).all()):
        problem = f"all {len(trained)} common training nodes are of class {int(trained[0])}, so a model learns nothing"
        way_out = (
            "label training nodes of another class, or change the split (veilgraph data check shows them by split)"
        )
        refuse(graph.party, "labels", problem, way_out)


def check_federation(graphs: Sequence[PartyGraph], label_holder: PartyId) -> None:
    """Checks what must hold between the holders of a vertical job; a single process that has all graphs may call it."""
    check_names([graph.party for graph in graphs])
    check_aligned({graph.party: graph.common for graph in graphs})
    find_label_holder(graphs, label_holder)


def check_names(names: Sequence[PartyId]) -> None:
    """Checks that there are two holders or more, of different names."""
    if len(names) < 2:
        raise DataError(f"holders: {len(names)} given, and a federation needs at least 2; add a holder")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"holders: the name {twice[0]!r} is given twice, and names are unique; rename one")


def check_aligned(counts: Mapping[PartyId, int]) -> None:
    """Checks that all holders have as many common nodes; ``counts``: holder → C."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{party} has {count}" for party, count in counts.items())
        raise DataError(
            f"holders: misaligned node counts ({listed}); row v of the common nodes must be the same node at every "
            "holder, so align the tables first"
        )


def find_label_holder(graphs: Sequence[PartyGraph], label_holder: PartyId) -> PartyGraph:
    """Return the label holder's graph; ``DataError``: no graph is that holder's, or it has no labels."""
    check_is_holder(label_holder, [graph.party for graph in graphs])
    found = next(graph for graph in graphs if graph.party == label_holder)
    if found.labels is None:
        instead = "" if found.targets is None else ", not numbers"
        way_out = "encode the classes as whole numbers" if instead else "choose the holder that has them"
        refuse(label_holder, "labels", f"there are none, and the label holder needs them{instead}", way_out)
    return found


def check_is_holder(label_holder: PartyId, holders: Sequence[PartyId]) -> None:
    """Refuse a label holder that is not among the holders."""
    if label_holder not in holders:
        raise DataError(
            f"label_holder={label_holder!r} is not one of the holders {', '.join(holders)}; name one of them"
        )
