"""What a job on one machine begins with: the holders' graphs, of a data set, saved, or given from Python; or tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from veilgraph.core.arguments import check_mapping
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.types import PartyId
from veilgraph.core.yaml_file import yaml_bytes
from veilgraph.graph.party import PartyGraph, checked_ids, save_party
from veilgraph.graph.settings import DESCRIPTIONS
from veilgraph.protocol.acceptance import OF_OTHER_TASKS, refusal_of
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs, LedgerPlace
from veilgraph.run import lifetimes
from veilgraph.run.given import Given, GivenIds, GivenParties, by_name, organisations, taken
from veilgraph.run.lifetimes import GivenLedgers
from veilgraph.run.run_directory import TABLES, RunDirectory
from veilgraph.tables.edge_settings import NO_EDGE_FEATURES
from veilgraph.tables.frames import Tables

__all__ = [
    "GivenIds",
    "GivenParties",
    "accepted_by_parties",
    "gather_inputs",
    "lasting_of",
    "save_inputs",
    "write_tables",
]

_PARTY_FILE: Final = "party.yaml"
_NO_IDS: Final = (
    "in paradigm horizontal, whose rows are not the same nodes, and for ledgers=, by which a ledger knows nodes; leave "
    "them out"
)


def save_inputs(inputs: Inputs, run: RunDirectory) -> None:
    """Gives every holder its own, in its part of the run."""
    for graph in inputs.graphs:
        store = run.party(graph.party)
        save_party(graph, store.graph_path)
        if graph.party in inputs.ids:
            store.save_ids(inputs.ids[graph.party])
    for name, place in inputs.ledgers.items():
        lifetimes.keep(run.party(name), place)
    for name, tables in inputs.tables.items():
        write_tables(tables, name, _tables_folder(run, name) / _PARTY_FILE)


def write_tables(tables: Tables, party: PartyId, path: Path) -> None:
    """Write a party's tables, and beside them at ``path`` the party file that describes them."""
    tables.write(path.parent)
    write_whole(path, yaml_bytes(tables.described(party)))


def gather_inputs(
    settings: JobSettings,
    parties: GivenParties | None,
    ids: GivenIds | None,
    out: Path,
    ledgers: GivenLedgers | None = None,
) -> Inputs:
    """Reads what the job names, or takes what is given in its place.

    Raises:
        ConfigError: a party refuses the job, or it cannot take what is given.
        DataError: the data cannot be read, or break a rule.
    """
    if ids is not None:
        check_mapping("ids", ids, "holder → one id for each of its rows")
    if parties is None and ids is not None:
        raise ConfigError(f"ids: they are for parties= {_NO_IDS}")
    named = lifetimes.named(ledgers, settings.data.names if parties is None else list(by_name(parties, None)))
    if parties is None and settings.data.from_tables:
        _check_tables_say(named, settings.data.names)
        return Inputs(accepted_by_parties(settings))
    if parties is None and settings.data.graphs is None and named:
        raise ConfigError(
            f"ledgers: data.dataset={settings.data.dataset!r} is public and is divided for a simulation, whose ledgers "
            "are of its run alone; leave ledgers out",
            key="ledgers",
            value=sorted(named),
        )
    paradigm = paradigm_of(settings)
    if parties is None:
        loaded = paradigm.data.load(settings)
        _check_used(settings, loaded.graphs)
        paradigm.data.check_graphs(settings, loaded.graphs)
        return _paying(loaded, settings.data.graphs or {}, named, loaded.ids)
    stated = settings.data.holders if isinstance(settings.data.holders, tuple) else None
    given = taken(parties, stated, aligned=settings.is_aligned)
    if given.tables:
        return _of_tables(settings, given, ids, out, named)
    label_party = paradigm.data.label_party(settings, given.graphs)
    for graph in given.graphs:
        if graph.party in given.unchecked:
            graph.validate()
    _check_used(settings, given.graphs)
    names = _names(given, ids, all_of_them=not settings.is_aligned)
    paths = {graph.party: RunDirectory(out).party_path(graph.party) / "graph.safetensors" for graph in given.graphs}
    rows = {} if settings.is_aligned else names
    inputs = paradigm.data.accept(_brought(settings, "graphs", paths, label_party), given.graphs, rows)
    paradigm.data.check_graphs(inputs.settings, inputs.graphs)
    inputs = _paying(inputs, given.saved, named, names)
    if settings.is_aligned and (idle := sorted(set(names) - set(inputs.ledgers))):
        raise ConfigError(
            f"ids: {idle[0]!r} has no ledger for life, and ids are {_NO_IDS}, or name one", key="ids", value=idle[0]
        )
    return inputs


