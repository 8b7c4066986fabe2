"""What holders bring from Python in place of a job's data: graphs, saved ones, or tables that are aligned first."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from torch import Tensor

from veilgraph.core.arguments import path_of, wrong_type
from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import NAME_PATTERN
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.federation import check_names
from veilgraph.graph.partition import HorizontalPart
from veilgraph.graph.party import PartyGraph, load_party, load_party_ids
from veilgraph.graph.pyg import of_one_kind
from veilgraph.graph.settings import MAX_HOLDERS, PARTY_FILE_SUFFIXES, holder_names
from veilgraph.protocol.disclosures import all_revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import parse_party_settings
from veilgraph.tables.column_settings import SUFFIXES
from veilgraph.tables.frames import Tables

if TYPE_CHECKING:  # seconds to import
    from pathlib import Path

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

_MOST_ROUNDS: Final = 64
_MOST_DELTA: Final = 0.999
"""No limits, as a party file has them; from δ = 1/N on no job is accepted anyway."""
_BRINGS: Final = (
    "give PyTorch Geometric's Data or HeteroData, a PartyGraph, vg.Tables(nodes, edges) of DataFrames, or the path "
    "of a party file (veilgraph data check) or of a saved graph"
)


@dataclass(frozen=True)
class Given:
    """What holders bring, in the job's order: graphs, or tables.

    Attributes:
        graphs: one per holder; none where they bring tables. Those of ``unchecked`` are still to be validated.
        ids: holder → ids of its graph's rows, where they came with it.
        tables: holder → its tables, or its party file; none where they bring graphs.
        unchecked: holders that gave a ``PartyGraph``.
        saved: holder → the file of its graph, where it gave one.
    """

    graphs: Sequence[PartyGraph] = ()
    ids: Mapping[PartyId, GivenVector] = field(default_factory=dict)
    tables: Mapping[PartyId, Tables | Path] = field(default_factory=dict)
    unchecked: frozenset[PartyId] = frozenset()
    saved: Mapping[PartyId, Path] = field(default_factory=dict)

    @property
    def in_memory(self) -> dict[PartyId, Tables]:
        """Those tables that no file describes yet."""
        return {name: each for name, each in self.tables.items() if isinstance(each, Tables)}


def taken(parties: object, names: Sequence[PartyId] | None, *, aligned: bool) -> Given:
    """What is given, whatever its form.

    Args:
        parties: ``GivenParties``.
        names: the holders' as the job states them; None where it does not.
        aligned: whether row v of all graphs has to be the same node.

    Raises:
        ConfigError: it is of another type, or of other holders than the job's.
        DataError: there are not two holders or more of different names, or a graph breaks a rule.
    """
    brought = by_name(parties, names)
    kinds = {name: _is_tables(name, each) for name, each in brought.items()}
    if any(kinds.values()):
        if not all(kinds.values()):
            (first, is_tables), *others = kinds.items()
            other = next(name for name, each in others if each != is_tables)
            tables, graph = (first, other) if is_tables else (other, first)
            raise ConfigError(
                f"parties: {tables!r} brings tables, whose rows are matched by id, and {graph!r} a graph, whose rows "
                "are in order already; give tables of all, or graphs of all",
                code="tables-and-graphs",
                key="parties",
                value=[tables, graph],
            )
        return Given(tables={name: _tables(each) for name, each in brought.items()})
    graphs = [_graph(name, each, aligned=aligned) for name, each in brought.items()]
    found = {name: _ids_of(name, each) for name, each in brought.items()}
    unchecked = frozenset(name for name, each in brought.items() if isinstance(each, PartyGraph | HorizontalPart))
    ids = {} if aligned else {name: each for name, each in found.items() if each is not None}
    saved = {name: path_of("parties", each) for name, each in brought.items() if isinstance(each, str | os.PathLike)}
    return Given(graphs, ids, unchecked=unchecked, saved=saved)


def by_name(parties: object, names: Sequence[PartyId] | None) -> dict[PartyId, object]:
    """Holder → what it brings, in the order of ``names`` where these are stated; as ``taken`` otherwise."""
    found: list[tuple[PartyId, object]]
    if isinstance(parties, Mapping):
        found = list(parties.items())
    elif isinstance(parties, list | tuple):
        others = _names_of_list(parties, names)
        own = map(_own_name, parties)
        found = [
            (other if name is None else name, each) for name, other, each in zip(own, others, parties, strict=True)
        ]
    else:
        raise wrong_type(
            "parties",
            parties,
            "a dict of holder → what it brings, nor a list of graphs",
            "divide one graph with vg.simulate.vertically or horizontally; of several give {'bank': ..., 'shop': ...}",
        )
    for name, _ in found:
        _check_name(name)
    given = [name for name, _ in found]
    check_names(given)
    if len(given) > MAX_HOLDERS:
        raise ConfigError(f"parties: {len(given)} holders, and one machine has {MAX_HOLDERS} at most; give fewer")
    if names is not None and set(names) != set(given):
        raise ConfigError(
            f"data.holders: the job names {', '.join(names)}, and parties= brings {', '.join(given)}; give the same, "
            "or leave data.holders out",
            code="other-holders",
            key="data.holders",
            value=list(names),
        )
    brought = dict(found)
    return brought if names is None else {name: brought[name] for name in names}


def organisations(given: Given, folders: Mapping[PartyId, Path]) -> dict[PartyId, Organisation]:
    """Every holder with its tables; ``folders`` is where those in memory are going to be.

    Raises:
        ConfigError: a party file cannot be read, or what it says breaks a rule.
    """
    found = {}
    for name, tables in given.tables.items():
        if isinstance(tables, Tables):
            settings = parse_party_settings(tables.described(name), f"party {name!r}")
            found[name] = Organisation(settings, folders[name])
        else:
            found[name] = Organisation.read(tables, name)
    return found


def _names_of_list(parties: Sequence[object], names: Sequence[PartyId] | None) -> Sequence[PartyId]:
    if names is None or all(_own_name(each) is not None for each in parties):
        return holder_names(len(parties))
    if len(names) != len(parties):
        raise ConfigError(
            f"data.holders: the job names {len(names)}, and parties= is a list of {len(parties)}; give as many",
            code="other-holders",
            key="data.holders",
            value=list(names),
        )
    return names


def _own_name(brought: object) -> PartyId | None:
    graph = brought.graph if isinstance(brought, HorizontalPart) else brought
    return graph.party if isinstance(graph, PartyGraph) else None


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise wrong_type("parties", name, "a holder's name (str)", "give a dict of holder → what it brings")
    if not re.fullmatch(NAME_PATTERN, name) or name == SERVER:
        raise ConfigError(
            f"parties: {name!r} is no name for a holder; give letters, digits, '.', '_' or '-', at most 64, and not "
            f"{SERVER!r}",
            code="holder-name",
            key="parties",
            value=name,
        )


def _is_tables(name: PartyId, brought: object) -> bool:
    if isinstance(brought, Tables):
        return True
    if not isinstance(brought, str | os.PathLike):
        return False
    path = path_of("parties", brought, "a party file or of a saved graph")
    if path.name.endswith(SUFFIXES):
        raise ConfigError(
            f"parties: {name!r} brings {str(path)!r}, a table alone; describe it in a party file (.yaml, "
            "docs/tables.md) and give its path, or read it and give vg.Tables",
            code="table-alone",
            key="parties",
            value=str(path),
            party=name,
        )
    return path.suffix in PARTY_FILE_SUFFIXES


def _tables(brought: object) -> Tables | Path:
    """A party file's path, or tables; who gives those accepts what the job reveals of them, where they do not say."""
    if not isinstance(brought, Tables):
        return path_of("parties", brought).absolute()
    return brought.accepting({"leakage": list(all_revelations()), "max_rounds": _MOST_ROUNDS, "max_delta": _MOST_DELTA})


