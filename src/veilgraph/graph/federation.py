"""Who of a federation's holders has the labels, where one alone may."""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph, check_federation, check_is_holder, check_names


def find_only_label_holder(graphs: Sequence[PartyGraph], label_holder: PartyId | None) -> PartyId:
    """Who is the label holder of graphs of which one alone may have labels; the job may name it.

    Raises:
        DataError: as ``check_federation`` and ``only_labelled``.
    """
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
    """The label holder of a job in which one holder alone has labels.

    Args:
        holders: all.
        labelled: those that bring labels.
        label_holder: as the job names it, if it does.

    Raises:
        DataError: it is no holder, or labels are at two, at none, or at another.
    """
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
