"""What a job on one machine begins with: graphs of a data set, saved or given from Python, or tables."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from torch import Tensor

from veilgraph.core.arguments import check_mapping, path_of, wrong_type
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.validation import NAME_PATTERN
from veilgraph.core.yaml_file import yaml_bytes
from veilgraph.graph.federation import check_names
from veilgraph.graph.party import PartyGraph, checked_ids, load_party, load_party_ids, save_party
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.graph.pyg_data import from_hetero
from veilgraph.graph.settings import DESCRIPTIONS, MAX_HOLDERS, PARTY_FILE_SUFFIXES, holder_names
from veilgraph.protocol.acceptance import OF_OTHER_TASKS, refusal_of
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.party_settings import parse_party_settings
from veilgraph.protocol.plain_fitting import Inputs, LedgerPlace
from veilgraph.runtime.store import lifetime as lifetimes
from veilgraph.runtime.store.lifetime import GivenLedgers
from veilgraph.runtime.store.run_directory import TABLES, RunDirectory
from veilgraph.tables.column_settings import SUFFIXES
from veilgraph.tables.frames import Tables
from veilgraph.tables.settings import NO_EDGE_FEATURES

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data, HeteroData

GivenParty: TypeAlias = "Data | HeteroData | PartyGraph | HorizontalPart | Tables | str | os.PathLike[str]"
"""PyTorch Geometric's ``Data`` or ``HeteroData``, a ``PartyGraph``, a part of ``simulate.horizontally``, ``Tables``, or
the path of a party file (.yaml) or of a saved graph (.safetensors)."""

GivenParties: TypeAlias = "Mapping[PartyId, GivenParty] | Sequence[Data | HeteroData | PartyGraph | HorizontalPart]"
"""Holder → what it brings. Of a list, graphs that know their holder keep its name; others are A, B, … in their order,
or as ``data.holders`` names them."""

GivenVector = Iterable[Hashable] | Tensor | np.ndarray
GivenIds = Mapping[PartyId, GivenVector]
"""Holder → the ids of its graph's rows."""

_BRINGS: Final = (
    "give PyTorch Geometric's Data or HeteroData, a PartyGraph, vg.Tables(nodes, edges) of DataFrames, or the path "
    "of a party file (veilgraph data check) or of a saved graph"
)


def parties_by_name(parties: object, names: Sequence[PartyId] | None) -> dict[PartyId, object]:
    """Holder → what it brings, in the order of ``names`` where these are stated.

    Raises ``ConfigError``: a wrong type or name, too many holders, or others than ``names``; ``DataError``: under two.
    """
    found: list[tuple[object, object]]
    if isinstance(parties, Mapping):
        found = list(parties.items())
    elif isinstance(parties, list | tuple):
        others = zip(_names_by_position(parties, names), parties, strict=True)
        found = [(other if (own := _party_of_graph(each)) is None else own, each) for other, each in others]
    else:
        raise wrong_type(
            "parties",
            parties,
            "a dict of holder → what it brings, nor a list of graphs",
            "divide one graph with vg.simulate.vertically or horizontally; of several give {'bank': ..., 'shop': ...}",
        )
    given = [_checked_name(name) for name, _ in found]
    check_names(given)
    if len(given) > MAX_HOLDERS:
        raise ConfigError(f"parties: {len(given)} holders, and one machine has {MAX_HOLDERS} at most; give fewer")
    if names is not None and set(names) != set(given):
        raise ConfigError(
            f"data.holders: the job names {', '.join(names)}, and parties= brings {', '.join(given)}; give the same, "
            "or leave data.holders out",
            code="other-holders",
            value=list(names),
        )
    brought = dict(zip(given, (each for _, each in found), strict=True))
    return brought if names is None else {name: brought[name] for name in names}


def _names_by_position(parties: Sequence[object], names: Sequence[PartyId] | None) -> Sequence[PartyId]:
    """A name for each entry: of ``names``, or A, B, … where these are None or every entry knows its holder."""
    if names is None or all(_party_of_graph(each) is not None for each in parties):
        return holder_names(len(parties))
    if len(names) != len(parties):
        raise ConfigError(
            f"data.holders: the job names {len(names)}, and parties= is a list of {len(parties)}; give as many",
            code="other-holders",
            value=list(names),
        )
    return names


