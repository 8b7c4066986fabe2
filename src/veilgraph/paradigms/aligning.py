"""From a vertical holder's own tables to its graph: the nodes that all holders know come first, in one order."""

from __future__ import annotations

from veilgraph.core.config import JobSettings
from veilgraph.core.types import Link
from veilgraph.graph.build import build_graph
from veilgraph.mpc.intersect import align_holder, align_server
from veilgraph.paradigms.organisation import Organisation, Prepared
from veilgraph.tables.encode import FeatureEncoding
from veilgraph.tables.nodes import read_nodes


def align(
    link: Link, settings: JobSettings, organisation: Organisation | None, encoding: FeatureEncoding | None
) -> Prepared:
    """Finds the common nodes, privately, and builds the party's graph. Called at all parties together.

    Args:
        link: of the party.
        settings: the job.
        organisation: the holder's own; None at the server.
        encoding: fitted on earlier tables; None: fitted on these.

    Raises:
        DataError: a table breaks a rule, or the holders have no node in common.
    """
    holders = settings.data.names
    if organisation is None:
        found = align_server(link, holders)
        return Prepared(found.identity, {"common_nodes": found.common, "set_sizes": dict(found.set_sizes)})
    ids = read_nodes(organisation.settings, organisation.folder).ids.to_pylist()
    alignment = align_holder(link, holders, ids)
    built = build_graph(
        organisation.settings,
        organisation.folder,
        [ids[row] for row in alignment.rows.tolist()],
        encoding,
        settings.data.feature_scaling,
    )
    facts = {"common_nodes": len(alignment.rows), "set_sizes": dict(alignment.set_sizes)}
    return Prepared(alignment.identity, facts, built)
