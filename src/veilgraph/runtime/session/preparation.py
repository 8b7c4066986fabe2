"""From tables to a party's graph: as an earlier session kept it, or read anew and kept.

A prediction reads the tables anew and notes how they have moved since training, in the party's log and its part of the
run. It goes on from the alignment of the prediction before, or of training, if all parties kept the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NotRequired

from typing_extensions import TypedDict

from veilgraph.core.files import read_json, run_errors, write_json, write_whole
from veilgraph.core.randomness import PUBLIC_SEEDS, LearningStreams, private_seed
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.build import BuiltGraph
from veilgraph.graph.party import PartyGraph, load_party, pack_ids, reload_party, save_party, unpack_ids
from veilgraph.link.collectives import exchange, tensor_text, text_tensor
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.agreement import check_restart_allowed
from veilgraph.protocol.aligning import rebuild, split_by_labels
from veilgraph.protocol.job import adds_noise
from veilgraph.protocol.organisation import Aligned, Preparation, Prepared
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.store import DRIFT
from veilgraph.runtime.store.run_directory import PartyStore
from veilgraph.tables.drift import PROFILES, Drift, drifted
from veilgraph.tables.encode import FeatureEncoding
from veilgraph.tables.nodes import read_ids

_ALIGNMENT: Final = "alignment.json"
ENCODING: Final = "encoding.json"
_PROFILE: Final = "profile.json"
_TABLES: Final = "tables.sha256"
_KEPT, _MAX_IDENTITY = 2, 128
_NEWEST: Final = "aligned"
_NEW_IDS: Final = "+"  # after the identity: the party has ids that it had not then
_HELD: Final = "!"  # after the identity: the party has trained on it, and does not begin again

_Ids = tuple[Sequence[str], Sequence[str]]


class AlignmentFacts(TypedDict):
    """What a party keeps of an alignment or collection; the rest of an alignment: rows of the holders' tables."""

    identity: str
    common_nodes: NotRequired[int]
    set_sizes: NotRequired[dict[PartyId, int]]


DAMAGED_ALIGNMENT: Final = "delete it, and the parties read their tables anew"

log = logging.getLogger("veilgraph")


def prepare(store: PartyStore, own: Preparation, *, anew: bool, restarts: bool) -> Aligned:
    """Makes the party's graph of its tables: of the nodes that all holders know first, or of its own (horizontal).

    What all parties kept of an earlier session is used again. ``anew`` reads tables as they are now, for an inference,
    where they have changed; in a job that adds noise the ids alone decide, so that others do not learn whether a value
    changed. ``restarts`` says whether this party would begin again from nothing. All parties call it together.

    Raises:
        DataError: as ``align`` and ``collect``.
        RunError: a kept file is missing or damaged; or not all kept the same, and one does not begin again.
    """
    job, party, organisation = own.job, own.link.party, own.organisation
    digest, reads_again = "" if organisation is None else organisation.digest(), anew and organisation is not None
    if reads_again:
        own = _with_encoding(store, own)
    seen = store.path / _TABLES
    changed = reads_again and digest != (seen.read_text(encoding="utf-8") if seen.is_file() else None)
    rebuilt = None
    if changed and job.outcome.predicts_as_trained:
        log.warning("%s: the tables have changed, and predictions are of those that were trained on", party)
        changed = False
    elif changed and adds_noise(job) and job.is_aligned and store.graph_path.is_file():
        rebuilt = rebuild(own, store.ids() or (), load_party(store.graph_path).common)
    hides = anew and adds_noise(job) and not job.is_aligned
    offers = not hides and (rebuilt is not None or not changed)
    if (kept := _agree_on_kept(store, own, offers=offers, restarts=restarts)) is not None:
        if reads_again:
            _note_drift(store.path, party, [], len(own.then))
        return kept if rebuilt is None else _with_drift(store, kept.identity, rebuilt, own)
    if anew:
        own = _with_known(store, own) if job.is_aligned else own
        prepared = paradigm_of(job).session.prepare(own)
        built = prepared.built
        if job.is_aligned:
            ids, common = ((), 0) if built is None else (_ids(built)[0], built.graph.common)
            store.keeper.put(_NEWEST, pack_ids(ids), {"identity": prepared.identity, "common": common})
        return Aligned(prepared.identity) if built is None else _with_drift(store, prepared.identity, built, own)
    # Another seed, but for the job's own, at a later reading: other values under one would show what changed.
    begun, seed = store.has_trained() or (store.path / _ALIGNMENT).is_file(), store.seed()
    seed = private_seed() if begun and seed >= PUBLIC_SEEDS else seed
    prepared = paradigm_of(job).session.prepare(replace(own, streams=LearningStreams(seed, party)))
    _write_prepared(store, prepared, digest, seed)
    if prepared.built is None:
        return Aligned(prepared.identity)
    # Read back, as a resumed session has it: how products round may depend on where in memory a matrix lies.
    return _aligned(own, prepared.identity, reload_party(store.graph_path), _ids(prepared.built))