def _party_of_graph(brought: object) -> PartyId | None:
    """The holder that a ``PartyGraph``, or a part of a horizontal division, is of; None for anything else."""
    graph = brought.graph if isinstance(brought, HorizontalPart) else brought
    return graph.party if isinstance(graph, PartyGraph) else None


def _checked_name(name: object) -> PartyId:
    if not isinstance(name, str):
        raise wrong_type("parties", name, "a holder's name (str)", "give a dict of holder → what it brings")
    if not re.fullmatch(NAME_PATTERN, name) or name == SERVER:
        raise ConfigError(
            f"parties: {name!r} is no name for a holder; give letters, digits, '.', '_' or '-', at most 64, and not "
            f"{SERVER!r}",
            code="holder-name",
            value=name,
        )
    return name


def _bring_tables(brought: Mapping[PartyId, object]) -> bool:
    """Whether all bring tables; ``ConfigError`` where some do, and others graphs."""
    tables = [name for name, each in brought.items() if _is_tables(name, each)]
    graphs = [name for name in brought if name not in tables]
    if tables and graphs:
        raise ConfigError(
            f"parties: {tables[0]!r} brings tables, whose rows are matched by id, and {graphs[0]!r} a graph, whose "
            "rows are in order already; give tables of all, or graphs of all",
            code="tables-and-graphs",
            value=[tables[0], graphs[0]],
        )
    return bool(tables)


def _is_tables(name: PartyId, brought: object) -> bool:
    """Whether a holder brings tables or a party file's path; ``ConfigError``: the path of a table alone."""
    if isinstance(brought, Tables):
        return True
    if not isinstance(brought, str | os.PathLike):
        return False
    path = path_of("parties", brought, "a party file or of a saved graph")
    if path.name.endswith(SUFFIXES):
        raise ConfigError(
            f"parties: {name!r} brings {str(path)!r}, a table alone; describe it in a party file (.yaml, "
            "docs/guides/tables.md) and give its path, or read it and give vg.Tables",
            code="table-alone",
            value=str(path),
            party=name,
        )
    return path.suffix in PARTY_FILE_SUFFIXES


def _load_graph(name: PartyId, brought: object, *, aligned: bool) -> tuple[PartyGraph, GivenVector | None]:
    """Load, or convert, what a holder brings to its graph; and its rows' ids, None where ``aligned`` or without any."""
    ids: GivenVector | None = None
    if isinstance(brought, str | os.PathLike):
        path = path_of("parties", brought)
        return replace(load_party(path), party=name), None if aligned else load_party_ids(path)
    if isinstance(brought, HorizontalPart):
        if aligned:
            raise ConfigError(
                f"parties: {name!r} brings nodes of its own, and in this job row v is the same node at every holder; "
                "divide the graph with vg.simulate.vertically, or choose paradigm horizontal",
                code="own-nodes",
                party=name,
            )
        ids, brought = brought.ids, brought.graph
    if isinstance(brought, PartyGraph):
        graph = replace(brought, party=name)
        graph.check_types()
        return graph, ids
    from torch_geometric.data import Data, HeteroData  # noqa: PLC0415 - seconds to import

    if not isinstance(brought, Data | HeteroData):
        raise wrong_type("parties", brought, "what a holder brings", _BRINGS, party=name)
    graph, own = PartyGraph.from_data(name, brought), getattr(from_hetero(name, brought)[0], "n_id", None)
    return graph, own if isinstance(own, Tensor) and not aligned else None


_PARTY_FILE: Final = "party.yaml"
_NO_IDS: Final = (
    "in paradigm horizontal, whose rows are not the same nodes, and for ledgers=, by which a ledger knows nodes; leave "
    "them out"
)


def save_inputs(inputs: Inputs, run: RunDirectory) -> None:
    """Write each holder's graph, ids, place of its lifetime ledger, and tables into its part of the run."""
    for graph in inputs.graphs:
        store = run.party(graph.party)
        save_party(graph, store.graph_path)
        if graph.party in inputs.ids:
            store.save_ids(inputs.ids[graph.party])
    for name, place in inputs.ledgers.items():
        lifetimes.write_place(run.party(name), place)
    for name, tables in inputs.tables.items():
        write_tables(tables, name, _tables_folder(run, name) / _PARTY_FILE)


