"""From a horizontal holder's own tables to its graph: all of its nodes, over columns that are the same everywhere.

No ids are compared here; the holders' roles list them to the server under a key. What holders tell each other is
whether their columns and classes are the same and, where the features need statistics, sums over all their rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.build import build_graph, read_table
from veilgraph.link.collectives import exchange
from veilgraph.mpc.mask import PairwiseMasks, sum_integers_among
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation, Preparation, Prepared
from veilgraph.tables.columns import HASH_BYTES, Compared, check_same_columns, column_hashes, edge_columns, predicted
from veilgraph.tables.encode import FeatureEncoding, fit_encoding
from veilgraph.tables.nodes import feature_columns

_NONCES: Final = 3
"""Round of the messages from which an identity is made."""
_KEYS: Final = 1
"""Round of the keys for sums over columns; those of training come later in the session."""


def collect(own: Preparation) -> Prepared:
    """Builds the party's graph from all nodes of its tables. Called at all parties together.

    Its rows, and with them its list of nodes to the server, are in an order of its own, which does not tell the rank of
    an id as a sorted table's would.

    Raises:
        DataError: a table breaks a rule, or another holder's columns or classes are not this one's.
    """
    link, settings, organisation, encoding = own.link, own.job, own.organisation, own.encoding
    identity = _fresh_identity(link, settings.data.names)
    if organisation is None:
        return Prepared(identity, {})
    party, others = organisation.settings, [holder for holder in settings.data.names if holder != link.party]
    columns = feature_columns(party, organisation.folder) if encoding is None else encoding.columns
    check_columns(link, others, [*columns, *edge_columns(party.edges)], predicted(party.nodes), encoding)
    table = read_table(party, organisation.folder, encoding, settings.data.feature_scaling, own.streams)
    if encoding is None:
        encoding = fit_encoding(table, settings.data.feature_scaling, Totals(link, settings.data.names))
    order = np.array(own.streams.order("nodes", table.ids.to_pylist()), dtype=np.int64)
    table = table.take(order)  # in place of the other: tables may be large
    per_node = link.party in settings.per_node
    built = build_graph(party, organisation.folder, table, encoding, per_node=per_node, then=own.then)
    return Prepared(identity, {"nodes": built.graph.num_nodes}, built)


def _fresh_identity(link: Link, holders: Sequence[PartyId]) -> str:
    """SHA-256 (hex) of every party's nonce in the job's order: nothing of the data is in it."""
    mine = torch.frombuffer(bytearray(system_secrets(SEED_BYTES)), dtype=torch.uint8)
    parties = (*holders, SERVER)
    nonces = exchange(link, [party for party in parties if party != link.party], Tag(Kind.HELLO, 0, _NONCES), mine)
    digest = hashlib.sha256()
    for party in parties:
        digest.update(nonces.get(party, mine).numpy().tobytes())
    return digest.hexdigest()


def check_columns(
    link: Link,
    others: Sequence[PartyId],
    columns: Sequence[Compared],
    classes: object,
    fitted: FeatureEncoding | None,
) -> None:
    """Compares the columns of all holders, and their settings."""
    mine = column_hashes(columns, classes, fitted)
    told = torch.from_numpy(np.frombuffer(b"".join(mine), np.uint8).reshape(-1, HASH_BYTES).copy())
    received = exchange(link, others, Tag(Kind.COLUMN_HASHES), told, shape=(None, HASH_BYTES))
    for other, hashes in received.items():
        check_same_columns(link.party, columns, mine, other, [row.tobytes() for row in hashes.numpy()])


def check_columns_here(settings: JobSettings) -> None:
    """What ``collect`` checks first, where all party files are on this machine; of names alone nothing is known.

    Raises:
        ConfigError: a party file cannot be read or breaks a rule.
        DataError: a table cannot be read, or columns or classes differ.
    """
    found = []
    for party, path in (settings.data.parties or {}).items():
        own = Organisation.read(path, party)
        columns: list[Compared] = [
            *feature_columns(own.settings, own.folder),
            *edge_columns(own.settings.edges),
        ]
        found.append((party, columns, column_hashes(columns, predicted(own.settings.nodes), None)))
    for place, (party, columns, mine) in enumerate(found):
        for other, _, theirs in found[place + 1 :]:
            check_same_columns(party, columns, mine, other, theirs)


class Totals:
    """Sums over all holders, opened to them alone. Keys are agreed on when the first are asked for."""

    def __init__(self, link: Link, holders: Sequence[PartyId]) -> None:
        self._link, self._holders = link, holders
        self._others = [holder for holder in holders if holder != link.party]
        self._masks: PairwiseMasks | None = None
        self._asked = 0

    def __call__(self, values: Sequence[int]) -> list[int]:
        if self._masks is None:
            self._masks = PairwiseMasks.agree(self._link, self._holders, system_secrets, round_=_KEYS)
        tag = Tag(Kind.COLUMN_SUMS, self._asked)
        self._asked += 1
        return sum_integers_among(self._link, self._others, self._masks, values, tag, purpose="column sums")