def _with_known(store: PartyStore, own: Preparation) -> Preparation:
    """Add what is known of the newest alignment, if all parties kept the same; each says whether it has new ids."""
    if (kept := store.keeper.get(_NEWEST)) is not None:
        identity, ids, common = kept.facts["identity"], unpack_ids(kept.tensors) or [], kept.facts["common"]
    else:
        facts = _alignment_facts(store)
        ids, common = store.ids() or [], facts.get("common_nodes", 0)
        identity = facts["identity"] if common else ""
    mark = ""
    if (organisation := own.organisation) is not None:
        mark = _NEW_IDS if set(read_ids(organisation.settings, organisation.folder)) - set(ids) else ""
    others = [party for party in (*own.job.data.names, SERVER) if party != own.link.party]
    tag, said = Tag(Kind.HELLO, 1, _KEPT), text_tensor(identity + mark)
    texts = [
        tensor_text(text[:_MAX_IDENTITY]) for text in exchange(own.link, others, tag, said, shape=(None,)).values()
    ]
    if not identity or {text.removesuffix(_NEW_IDS) for text in texts} != {identity}:
        return own
    grows = any(text.endswith(_NEW_IDS) for text in (*texts, mark))
    return replace(own, known=ids[:common], grows=grows)


def kept_encoding(store: PartyStore) -> FeatureEncoding:
    """Read the feature encoding that training kept; ``RunError``: it is missing, as without tables, or damaged."""
    encoding = store.path / ENCODING
    with run_errors(encoding, "predict with a run trained from tables", "missing or damaged"):
        return FeatureEncoding.from_json(encoding.read_text(encoding="utf-8"))


def _with_encoding(store: PartyStore, own: Preparation) -> Preparation:
    """Add the feature encoding and the profiles that training kept; ``RunError``: missing or damaged."""
    own, profile = replace(own, encoding=kept_encoding(store)), store.path / _PROFILE
    with run_errors(profile, "train anew", "missing or damaged"):
        return replace(own, then=PROFILES.validate_json(profile.read_bytes()))


def _with_drift(store: PartyStore, identity: str, built: BuiltGraph, own: Preparation) -> Aligned:
    """Compare tables with those of training; write the drift, and refuse the data where it exceeds ``drift.refuse``."""
    assert own.organisation is not None
    aligned = _aligned(own, identity, built.graph, _ids(built))
    limits, party = own.organisation.settings.drift, own.link.party
    found = drifted(own.then, built.profile, limits.warn)
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
    return _alignment_facts(store)["identity"]


def _alignment_facts(store: PartyStore) -> AlignmentFacts:
    path = store.path / _ALIGNMENT
    return read_json(path, AlignmentFacts, DAMAGED_ALIGNMENT) if path.is_file() else {"identity": ""}