def lasting_of(inputs: Inputs, ledgers: Mapping[PartyId, object] | None) -> list[PartyId]:
    """The holders that have a ledger for life: what they bring is described by a party file, saved, or it is named."""
    data = inputs.settings.data
    described = [name for name in data.names if data.from_tables and name not in inputs.tables]
    return [name for name in data.names if name in described or name in inputs.ledgers or name in (ledgers or ())]


def _paying(
    inputs: Inputs,
    saved: Mapping[PartyId, Path],
    named: Mapping[PartyId, LedgerPlace],
    ids: Mapping[PartyId, Sequence[str]],
) -> Inputs:
    """With the ledgers for life of holders that bring graphs.

    Raises:
        ConfigError: two holders have one ledger, a graph that has one is to pay from another, or a ledger's limits
            refuse the job.
        DataError: a saved graph's ids are damaged.
    """
    settings, found = inputs.settings, dict[PartyId, LedgerPlace]()
    beside = {name: lifetimes.beside(path) for name, path in saved.items()}
    for name in settings.data.names:
        place = named.get(name) or beside.get(name)
        if place is not None and name in ids:
            place = replace(place, ids=ids[name])
        elif place is not None and name in saved and adds_noise(settings):
            place = lifetimes.with_ids_of(place, saved[name])
        if place is not None:
            found[name] = place
    if adds_noise(settings):
        lifetimes.check_apart(found)
    for name in named:
        others = {each.folder for other, each in found.items() if other != name}
        if name in beside and beside[name].folder not in others:  # of two saved under one name, one names another
            lifetimes.check_own(f"ledgers.{name}", found[name], beside[name])
    nodes = inputs.graphs[0].common if settings.is_aligned and inputs.graphs else None
    lifetimes.check_limits(found, settings, nodes)
    return replace(inputs, ledgers=found, passing=lifetimes.without(settings, list(found)))


def _check_used(settings: JobSettings, graphs: Sequence[PartyGraph]) -> None:
    """Refuse what the job's network does not use: features of edges, targets, many graphs, and relations' hops."""
    for graph in graphs:
        for name in ("targets", "membership"):
            if name not in settings.inputs.of_nodes and getattr(graph, name) is not None:
                text = f"parties: {graph.party!r} brings {name}, which {OF_OTHER_TASKS}"
                raise ConfigError(text, key=name, party=graph.party)
        if graph.edge_features is not None and not settings.inputs.edge_features:
            raise ConfigError(
                f"parties: {graph.party!r} brings edge_features: {NO_EDGE_FEATURES}",
                key="edge_features",
                value=graph.num_edge_features,
                party=graph.party,
            )
        for relation in () if settings.inputs.is_relational else graph.relations:
            if relation.hops is not None:
                raise ConfigError(
                    f"parties: {graph.party!r} brings relation {relation.name!r} with hops={relation.hops}, which is "
                    "for jobs with model.local.model relational; leave hops out, or choose that",
                    code="hops",
                    key="parties",
                    value=relation.hops,
                    party=graph.party,
                )


def _names(given: Given, ids: GivenIds | None, *, all_of_them: bool) -> dict[PartyId, list[str]]:
    """Holders' ids: as given, or as they came with its graph; ``all_of_them`` where each must have some."""
    found = {**given.ids, **(ids or {})}
    holders = [graph.party for graph in given.graphs]
    if unknown := sorted(set(found) - set(holders)):
        raise ConfigError(f"ids: {unknown[0]!r} is not one of the holders {', '.join(holders)}; mend the name")
    if all_of_them and (absent := [holder for holder in holders if holder not in found]):
        raise ConfigError(
            f"ids: there are none of {absent[0]}, and paradigm horizontal tells nodes by their ids; give "
            "ids={holder: one per row} or Data.n_id"
        )
    return {
        graph.party: checked_ids(graph.party, found[graph.party], graph.num_nodes)
        for graph in given.graphs
        if graph.party in found
    }


