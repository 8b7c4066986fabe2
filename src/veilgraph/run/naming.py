"""Which nodes a prediction is to be of, where a job predicts named nodes alone: kept in the label holder's own part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.ids import pack_ids, unpack_ids
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import MAX_NODES
from veilgraph.run.predictions import checked_nodes
from veilgraph.run.run_directory import PartyStore, RunDirectory

_KEPT: Final = "wanted"
_NODES: Final = "nodes"


def name_nodes(store: PartyStore, nodes: Sequence[int] | None, ids: Sequence[str] | None) -> None:
    """Keeps what the next prediction is to be of, in place of what was named before.

    Args:
        store: of the label holder.
        nodes: by number; or None.
        ids: by id.

    Raises:
        ConfigError: there are none.
    """
    chosen = ids if nodes is None else nodes
    if not chosen:
        raise ConfigError(
            "nodes: the job has named_nodes, so that no node is predicted but those that are named; give nodes or ids",
            key="nodes",
        )
    if nodes is None:
        store.keeper.put(_KEPT, pack_ids(list(dict.fromkeys(ids or ()))), {})
    else:
        numbers = torch.tensor(list(dict.fromkeys(checked_nodes(nodes, MAX_NODES))), dtype=torch.int64)
        store.keeper.put(_KEPT, {_NODES: numbers}, {})


def name_ahead(path: Path, nodes: Sequence[int] | None = None, *, ids: Sequence[str] | None = None) -> int:
    """At the label holder of a run across organisations: says what the next joint inference is to be of.

    Args:
        path: of the label holder's part of a run whose job has ``named_nodes``.
        nodes: by number; or None.
        ids: by id.

    Returns:
        How many nodes are named.

    Raises:
        RunError: it is not the label holder's part of such a run.
        ConfigError: no node is named, or the job predicts all.
    """
    run = RunDirectory.open(path)
    settings = run.settings
    if not settings.predicts_named or not settings.data.is_apart:
        raise ConfigError(
            f"{path}: nodes are named ahead of a prediction across organisations of a job with named_nodes, which this "
            "is not; leave --ask out",
            key="ask",
        )
    party = settings.data.label_party
    if not run.party_path(party).is_dir():
        raise RunError(f"{path} has no part of {party}, who alone names nodes; name them there", party=party)
    name_nodes(run.party(party), nodes, ids)
    return len(set(nodes if nodes is not None else ids or ()))


def named_nodes(store: PartyStore, aligned: Aligned) -> Tensor | None:
    """What was named, as rows of the common nodes: Tensor[R] int64; None where nothing was, as at all other parties.

    Raises:
        ConfigError: a node is not among the common ones. Nobody else learns which.
    """
    kept = store.keeper.get(_KEPT)
    if kept is None or aligned.graph is None:
        return None
    common = aligned.graph.common
    ids = unpack_ids(kept.tensors)
    if ids is None:
        return torch.tensor(checked_nodes(kept.tensors[_NODES].tolist(), common), dtype=torch.int64)
    rows = {text: row for all_ids in (aligned.ids or (), aligned.written) for row, text in enumerate(all_ids[:common])}
    unknown = [text for text in ids if text not in rows]
    if unknown:
        raise ConfigError(
            f"ids: {unknown[0]!r} ({len(unknown)} of {len(ids)}) is not among the {common} nodes that all holders "
            "know now; name others",
            key="ids",
            value=unknown[0],
        )
    return torch.tensor([rows[text] for text in ids], dtype=torch.int64)


def forget_named(store: PartyStore) -> None:
    """Once they are predicted."""
    store.keeper.path(_KEPT).unlink(missing_ok=True)
