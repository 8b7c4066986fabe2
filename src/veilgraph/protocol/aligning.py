"""From a vertical holder's own tables to its graph: the nodes that all holders know come first, in one order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Final, TypeVar

import numpy as np
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.text import listed
from veilgraph.core.types import Link, PartyId
from veilgraph.graph.build import BuiltGraph, build_graph, common_first, read_edge_tables, read_table
from veilgraph.graph.features import scale_features
from veilgraph.graph.federation import check_federation, find_only_label_holder, only_labelled
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.intersect import agree_on_order, align_holder, align_server
from veilgraph.protocol.agreement import Hello, agree
from veilgraph.protocol.job import JobSettings, perturbing
from veilgraph.protocol.limits import too_many
from veilgraph.protocol.organisation import Organisation, Preparation, Prepared
from veilgraph.protocol.paradigm import Data, Sessions, paradigm_of
from veilgraph.protocol.party_settings import PartySettings
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.tables.columns import all_match_rates, check_any_common, match_rate
from veilgraph.tables.encode import encode, fit_encoding
from veilgraph.tables.nodes import read_ids
from veilgraph.tables.settings import SplitFractions

J = TypeVar("J", bound=JobSettings)

_TABLES: Final = 9  # round of the agreement to align

log = logging.getLogger("veilgraph")


def align(own: Preparation) -> Prepared:
    """Find the common nodes, privately, and build the party's graph. Called at all parties together.

    Consent counts it, but where no holder has new ids: then no id can become common. Training draws by rows, so they
    are in an order that a repeated job has again. An inference draws nothing: its rows keep the alignment's order, in
    which the server recognises none. Raises ``ConfigError``: a party refuses, at all with the same reason;
    ``DataError``: a table breaks a rule, or no node is common.
    """
    link, settings, organisation, encoding = own.link, own.job, own.organisation, own.encoding
    holders = settings.data.names
    if organisation is None:
        if own.grows:
            _agree_to_align(link, settings, None, 0)
        found = align_server(link, holders)
        return Prepared(found.identity, {"common_nodes": found.common, "set_sizes": dict(found.set_sizes)})
    party, folder, scaling = organisation.settings, organisation.folder, settings.data.feature_scaling
    table = read_table(party, folder, encoding, scaling, own.streams)
    edges = read_edge_tables(party, folder, table)  # before a long alignment, which a faulty row would make vain
    ids, known = table.ids.to_pylist(), set(own.known)
    # New ids alone: the table's size beside their number would tell how many known ones the holder has lost.
    stated = _agree_to_align(link, settings, organisation, sum(one not in known for one in ids)) if own.grows else None
    alignment = align_holder(link, holders, ids, stated=stated, known=own.known, grows=own.grows)
    rows = alignment.rows
    said, is_warning = match_rate(len(rows), ids, party.ids)
    log.log(logging.WARNING if is_warning else logging.INFO, "%s: %s", link.party, said)
    if encoding is None:
        rows = rows[agree_on_order(link, holders, table.ids.take(rows.numpy()).to_pylist(), own.streams)]
        encoding = fit_encoding(table, scaling)
    order = common_first(table.num_nodes, rows.numpy())
    table, edges = table.take(order), [each.move(order) for each in edges]  # in place: tables may be large
    per_node = link.party in settings.inputs.per_node
    built = build_graph(party, folder, table, encoding, len(rows), per_node=per_node, then=own.then, tables=edges)
    return Prepared(alignment.identity, {"common_nodes": len(rows), "set_sizes": dict(alignment.set_sizes)}, built)


def rebuild(own: Preparation, ids: Sequence[str], common: int) -> BuiltGraph | None:
    """Build the party's graph of its tables as they are now, in the rows of an earlier alignment.

    Of its ``ids`` all holders know the first ``common``. None where the table has other ids now.
    """
    organisation, encoding = own.organisation, own.encoding
    if organisation is None or encoding is None:
        return None
    party, folder, scaling = organisation.settings, organisation.folder, own.job.data.feature_scaling
    table = read_table(party, folder, encoding, scaling, own.streams)
    places = {each: row for row, each in enumerate(table.ids.to_pylist())}
    if places.keys() != set(ids):
        return None
    table = table.take(common_first(len(places), np.array([places[each] for each in ids[:common]], dtype=np.int64)))
    per_node = own.link.party in own.job.inputs.per_node
    return build_graph(party, folder, table, encoding, common, per_node=per_node, then=own.then)


def encoded_tables(job: JobSettings) -> dict[PartyId, Tensor]:
    """Holder → the features of all nodes of its table, Tensor[N, F], where all party files are on this machine."""
    found = {}
    for party, path in (job.data.parties or {}).items():
        own = Organisation.read(path, party)
        table = read_table(own.settings, own.folder, None, job.data.feature_scaling)
        encoding = fit_encoding(table, job.data.feature_scaling)
        found[party] = encode(table, encoding, per_node=party in job.inputs.per_node)
    return found


def table_ids(job: JobSettings) -> dict[PartyId, list[str]]:
    """Holder → the ids of its table, as holders compare them, where all party files are on this machine; else empty."""
    if not job.data.parties or job.inputs.joins_others:  # nodes there are another's, whatever they are called
        return {}
    own = {party: Organisation.read(path, party) for party, path in job.data.parties.items()}
    return {name: read_ids(each.settings, each.folder) for name, each in own.items()}


def match_rates(job: JobSettings, ids: Mapping[PartyId, Sequence[str]] | None = None) -> tuple[str, ...]:
    """How well ids match, in sentences, where all party files are on this machine; ``ids``: by default ``table_ids``.

    Of holders with nodes of their own: which of these splits without a key may train on at one and test at another.
    Raises ``DataError`` and ``ConfigError`` as ``check_alike``.
    """
    if ids is None:
        ids = table_ids(job)
    check_alike(job, ids)
    if job.is_aligned or not ids:
        return tuple(filter(None, all_match_rates(ids))) if ids else ()
    parties = job.data.parties or {}
    splits = {name: Organisation.read(path, name).settings.nodes.split for name, path in parties.items()}
    keyless = [name for name, each in splits.items() if isinstance(each, SplitFractions) and each.key is None]
    labelled = [name for name, each in splits.items() if each is not None]
    shared = sum(times > 1 for times in Counter(chain.from_iterable(ids[name] for name in labelled)).values())
    if not keyless or not shared:
        return ()
    return (
        f"{shared:,} nodes are at several holders, and {listed(keyless)} may train on one that another tests, which "
        "flatters all scores. Draft all party files with one nodes.split.key: veilgraph data init --split random:FILE.",
    )


def check_alike(job: JobSettings, ids: Mapping[PartyId, Sequence[str]] | None = None) -> None:
    """Raise ``DataError`` where all tables are here and are of no common job: no id is common, or columns differ.

    ``ids``: by default ``table_ids``. Raises ``ConfigError``: a party file breaks a rule.
    """
    if not job.is_aligned:
        paradigm_of(job).data.check_tables(job)
        return
    ids = table_ids(job) if ids is None else ids
    if not ids:
        return
    nodes = {name: Organisation.read(path, name).settings.nodes for name, path in (job.data.parties or {}).items()}
    check_any_common(ids, {name: f"{each.id!r} in {each.file.name}" for name, each in nodes.items()})


def split_by_labels(job: JobSettings, party: PartySettings) -> str:
    """Why a holder refuses a job: its split by classes would show labels that the job protects; else empty."""
    private, split = job.noise.label_release, party.nodes.split
    if not isinstance(split, SplitFractions) or not split.stratify:
        return ""
    if private is not None and private.holder == party.party:
        why = "a split by classes tells the labels that release.labels protects, as the learner sees who is trained on"
    elif party.party in perturbing(job):
        why = (
            "a split by classes tells the labels that label_privacy protects, as others see by gradients who is "
            "trained on"
        )
    elif job.training_plan is not None:
        why = (
            "with a split by classes one node can move others into or out of training, and averaging.privacy counts on "
            "none doing so"
        )
    else:
        return ""
    return f"its party file has nodes.split.stratify=true, and {why}; set nodes.split.stratify to false"


def check_split(job: JobSettings) -> None:
    """Raises ``ConfigError`` for a data set's split by classes where labels are perturbed."""
    data, holders = job.data, perturbing(job)
    if not holders or data.dataset is None or (data.split is not None and not data.stratify):
        return
    refuse = "refuses" if len(holders) == 1 else "refuse"
    raise ConfigError(
        f"{listed(holders)} {refuse} the job: others see by gradients who is trained on, and a split by classes "
        "tells the labels that label_privacy protects; give data.split, as in [0.5, 0.25, 0.25], with data.stratify: "
        "false",
        code="refused",
        key="data.split",
        party=holders[0],
    )


