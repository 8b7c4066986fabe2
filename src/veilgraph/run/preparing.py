"""From tables to what a party brings to a job: as an earlier session kept it, or read anew and kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole
from veilgraph.core.randomness import PUBLIC_SEEDS, LearningStreams, private_seed
from veilgraph.core.types import SERVER, Kind, Link, Tag
from veilgraph.graph.party import PartyGraph, load_party, reload_party, save_party
from veilgraph.link.collectives import exchange, tensor_text, text_tensor
from veilgraph.mpc.aggregation.survivors import begin_new_rounds
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.aligning import rebuild, split_by_labels
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Aligned, Organisation, Preparation, Prepared
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.resumption import check_leave
from veilgraph.run.run_directory import PartyStore
from veilgraph.tables.encode import FeatureEncoding

_ALIGNMENT: Final = "alignment.json"
_ENCODING: Final = "encoding.json"
_TABLES: Final = "tables.sha256"
_KEPT, _MAX_IDENTITY = 2, 128
_HELD: Final = "!"
"""After the identity: the party has trained on it, and does not begin again."""

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

    What all parties kept of an earlier session is used again; with ``anew`` only if no table has changed since. In a
    job that adds noise the others must not learn whether any value changed: there the ids alone decide. Called at all
    parties together.

    Args:
        store: of the party.
        link: of the party.
        settings: the job.
        organisation: the holder's own; None at the server.
        anew: read the tables as they are now, for an inference; what the run was trained on is kept.
        restarts: whether this party would begin again from nothing, as it must on tables that are read anew.

    Raises:
        DataError: as ``align`` and ``collect``.
        RunError: a kept file is missing or damaged; or not all parties kept the same, and one that has trained on it
            does not begin again.
    """
    digest = "" if organisation is None else organisation.digest()
    encoding = _load_encoding(store) if anew and organisation is not None else None
    own = Preparation(link, settings, LearningStreams(store.seed(), link.party), organisation, encoding)
    changed = anew and organisation is not None and _kept_digest(store) != digest
    rebuilt = None
    if changed and settings.predicts_as_trained:
        log.warning("%s: the tables have changed, and predictions are of those that were trained on", link.party)
        changed = False
    elif changed and settings.adds_noise and settings.is_aligned and store.graph_path.is_file():
        rebuilt = rebuild(own, store.ids() or (), load_party(store.graph_path).common)
    offers = rebuilt is not None or not changed
    if anew and settings.adds_noise and not settings.is_aligned:
        offers = False
    if (kept := _kept(store, link, settings, organisation, offers=offers, restarts=restarts)) is not None:
        if rebuilt is None or organisation is None:
            return kept
        return _aligned(settings, kept.identity, rebuilt.graph, rebuilt.ids.to_pylist(), organisation)
    seed = store.seed()
    if not anew:
        seed = _seed_for_new_tables(store)
        own = replace(own, streams=LearningStreams(seed, link.party))
    prepared = paradigm_of(settings).prepare(own)
    if not anew:
        _keep(store, prepared, digest, seed)
    if organisation is None or prepared.built is None:
        return Aligned(prepared.identity)
    # Read back, as a resumed session has it: how products round may depend on where in memory a matrix lies.
    graph = prepared.built.graph if anew else reload_party(store.graph_path)
    return _aligned(settings, prepared.identity, graph, prepared.built.ids.to_pylist(), organisation)


def kept_identity(store: PartyStore) -> str:
    """Identity of the alignment or collection that a party's graph was made by; empty where there was none.

    Raises:
        RunError: the file is damaged.
    """
    path = store.path / _ALIGNMENT
    return _identity(path) if path.is_file() else ""


def _seed_for_new_tables(store: PartyStore) -> int:
    """Another one where this is not the run's first reading: values of other tables under it would show what changed.

    The job's own seed stays, for everybody knows it.
    """
    begun = store.has_trained() or (store.path / _ALIGNMENT).is_file()
    seed = store.seed()
    return private_seed() if begun and seed >= PUBLIC_SEEDS else seed


def _keep(store: PartyStore, prepared: Prepared, digest: str, seed: int) -> None:
    """The identity goes first and comes last: without it nothing counts as kept. Checkpoints of other graphs go too."""
    store.checkpoints.set_aside_with(
        [store.path / _ALIGNMENT, store.graph_path, store.ids_path, store.path / _ENCODING, store.path / _TABLES]
    )
    store.save_seed(seed)
    begin_new_rounds(store.keeper)
    if prepared.built is not None:
        save_party(prepared.built.graph, store.graph_path)
        store.save_ids(prepared.built.ids.to_pylist())
        write_whole(store.path / _ENCODING, prepared.built.encoding.to_json().encode())
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
    path = store.path / _ALIGNMENT
    mine = _identity(path) if offers and path.is_file() else ""
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
    return _aligned(settings, mine, load_party(store.graph_path), store.ids() or (), organisation)


def _aligned(
    settings: JobSettings, identity: str, graph: PartyGraph, ids: Sequence[str], organisation: Organisation
) -> Aligned:
    label = organisation.settings.nodes.label
    class_names = None if label is None else tuple(label.classes)
    aligned = settings.is_aligned  # where nobody learns how many nodes are common
    refuses = split_by_labels(settings, organisation.settings)
    if aligned and not refuses:
        refuses = refusal_of(organisation, settings, graph.common) or ""
    return Aligned(identity, graph, ids, class_names, refuses)


def _kept_digest(store: PartyStore) -> str | None:
    path = store.path / _TABLES
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _load_encoding(store: PartyStore) -> FeatureEncoding:
    path = store.path / _ENCODING
    try:
        return FeatureEncoding.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: missing or damaged ({error}); predict with a run trained from tables") from error


def _identity(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged ({error}); delete it, and the parties read their tables anew") from error
