"""From tables to a party's graph: as an earlier session kept it, or read anew and kept.

A prediction reads the tables anew and notes how they have moved since training, in the party's log and its part of the
run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NotRequired

from typing_extensions import TypedDict

from veilgraph.core.files import read_json, undamaged, write_whole
from veilgraph.core.randomness import PUBLIC_SEEDS, LearningStreams, private_seed
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.build import BuiltGraph
from veilgraph.graph.party import PartyGraph, load_party, reload_party, save_party
from veilgraph.link.collectives import exchange, tensor_text, text_tensor
from veilgraph.mpc.aggregation.survivors import begin_new_rounds
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.agreement import check_leave
from veilgraph.protocol.aligning import rebuild, split_by_labels
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.organisation import Aligned, Organisation, Preparation, Prepared
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.store import DRIFT
from veilgraph.runtime.store.run_directory import PartyStore
from veilgraph.tables.describe import PROFILES, Moved, Profile, moved
from veilgraph.tables.encode import FeatureEncoding

_ALIGNMENT: Final = "alignment.json"
_ENCODING: Final = "encoding.json"
_PROFILE: Final = "profile.json"
_TABLES: Final = "tables.sha256"
_KEPT, _MAX_IDENTITY = 2, 128
_HELD: Final = "!"  # after the identity: the party has trained on it, and does not begin again

_Ids = tuple[Sequence[str], Sequence[str]]


class AlignmentFacts(TypedDict):
    """What a party keeps of an alignment or collection; ``set_sizes``: rows of the holders' tables, of an alignment."""

    identity: str
    set_sizes: NotRequired[dict[PartyId, int]]


DAMAGED_ALIGNMENT: Final = "delete it, and the parties read their tables anew"

log = logging.getLogger("veilgraph")


def prepare(
    store: PartyStore,
    link: Link,
    settings: JobSettings,
    organisation: Organisation | None,
    *,
    anew: bool,
    restarts: bool,
) -> Aligned:
    """Makes the party's graph of its tables: of the nodes that all holders know first, or of its own (horizontal).

    What all parties kept of an earlier session is used again. ``anew`` reads tables as they are now, for an inference,
    where they have changed; in a job that adds noise the ids alone decide, so that others do not learn whether a value
    changed. ``restarts`` says whether this party would begin again from nothing. At all parties together.

    Raises:
        DataError: as ``align`` and ``collect``.
        RunError: a kept file is missing or damaged; or not all kept the same, and one does not begin again.
    """
    digest = "" if organisation is None else organisation.digest()
    encoding, then = None, tuple[Profile, ...]()
    if anew and organisation is not None:
        path = store.path / _ENCODING
        with undamaged(path, "predict with a run trained from tables", "missing or damaged"):
            encoding = FeatureEncoding.from_json(path.read_text(encoding="utf-8"))
        with undamaged(store.path / _PROFILE, "train anew", "missing or damaged"):
            then = PROFILES.validate_json((store.path / _PROFILE).read_bytes())
    own = Preparation(link, settings, LearningStreams(store.seed(), link.party), organisation, encoding, then)
    seen = store.path / _TABLES
    was = seen.read_text(encoding="utf-8") if seen.is_file() else None
    changed = anew and organisation is not None and was != digest
    rebuilt = None
    if changed and settings.outcome.predicts_as_trained:
        log.warning("%s: the tables have changed, and predictions are of those that were trained on", link.party)
        changed = False
    elif changed and adds_noise(settings) and settings.is_aligned and store.graph_path.is_file():
        rebuilt = rebuild(own, store.ids() or (), load_party(store.graph_path).common)
    hides = anew and adds_noise(settings) and not settings.is_aligned
    offers = not hides and (rebuilt is not None or not changed)
    if (kept := _kept(store, link, settings, organisation, offers=offers, restarts=restarts)) is not None:
        if anew and organisation is not None:
            _note_drift(store.path, link.party, [], len(then))
        if rebuilt is None or organisation is None:
            return kept
        return _anew(store, settings, kept.identity, rebuilt, own)
    seed = store.seed()
    if not anew:
        # Another one, but for the job's own, at a later reading: other values under one would show what changed.
        begun = store.has_trained() or (store.path / _ALIGNMENT).is_file()
        seed = private_seed() if begun and seed >= PUBLIC_SEEDS else seed
        own = replace(own, streams=LearningStreams(seed, link.party))
    prepared = paradigm_of(settings).session.prepare(own)
    if not anew:
        _keep(store, prepared, digest, seed)
    if organisation is None or prepared.built is None:
        return Aligned(prepared.identity)
    if anew:
        return _anew(store, settings, prepared.identity, prepared.built, own)
    # Read back, as a resumed session has it: how products round may depend on where in memory a matrix lies.
    return _aligned(settings, prepared.identity, reload_party(store.graph_path), _ids(prepared.built), organisation)