def _write_prepared(store: PartyStore, prepared: Prepared, digest: str, seed: int) -> None:
    """Set old files and checkpoints aside, then write the new: the identity last, without which nothing counts."""
    store.checkpoints.set_aside_with(
        [*(store.path / name for name in (_ALIGNMENT, ENCODING, _PROFILE, _TABLES)), store.graph_path, store.ids_path]
    )
    store.save_seed(seed)
    if prepared.built is not None:
        save_party(prepared.built.graph, store.graph_path)
        store.save_ids(*_ids(prepared.built))
        write_whole(store.path / ENCODING, prepared.built.encoding.to_json().encode())
        write_whole(store.path / _PROFILE, PROFILES.dump_json(prepared.built.profile))
        write_whole(store.path / _TABLES, digest.encode())
    facts = {"identity": prepared.identity, **prepared.facts}
    write_json(store.path / _ALIGNMENT, facts)


def _agree_on_kept(store: PartyStore, own: Preparation, *, offers: bool, restarts: bool) -> Aligned | None:
    """Return what an earlier session kept, if all parties offer the same; else None, or ``RunError`` if one insists."""
    link, everybody = own.link, (*own.job.data.names, SERVER)
    mine = kept_identity(store) if offers else ""
    said = text_tensor(mine if restarts else mine + _HELD)
    others = [party for party in everybody if party != link.party]
    texts = exchange(link, others, Tag(Kind.HELLO, 0, _KEPT), said, shape=(None,)) | {link.party: said}
    stated = {party: tensor_text(texts[party][:_MAX_IDENTITY]) for party in everybody}
    identities = {party: text.removesuffix(_HELD) for party, text in stated.items()}
    if len(set(identities.values())) > 1 or not mine:
        held = [party for party, text in stated.items() if text.endswith(_HELD)]
        judged = mine if link.party in held or not held else identities[held[0]]
        without = [party for party, identity in identities.items() if identity != judged or not identity]
        check_restart_allowed(
            {party: party not in held for party in stated}, without, "the tables that were trained on"
        )
        return None
    if own.organisation is None:
        return Aligned(mine)
    return _aligned(own, mine, load_party(store.graph_path), (store.ids() or (), store.written_ids()))


def _ids(built: BuiltGraph) -> _Ids:
    """The ids of a graph's rows, as compared and as written, where these differ."""
    return built.ids.to_pylist(), () if built.written.equals(built.ids) else built.written.to_pylist()


def _aligned(own: Preparation, identity: str, graph: PartyGraph, ids: _Ids) -> Aligned:
    """The graph as aligned data, with class names, and why the organisation refuses the job with it, if it does."""
    assert own.organisation is not None
    settings = own.organisation.settings
    refuses = split_by_labels(own.job, settings)
    if own.job.is_aligned and not refuses:  # else nobody learns how many nodes are common
        refuses = refusal_of(own.organisation, own.job, graph.common) or ""
    label = settings.nodes.label
    class_names = None if label is None else tuple(label.classes)
    return Aligned(identity, graph, ids[0], class_names, refuses, written=ids[1])


_LOGGED: Final = 12


def _note_drift(folder: Path, party: PartyId, found: Sequence[Drift], compared: int) -> None:
    """Log columns and relations that moved since training; write them, and how many were compared, to drift.json."""
    for each in found[:_LOGGED]:
        log.warning("%s: has moved since training: %s", party, each)
    if len(found) > _LOGGED:
        log.warning("%s: %d more columns and relations have moved since training", party, len(found) - _LOGGED)
    told = {"made_at": datetime.now(UTC).isoformat(timespec="seconds"), "compared": compared}
    write_json(folder / DRIFT, {**told, "moved": list(map(asdict, found))})


def read_drift(folder: Path) -> Record:
    """Read drift.json: made_at, compared, moved; empty before the first prediction. ``RunError``: it is damaged."""
    path = folder / DRIFT
    return read_json(path, Record, "predict anew") if path.is_file() else {}
