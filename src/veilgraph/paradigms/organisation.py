"""From an organisation's own tables to its graph: agree on the job, align privately, build, and keep what was built."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from veilgraph.core.config import JobSettings
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import write_whole
from veilgraph.core.limits import refusal, too_few
from veilgraph.core.party_settings import PartySettings, read_party_settings
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.build import build_graph
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.link.collectives import exchange, tensor_text, text_tensor
from veilgraph.mpc.intersect import align_holder, align_server
from veilgraph.paradigms.run_directory import PartyStore
from veilgraph.privacy.plan import plan
from veilgraph.roles.agreement import Hello, agree
from veilgraph.tables.encode import FeatureEncoding
from veilgraph.tables.nodes import read_nodes

_ALIGNMENT: Final = "alignment.json"
_ENCODING: Final = "encoding.json"
_TABLES: Final = "tables.sha256"
_BEFORE, _ALIGNED, _MAX_IDENTITY = 1, 2, 128


@dataclass(frozen=True)
class Organisation:
    """What one organisation brings.

    Attributes:
        settings: of its party file.
        folder: where the party file is; the tables' paths start there.
    """

    settings: PartySettings
    folder: Path

    @classmethod
    def read(cls, path: Path, party: PartyId) -> Organisation:
        """Reads the party file of ``party``.

        Raises:
            ConfigError: it cannot be read, breaks a rule, or is of another party.
        """
        settings = read_party_settings(path)
        if settings.party != party:
            raise ConfigError(
                f"{path}: party={settings.party!r}, and this party of the job is {party!r}; give its file"
            )
        return cls(settings, path.absolute().parent)

    def digest(self) -> str:
        """SHA-256 of how its tables are read and of the tables themselves: another one where anything has changed.

        Raises:
            DataError: a table cannot be read.
        """
        found = hashlib.sha256(self.settings.model_dump_json(include={"nodes", "edges"}).encode())
        for name in (self.settings.nodes.file, *(edges.file for edges in self.settings.edges)):
            path = self.folder / name
            try:
                with path.open("rb") as file:
                    found.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error}); give the path of a table") from error
        return found.hexdigest()

    def refusal(self, job: JobSettings) -> str | None:
        """Why it does not accept a job, by its limits; None when it does."""
        party = self.settings.party
        return refusal(self.settings.limits, job, party, epsilon=largest_epsilon(job, party))


@dataclass(frozen=True)
class Aligned:
    """What a party brings to a job after alignment.

    Attributes:
        identity: of the alignment, the same at all parties; empty where rows were aligned before.
        graph: None at the server.
        ids: of the graph's rows, where they came from tables.
        class_names: at the label holder, where they came from tables.
        refuses: why this party does not go on with what the alignment gave; empty when it does.
    """

    identity: str = ""
    graph: PartyGraph | None = None
    ids: Sequence[str] | None = None
    class_names: tuple[str, ...] | None = None
    refuses: str = ""


def agree_on_job(
    link: Link, settings: JobSettings, party: PartyId, organisation: Organisation | None, refuses: str = ""
) -> None:
    """Before anything of the data is sent: the same release, the same job, accepted by every party.

    Args:
        link: of this party.
        settings: the job.
        party: its name.
        organisation: what it accepts; None at the server, or where a simulation has no party files.
        refuses: a reason of its own not to take part.

    Raises:
        ConfigError: a party refuses, at every party with the same reason.
    """
    reasons = [refuses]
    if organisation is not None:
        reasons.append(organisation.refusal(settings) or "")
    mine = Hello(job=settings.hash(), refuses="; ".join(filter(None, reasons)))
    agree(link, settings.data.names, mine, round_=_BEFORE)


def largest_epsilon(job: JobSettings, party: PartyId) -> float:
    """The largest total ε that a job can cost a holder, against all others; infinite where something goes unnoised.

    Args:
        job: validated.
        party: a holder.

    Raises:
        ConfigError: the job's noise cannot be computed.
    """
    own = plan(job, party)
    return math.inf if own is None or job.model.initial.method != "individual" else own.epsilon_bound


def align(
    store: PartyStore, link: Link, settings: JobSettings, organisation: Organisation | None, *, anew: bool
) -> Aligned:
    """Finds the common nodes and builds the party's graph with them first, in the order that all agreed on.

    An alignment that all parties kept is used again; with ``anew`` only if no table has changed since. Called at all
    parties together.

    Args:
        store: of the party.
        link: of the party.
        settings: the job.
        organisation: the holder's own; None at the server.
        anew: align the tables as they are now, for an inference; what the run was trained on is kept.

    Raises:
        DataError: a table breaks a rule, or the holders have no node in common.
        ConfigError: fewer nodes in common than this party accepts.
    """
    digest = "" if organisation is None else organisation.digest()
    offers = not anew or organisation is None or _aligned_tables(store) == digest
    if (kept := _kept(store, link, settings, organisation, offers=offers)) is not None:
        return kept
    holders = settings.data.names
    if organisation is None:
        found = align_server(link, holders)
        identity, common, set_sizes = found.identity, found.common, found.set_sizes
        aligned = Aligned(identity)
    else:
        ids = read_nodes(organisation.settings, organisation.folder).ids.to_pylist()
        alignment = align_holder(link, holders, ids)
        identity, common, set_sizes = alignment.identity, len(alignment.rows), alignment.set_sizes
        encoding = _load_encoding(store) if anew else None
        built = build_graph(
            organisation.settings,
            organisation.folder,
            [ids[row] for row in alignment.rows.tolist()],
            encoding,
            settings.data.feature_scaling,
        )
        row_ids = built.ids.to_pylist()
        aligned = _aligned(identity, built.graph, row_ids, organisation)
        if not anew:
            save_party(built.graph, store.graph_path)
            store.save_ids(row_ids)
            write_whole(store.path / _ENCODING, built.encoding.to_json().encode())
            write_whole(store.path / _TABLES, digest.encode())
    if not anew:
        store.forget_after(0)
        facts = {"identity": identity, "common_nodes": common, "set_sizes": dict(set_sizes)}
        write_whole(store.path / _ALIGNMENT, json.dumps(facts).encode())
    return aligned


def _kept(
    store: PartyStore, link: Link, settings: JobSettings, organisation: Organisation | None, *, offers: bool
) -> Aligned | None:
    """The alignment of an earlier session, if all parties have the same one and all offer to use it again."""
    path = store.path / _ALIGNMENT
    mine = str(_read(path)["identity"]) if offers and path.is_file() else ""
    others = [party for party in (*settings.data.names, SERVER) if party != link.party]
    texts = exchange(link, others, Tag(Kind.HELLO, 0, _ALIGNED), text_tensor(mine), shape=(None,))
    identities = {tensor_text(text[:_MAX_IDENTITY]) for text in texts.values()} | {mine}
    if len(identities) > 1 or not mine:
        return None
    if organisation is None:
        return Aligned(mine)
    return _aligned(mine, load_party(store.graph_path), store.ids() or (), organisation)


def _aligned(identity: str, graph: PartyGraph, ids: Sequence[str], organisation: Organisation) -> Aligned:
    label = organisation.settings.nodes.label
    class_names = None if label is None else tuple(label.classes)
    refuses = too_few(organisation.settings.limits, graph.common) or ""
    return Aligned(identity, graph, ids, class_names, refuses)


def _aligned_tables(store: PartyStore) -> str | None:
    path = store.path / _TABLES
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _load_encoding(store: PartyStore) -> FeatureEncoding:
    path = store.path / _ENCODING
    try:
        return FeatureEncoding.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: missing or damaged ({error}); predict with a run trained from tables") from error


def _read(path: Path) -> dict[str, object]:
    try:
        content: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        return {"identity": content["identity"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged ({error}); delete it, and the parties align anew") from error