def _anew(store: PartyStore, settings: JobSettings, identity: str, built: BuiltGraph, own: Preparation) -> Aligned:
    """The party's data as they are now, with how they have moved since training, which it refuses by its party file."""
    assert own.organisation is not None
    aligned = _aligned(settings, identity, built.graph, _ids(built), own.organisation)
    limits, party = own.organisation.settings.drift, own.link.party
    found = moved(own.then, built.profile, limits.warn)
    _note_drift(store.path, party, found, len(own.then))
    if limits.refuse is None or not found or found[0].index <= limits.refuse:
        return aligned
    # Others read this: no column, and no figure.
    return replace(
        aligned,
        refuses=aligned.refuses
        or "its tables have moved since training by more than its party file allows (drift.refuse): its own log says "
        "what has moved; mend that, train anew, or raise the limit",
    )


def kept_identity(store: PartyStore) -> str:
    """Identity of the alignment or collection of a party's graph, or ""; ``RunError`` where the file is damaged."""
    path = store.path / _ALIGNMENT
    return read_json(path, AlignmentFacts, DAMAGED_ALIGNMENT)["identity"] if path.is_file() else ""


def _keep(store: PartyStore, prepared: Prepared, digest: str, seed: int) -> None:
    """The identity goes first and comes last: without it nothing counts as kept. Checkpoints of other graphs go too."""
    store.checkpoints.set_aside_with(
        [*(store.path / name for name in (_ALIGNMENT, _ENCODING, _PROFILE, _TABLES)), store.graph_path, store.ids_path]
    )
    store.save_seed(seed)
    begin_new_rounds(store.keeper)
    if prepared.built is not None:
        save_party(prepared.built.graph, store.graph_path)
        store.save_ids(*_ids(prepared.built))
        write_whole(store.path / _ENCODING, prepared.built.encoding.to_json().encode())
        write_whole(store.path / _PROFILE, PROFILES.dump_json(prepared.built.profile))
        write_whole(store.path / _TABLES, digest.encode())
    facts = {"identity": prepared.identity, **prepared.facts}
    write_whole(store.path / _ALIGNMENT, json.dumps(facts).encode())


def _kept(
    store: PartyStore,
    link: Link,
    settings: JobSettings,
    organisation: Organisation | None,
    *,
    offers: bool,
    restarts: bool,
) -> Aligned | None:
    """What an earlier session kept, if all parties have the same and all offer to use it again."""
    mine = kept_identity(store) if offers else ""
    others = [party for party in (*settings.data.names, SERVER) if party != link.party]
    said = text_tensor(mine if restarts else mine + _HELD)
    texts = exchange(link, others, Tag(Kind.HELLO, 0, _KEPT), said, shape=(None,))
    texts[link.party] = said
    stated = {party: tensor_text(texts[party][:_MAX_IDENTITY]) for party in (*settings.data.names, SERVER)}
    identities = {party: text.removesuffix(_HELD) for party, text in stated.items()}
    if len(set(identities.values())) > 1 or not mine:
        held = [party for party, text in stated.items() if text.endswith(_HELD)]
        judged = mine if link.party in held or not held else identities[held[0]]
        without = [party for party, identity in identities.items() if identity != judged or not identity]
        check_leave({party: party not in held for party in stated}, without, "the tables that were trained on")
        return None
    if organisation is None:
        return Aligned(mine)
    ids = store.ids() or (), store.written_ids()
    return _aligned(settings, mine, load_party(store.graph_path), ids, organisation)


def _ids(built: BuiltGraph) -> _Ids:
    """The ids of a graph's rows, as compared and as written, where these differ."""
    return built.ids.to_pylist(), () if built.written.equals(built.ids) else built.written.to_pylist()


def _aligned(settings: JobSettings, identity: str, graph: PartyGraph, ids: _Ids, organisation: Organisation) -> Aligned:
    label = organisation.settings.nodes.label
    class_names = None if label is None else tuple(label.classes)
    aligned = settings.is_aligned  # where nobody learns how many nodes are common
    refuses = split_by_labels(settings, organisation.settings)
    if aligned and not refuses:
        refuses = refusal_of(organisation, settings, graph.common) or ""
    return Aligned(identity, graph, ids[0], class_names, refuses, written=ids[1])


_LOGGED: Final = 12


def _note_drift(folder: Path, party: PartyId, found: Sequence[Moved], compared: int) -> None:
    """Warn of what has moved since training, of so many columns and relations, and keep it in a part of the run."""
    for each in found[:_LOGGED]:
        log.warning("%s: has moved since training: %s", party, each)
    if len(found) > _LOGGED:
        log.warning("%s: %d more columns and relations have moved since training", party, len(found) - _LOGGED)
    told = {"made_at": datetime.now(UTC).isoformat(timespec="seconds"), "compared": compared}
    write_whole(folder / DRIFT, json.dumps({**told, "moved": list(map(asdict, found))}).encode())


def read_drift(folder: Path) -> Record:
    """What ``_note_drift`` kept; nothing before the first prediction. Raises ``RunError`` where it is damaged."""
    path = folder / DRIFT
    return read_json(path, Record, "predict anew") if path.is_file() else {}