def write_tables(tables: Tables, party: PartyId, path: Path) -> None:
    """Write a party's tables, and beside them at ``path`` the party file that describes them."""
    tables.write(path.parent)
    write_whole(path, yaml_bytes(tables.described(party)))


def without_copies(message: str, run: RunDirectory) -> str:
    """Name in a message the tables that a party brought in memory, not the run's copies of them."""
    copies = re.escape(str(run.path.resolve() / "parties")) + rf"/([^/\s]+)/{TABLES}/(\w+)\.parquet"
    return re.sub(copies, r"party '\1': \2", message)


def gather_inputs(
    settings: JobSettings,
    parties: GivenParties | None,
    ids: GivenIds | None,
    out: Path,
    ledgers: GivenLedgers | None = None,
) -> Inputs:
    """Return a job's data: ``parties`` with their ``ids``, or what the job names. Nothing is written to ``out``.

    Raises ``ConfigError``: a party refuses the job, or it cannot take what is given; ``DataError``: data break a rule.
    """
    if ids is not None:
        check_mapping("ids", ids, "holder → one id for each of its rows")
        if parties is None:
            raise ConfigError(f"ids: they are for parties= {_NO_IDS}")
    if parties is not None:
        brought = parties_by_name(parties, settings.data.holders if isinstance(settings.data.holders, tuple) else None)
        of = _inputs_from_tables if _bring_tables(brought) else _inputs_from_graphs
        return of(settings, brought, ids, RunDirectory(out), lifetimes.parse_ledgers(ledgers, list(brought)))
    named, data = lifetimes.parse_ledgers(ledgers, settings.data.names), paradigm_of(settings).data
    if settings.data.from_tables:
        _refuse_named_ledgers(named, settings.data.names)
        return Inputs(accepted_by_parties(settings))
    if settings.data.graphs is None and named:
        raise ConfigError(
            f"ledgers: data.dataset={settings.data.dataset!r} is public and is divided for a simulation, whose ledgers "
            "are of its run alone; leave ledgers out",
            value=sorted(named),
        )
    loaded = data.load(settings)
    _check_used(settings, loaded.graphs)
    data.check_graphs(settings, loaded.graphs)
    return _with_ledgers(loaded, settings.data.graphs or {}, named, loaded.ids)


def _inputs_from_graphs(
    settings: JobSettings,
    brought: Mapping[PartyId, object],
    ids: GivenIds | None,
    run: RunDirectory,
    named: Mapping[PartyId, LedgerPlace],
) -> Inputs:
    """The inputs of a job of graphs, loaded and checked, with ids and lifetime ledgers; nothing is written."""
    aligned, data = settings.is_aligned, paradigm_of(settings).data
    read = {name: _load_graph(name, each, aligned=aligned) for name, each in brought.items()}
    graphs = [graph for graph, _ in read.values()]
    label_party = data.label_party(settings, graphs)
    for graph in graphs:
        if isinstance(brought[graph.party], PartyGraph | HorizontalPart):
            graph.validate()
    _check_used(settings, graphs)
    own_ids = {name: found for name, (_, found) in read.items() if found is not None}
    names = _ids_by_holder(graphs, {**own_ids, **(ids or {})}, all_of_them=not aligned)
    paths = {name: run.party_path(name) / "graph.safetensors" for name in brought}
    inputs = data.accept(_with_paths(settings, "graphs", paths, label_party), graphs, {} if aligned else names)
    data.check_graphs(inputs.settings, inputs.graphs)
    saved = {name: path_of("parties", each) for name, each in brought.items() if isinstance(each, str | os.PathLike)}
    inputs = _with_ledgers(inputs, saved, named, names)
    if aligned and (idle := sorted(set(names) - set(inputs.ledgers))):
        raise ConfigError(f"ids: {idle[0]!r} has no ledger for life, and ids are {_NO_IDS}, or name one", value=idle[0])
    return inputs