class AlignedData(Data[J]):
    """Data of jobs whose holders have the same nodes, one of them with labels."""

    @override
    def load(self, job: J) -> Inputs:
        from veilgraph.graph.dataset import load_parties  # noqa: PLC0415 - parties of a kit load no data set

        check_split(job)
        graphs = load_parties(job.data, job.seed)
        find_only_label_holder(graphs, job.data.label_party)
        return Inputs(job, graphs)

    @override
    def label_party(self, job: J, graphs: Sequence[PartyGraph]) -> PartyId:
        return find_only_label_holder(graphs, job.data.label_holder)

    @override
    def labels_at(self, job: J, holders: Sequence[PartyId], labelled: Sequence[PartyId]) -> PartyId:
        return only_labelled(holders, labelled, job.data.label_holder)

    @override
    def accept(self, job: J, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        scaled = [scale_features(graph, job.data.feature_scaling) for graph in graphs]
        check_federation(scaled, job.data.label_party)
        return Inputs(job, scaled)


class AlignedSessions(Sessions[J]):
    """Sessions of jobs whose holders find the nodes that they have in common."""

    @override
    def prepare(self, own: Preparation) -> Prepared:
        return align(own)


def _agree_to_align(
    link: Link, settings: JobSettings, organisation: Organisation | None, count: int
) -> dict[PartyId, int]:
    """Agree to align, and on the numbers of ids, before anything is sent of them; gives holder → number of ids."""
    holders, job = settings.data.names, settings.hash()
    consent = None if organisation is None else organisation.consent
    tells = "" if organisation is None else split_by_labels(settings, organisation.settings)
    with nullcontext(tells) if consent is None or tells else consent.alignment() as refuses:
        mine = Hello(job=job, ids=0 if refuses else count, refuses=refuses)
        hellos = agree(link, holders, mine, _TABLES, step=0)
        stated = {holder: hellos[holder].ids for holder in holders}
        reason = None if organisation is None else too_many(organisation.settings.limits, link.party, stated)
        agree(link, holders, Hello(job=job, refuses=reason or ""), _TABLES, step=1)
    return stated