def _check_tables_say(named: Mapping[PartyId, LedgerPlace], described: Sequence[PartyId]) -> None:
    """Refuses to name a ledger where a party file does."""
    if twice := [name for name in described if name in named]:
        raise ConfigError(
            f"ledgers: the party file of {twice[0]!r} says where its ledger is (ledger) and what it may come to "
            "(limits); leave it out here",
            key="ledgers",
            value=twice[0],
            party=twice[0],
        )


def _of_tables(
    settings: JobSettings, given: Given, ids: GivenIds | None, out: Path, named: Mapping[PartyId, LedgerPlace]
) -> Inputs:
    """The job for tables: those in memory are going to be in their holders' parts of the run, with a party file."""
    _check_tables_say(named, [name for name in given.tables if name not in given.in_memory])
    if stated := [name for name, place in named.items() if place.limits is not None]:
        raise ConfigError(
            f"ledgers.{stated[0]}: vg.Tables has limits= of its own; give them there, and here the folder alone",
            key=f"ledgers.{stated[0]}",
            party=stated[0],
        )
    paying = {name: given.in_memory[name].paying(place.folder) for name, place in named.items()}
    given = replace(given, tables={**given.tables, **paying})
    if ids is not None:
        raise ConfigError("ids: tables name the column of theirs (id); leave ids out", key="ids")
    run = RunDirectory(out.absolute())
    folders = {name: _tables_folder(run, name) for name in given.in_memory}
    found = organisations(given, folders)
    label_party = paradigm_of(settings).data.labels_at(settings, list(found), _labelled(found))
    written = {name: folder / _PARTY_FILE for name, folder in folders.items()}
    paths = {name: written.get(name, path) for name, path in given.tables.items()}
    brought = _accepted(_brought(settings, "parties", paths, label_party), found)
    inputs = Inputs(brought, tables=given.in_memory)
    return replace(inputs, passing=lifetimes.without(brought, lasting_of(inputs, named)))


def _labelled(found: Mapping[PartyId, Organisation]) -> list[PartyId]:
    return [name for name, each in found.items() if each.settings.nodes.label is not None]


def _tables_folder(run: RunDirectory, party: PartyId) -> Path:
    return run.party_path(party) / TABLES


def accepted_by_parties(settings: JobSettings) -> JobSettings:
    """The job with its party files' absolute paths, which hold from everywhere, once every party accepts it.

    Every party says the same before work; here it is known before a run directory is made.

    Raises:
        ConfigError: a holder has no party file, or refuses.
    """
    if settings.data.is_apart:
        raise ConfigError(
            "data.holders: names alone are for jobs across organisations (veilgraph net submit); on one machine give "
            "every holder's party file, as in parties: {bank: bank/party.yaml, shop: shop/party.yaml}",
            key="data.holders",
            value=list(settings.data.names),
        )
    paths = {name: path.absolute() for name, path in (settings.data.parties or {}).items()}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"parties": paths})})
    found = {name: Organisation.read(path, name) for name, path in paths.items()}
    data = settings.data.model_copy(update={"label_holder": settings.data.label_party})
    paradigm_of(settings).data.labels_at(settings.model_copy(update={"data": data}), list(paths), _labelled(found))
    return _accepted(settings, found)


def _accepted(settings: JobSettings, found: Mapping[PartyId, Organisation]) -> JobSettings:
    for name, organisation in found.items():
        reason = refusal_of(organisation, settings, named=True)
        if reason is not None:
            raise ConfigError(f"{name} refuses the job: {reason}", code="refused")
    return settings


def _brought(settings: JobSettings, key: str, paths: Mapping[PartyId, object], label_party: PartyId) -> JobSettings:
    """The job for what is given directly: its ``data`` names the holders, and where the run keeps what they bring."""
    content = settings.model_dump(mode="json")
    content["data"].update(dict.fromkeys(("dataset", *DESCRIPTIONS, "graphs", "parties")))
    kept = {name: str(path) for name, path in paths.items()}
    content["data"].update({key: kept}, holders=len(paths), label_holder=label_party)
    return parse_job(content)