def holders_with_ledger(inputs: Inputs, ledgers: Mapping[PartyId, object] | None) -> list[PartyId]:
    """Holders with a lifetime ledger: named in ``ledgers``, of a party file, or beside the graph that they saved."""
    data = inputs.settings.data
    described = set(data.names) - set(inputs.tables) if data.from_tables else set[PartyId]()
    return [name for name in data.names if name in {*described, *inputs.ledgers, *(ledgers or ())}]


def _with_ledgers(
    inputs: Inputs,
    saved: Mapping[PartyId, Path],
    named: Mapping[PartyId, LedgerPlace],
    ids: Mapping[PartyId, Sequence[str]],
) -> Inputs:
    """Add the lifetime ledgers, ``named`` or beside a ``saved`` graph; ``ConfigError``: one forbids the job."""
    settings, found = inputs.settings, dict[PartyId, LedgerPlace]()
    beside = {name: lifetimes.default_ledger_of(path) for name, path in saved.items()}
    for name in settings.data.names:
        if (place := named.get(name) or beside.get(name)) is not None:
            own = ids.get(name)
            if own is None and name in saved and adds_noise(settings):
                own = load_party_ids(saved[name])
            found[name] = replace(place, ids=own)
    if adds_noise(settings):
        lifetimes.check_apart(found)
    for name in named:
        others = {each.folder for other, each in found.items() if other != name}
        if name in beside and beside[name].folder not in others:  # of two saved under one name, one names another
            lifetimes.check_own(f"ledgers.{name}", found[name], beside[name])
    nodes = inputs.graphs[0].common if settings.is_aligned and inputs.graphs else None
    lifetimes.check_limits(found, settings, nodes)
    return replace(inputs, ledgers=found, passing=lifetimes.holders_without_ledger(settings, list(found)))


def _check_used(settings: JobSettings, graphs: Sequence[PartyGraph]) -> None:
    """Refuse what the job's network does not use: features of edges, targets, many graphs, and relations' hops."""
    rules = settings.inputs
    for graph in graphs:
        party, brings = graph.party, f"parties: {graph.party!r} brings"
        for name in ("targets", "membership"):
            if name not in rules.of_nodes and getattr(graph, name) is not None:
                raise ConfigError(f"{brings} {name}, which {OF_OTHER_TASKS}", key=name, party=party)
        if graph.edge_features is not None and not rules.edge_features:
            words, columns = f"{brings} edge_features: {NO_EDGE_FEATURES}", graph.num_edge_features
            raise ConfigError(words, key="edge_features", value=columns, party=party)
        for relation in () if rules.is_relational else graph.relations:
            if (hops := relation.hops) is not None:
                words = (
                    f"{brings} relation {relation.name!r} with hops={hops}, which is for jobs with "
                    "model.local.model relational; leave hops out, or choose that"
                )
                raise ConfigError(words, code="hops", value=hops, party=party)


def _ids_by_holder(graphs: Sequence[PartyGraph], found: GivenIds, *, all_of_them: bool) -> dict[PartyId, list[str]]:
    """Holder → its rows' ids as text; ``ConfigError``: an unknown holder, or one without ids if ``all_of_them``."""
    holders = [graph.party for graph in graphs]
    if unknown := sorted(set(found) - set(holders)):
        raise ConfigError(f"ids: {unknown[0]!r} is not one of the holders {', '.join(holders)}; mend the name")
    if all_of_them and (absent := [holder for holder in holders if holder not in found]):
        raise ConfigError(
            f"ids: there are none of {absent[0]}, and paradigm horizontal tells nodes by their ids; give "
            "ids={holder: one per row} or Data.n_id"
        )
    counts = {graph.party: graph.num_nodes for graph in graphs}
    return {party: checked_ids(party, found[party], count) for party, count in counts.items() if party in found}


def _refuse_named_ledgers(named: Mapping[PartyId, LedgerPlace], described: Sequence[PartyId]) -> None:
    """Raise ``ConfigError`` if a ledger is named for a holder whose party file says where it is."""
    if twice := [name for name in described if name in named]:
        raise ConfigError(
            f"ledgers: the party file of {twice[0]!r} says where its ledger is (ledger) and what it may come to "
            "(limits); leave it out here",
            value=twice[0],
            party=twice[0],
        )