def _graph(name: PartyId, brought: object, *, aligned: bool) -> PartyGraph:
    if isinstance(brought, str | os.PathLike):
        return replace(load_party(path_of("parties", brought)), party=name)
    if isinstance(brought, HorizontalPart):
        if aligned:
            raise ConfigError(
                f"parties: {name!r} brings nodes of its own, and in this job row v is the same node at every holder; "
                "divide the graph with vg.simulate.vertically, or choose paradigm horizontal",
                code="own-nodes",
                key="parties",
                party=name,
            )
        brought = brought.graph
    if isinstance(brought, PartyGraph):
        graph = replace(brought, party=name)
        graph.check_types()
        return graph
    from torch_geometric.data import Data, HeteroData  # noqa: PLC0415 - seconds to import

    if not isinstance(brought, Data | HeteroData):
        raise wrong_type("parties", brought, "what a holder brings", _BRINGS, party=name)
    return PartyGraph.from_data(name, brought)


def _ids_of(name: PartyId, brought: object) -> GivenVector | None:
    """The ids that a graph comes with."""
    if isinstance(brought, HorizontalPart):
        return brought.ids
    if isinstance(brought, str | os.PathLike):
        return load_party_ids(path_of("parties", brought))
    data, _, _ = of_one_kind(name, brought)
    ids = getattr(data, "n_id", None)
    return ids if isinstance(ids, Tensor) else None
