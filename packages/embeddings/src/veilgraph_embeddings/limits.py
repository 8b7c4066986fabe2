"""What a party file's ``limits``, or a ledger's, say of embeddings that are published of its tables, or of a graph.

``max_epsilon``, ``max_delta``, ``epsilon_unit``, ``epsilon_neighbours`` and ``leakage`` are asked about; all others are
of jobs with other parties, which an embedding job has none of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, TypeAlias

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import party_folder, read_party_settings
from veilgraph.runtime.store import lifetime as lifetimes
from veilgraph.runtime.store.lifetime import lifetime_at, lifetime_of
from veilgraph.tables.settings import NodeSettings
from veilgraph_embeddings.settings import EmbedJob

GivenLedger: TypeAlias = "str | os.PathLike[str] | Mapping[str, object]"
"""Folder of a ledger for life; or ``{"folder": ..., "max_epsilon": ...}``."""

_PARTY: Final = "graph"
"""Whose the ledger of a graph from memory is."""
_PUBLISHED: Final = "output-embeddings"
"""The name in ``leakage`` of embeddings that whoever is given them predicts from."""


def lifetime_of_job(job: EmbedJob, ledger: GivenLedger | None = None) -> Lifetime | None:
    """The ledger of all that was ever released of the job's data; None where it pays nothing, or has none.

    Args:
        job: the job.
        ledger: its folder, and perhaps limits, of data that come from memory or elsewhere than beside a saved graph.

    Raises:
        ConfigError: the party file breaks a rule, limits do not allow the job's method, or a ledger is named though a
            party file does, or of a public data set, or of a saved graph that has one.
        DataError: there is no such saved graph.
        RunError: as ``lifetime_of``.
    """
    data = job.data
    if ledger is not None and (data.party is not None or data.dataset is not None):
        where = "party" if data.party is not None else "dataset"
        raise ConfigError(
            f"ledger: data.{where} is given, which "
            + ("says where its ledger is" if where == "party" else "is public and has the ledger of its run alone")
            + "; leave ledger out",
            key="ledger",
        )
    if data.party is not None:
        organisation = Organisation(read_party_settings(data.party), party_folder(data.party))
        check_method(job, organisation.settings.limits)
        check_columns(job, organisation.settings.nodes)
        return lifetime_of(organisation) if job.method.kind.is_private else None
    if ledger is None and data.graph is None:
        return None
    beside = None if data.graph is None else lifetimes.default_ledger_of(data.graph)
    party = _PARTY if beside is None else beside.party
    found = beside if ledger is None else lifetimes.parse_ledger("ledger", ledger, party)
    assert found is not None
    if beside is not None:
        lifetimes.check_own("ledger", found, beside)
    limits = lifetimes.limits_in(found.folder) or found.limits
    if limits is not None:
        check_method(job, limits.model_copy(update={"leakage": (_PUBLISHED,)}))
    lifetimes.keep_limits(found)
    return lifetime_at(found) if job.method.kind.is_private else None


def check_method(job: EmbedJob, limits: LimitSettings) -> None:
    """Refuses a method of which a limit says no, whatever was released before.

    What a release may cost, and what it is about, is for the ledger to say; what it bounds needs no name in
    ``leakage``, as in jobs with others.

    Raises:
        ConfigError: without noise though ``max_epsilon`` is set; or without ``max_epsilon`` though embeddings are not
            accepted.
    """
    name = job.method.name
    if limits.max_epsilon is None and _PUBLISHED not in limits.leakage:
        raise ConfigError(
            f"limits.leakage=[{', '.join(limits.leakage)}] and method={name!r} publishes an embedding of every node, "
            f"which no max_epsilon bounds: add {_PUBLISHED}, or set limits.max_epsilon and take method noise",
            key="limits.leakage",
            value=limits.leakage,
        )
    if limits.max_epsilon is not None and not job.method.kind.is_private:
        raise ConfigError(
            f"limits.max_epsilon={limits.max_epsilon:g} and method={name!r} bounds nothing of what its embeddings "
            "tell: take method noise, or remove the limit",
            key="limits.max_epsilon",
            value=limits.max_epsilon,
        )


def check_columns(job: EmbedJob, nodes: NodeSettings) -> None:
    """Refuses features that are made of edges where the method's noise is paid for about an edge.

    Raises:
        ConfigError: names them.
    """
    attributes = (job.keep.column, job.hide.column)  # which the encoder is not given
    made = [column for column in nodes.features_from_edges if column not in attributes]
    if made and job.method.kind.is_private:
        raise ConfigError(
            f"nodes.features has {', '.join(made)} of nodes.columns_from_edges, which show edges at any ε, and "
            f"method={job.method.name!r} states an ε of one edge: leave them out of nodes.features",
            key="nodes.columns_from_edges",
            value=made,
        )