def _inputs_from_tables(
    settings: JobSettings,
    brought: Mapping[PartyId, object],
    ids: GivenIds | None,
    run: RunDirectory,
    named: Mapping[PartyId, LedgerPlace],
) -> Inputs:
    """The inputs of a job of tables; those in memory get the paths at which ``save_inputs`` will write them."""
    _refuse_named_ledgers(named, [name for name, each in brought.items() if not isinstance(each, Tables)])
    if stated := [name for name, place in named.items() if place.limits is not None]:
        raise ConfigError(
            f"ledgers.{stated[0]}: vg.Tables has limits= of its own; give them there, and here the folder alone",
            key=f"ledgers.{stated[0]}",  # a holder's name may have other characters than words have
            party=stated[0],
        )
    if ids is not None:
        raise ConfigError("ids: tables name the column of theirs (id); leave ids out")
    # Who gives tables accepts what the job reveals of them, where they do not say; from δ = 1/N on no job is accepted.
    everything = {
        "leakage": list(all_revelations()),
        "max_rounds": 64,
        "max_delta": 0.999,
        "trust": ["dealer", "majority"],
    }
    in_memory, found, paths = dict[PartyId, Tables](), dict[PartyId, Organisation](), dict[PartyId, Path]()
    for name, each in brought.items():
        if isinstance(each, Tables):
            tables = each.accepting(everything)
            in_memory[name] = tables.paying(named[name].folder) if name in named else tables
            folder = _tables_folder(run, name).absolute()
            own = parse_party_settings(in_memory[name].described(name), f"party {name!r}")
            found[name], paths[name] = Organisation(own, folder), folder / _PARTY_FILE
        else:
            paths[name] = path_of("parties", each).absolute()
            found[name] = Organisation.read(paths[name], name)
    label_party = paradigm_of(settings).data.labels_at(settings, list(found), _label_holders(found))
    inputs = Inputs(_unless_refused(_with_paths(settings, "parties", paths, label_party), found), tables=in_memory)
    return replace(
        inputs, passing=lifetimes.holders_without_ledger(inputs.settings, holders_with_ledger(inputs, named))
    )


def _label_holders(found: Mapping[PartyId, Organisation]) -> list[PartyId]:
    return [name for name, each in found.items() if each.settings.nodes.label is not None]


def _tables_folder(run: RunDirectory, party: PartyId) -> Path:
    return run.party_path(party) / TABLES


def accepted_by_parties(settings: JobSettings) -> JobSettings:
    """Return the job with absolute paths of its party files; ``ConfigError``: a holder has none, or refuses the job."""
    if settings.data.is_apart:
        raise ConfigError(
            "data.holders: names alone are for jobs across organisations (veilgraph net submit); on one machine give "
            "every holder's party file, as in parties: {bank: bank/party.yaml, shop: shop/party.yaml}",
            value=list(settings.data.names),
        )
    paths = {name: path.absolute() for name, path in (settings.data.parties or {}).items()}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"parties": paths})})
    found = {name: Organisation.read(path, name) for name, path in paths.items()}
    data = settings.data.model_copy(update={"label_holder": settings.data.label_party})
    paradigm_of(settings).data.labels_at(settings.model_copy(update={"data": data}), list(paths), _label_holders(found))
    return _unless_refused(settings, found)


def _unless_refused(settings: JobSettings, found: Mapping[PartyId, Organisation]) -> JobSettings:
    """Return the job; raises ``ConfigError`` where an organisation refuses it."""
    for name, organisation in found.items():
        reason = refusal_of(organisation, settings, named=True)
        if reason is not None:
            raise ConfigError(f"{name} refuses the job: {reason}", code="refused")
    return settings


def _with_paths(settings: JobSettings, key: str, paths: Mapping[PartyId, object], label_party: PartyId) -> JobSettings:
    """Return the job with ``data[key]`` set to each holder's path, and with its holders and label holder."""
    content = settings.model_dump(mode="json")
    content["data"].update(dict.fromkeys(("dataset", *DESCRIPTIONS, "graphs", "parties")))
    kept = {name: str(path) for name, path in paths.items()}
    content["data"].update({key: kept}, holders=len(paths), label_holder=label_party)
    return parse_job(content)
