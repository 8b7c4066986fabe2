"""A party's ledger for life: where it lies, what it limits, and who has none.

A saved graph's ledger is beside its file: in the folder ``ledger``, in a folder with the party's name as it was saved,
whatever a job calls it. A party file names its own (``ledger``, ``limits``). Data from memory have the ledger of their
run alone, unless the caller names one. The limits lie in the ledger's folder (``limits.yaml``), so that they hold for
whoever pays from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

import yaml
from pydantic import BaseModel

from veilgraph.core.arguments import check_mapping, path_of, wrong_type
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import private_folder, resolve_unlinked, run_errors, write_whole
from veilgraph.core.types import PartyId
from veilgraph.core.validation import NAME_PATTERN
from veilgraph.core.yaml_file import read_yaml
from veilgraph.graph.party import pack_ids, saved_name, unpack_ids
from veilgraph.privacy.ledger_files import FILE, Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.limits import LimitSettings, is_noised, largest_epsilon, parse_limits, refusal
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.plain_fitting import LedgerPlace
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory

GivenLedgers: TypeAlias = "Mapping[PartyId, str | os.PathLike[str] | Mapping[str, object]]"
"""Holder → folder of its ledger for life; or ``{"folder": ..., "max_epsilon": ...}`` and other limits of ``LIMITS``."""

LIMITS_FILE: Final = "limits.yaml"
LIMITS: Final = ("max_epsilon", "max_delta", "epsilon_unit", "epsilon_neighbours", "min_colluding", "most_neighbours")
"""Keys of a party file's ``limits`` that are about its ledger."""
_FOLDER: Final = "folder"
_PLACE: Final = "ledger_place.json"
_IDS: Final = "ledger_ids"


def limits_in(folder: Path) -> LimitSettings | None:
    """Read the limits in a ledger's folder (limits.yaml); None where there are none. Errors as ``parse_limits``."""
    path = folder / LIMITS_FILE
    return _parse_ledger_limits(read_yaml(path, "file of limits"), str(path)) if path.is_file() else None


def parse_ledgers(ledgers: object, holders: Sequence[PartyId]) -> dict[PartyId, LedgerPlace]:
    """The ledgers that a caller names (``GivenLedgers``, or None) of holders of the job.

    Raises ``ConfigError``: of another type, or of others; or a limit breaks a rule or is not the one in the folder.
    """
    if ledgers is None:
        return {}
    check_mapping("ledgers", ledgers, "holder → folder of its ledger for life")
    assert isinstance(ledgers, Mapping)
    if unknown := sorted(set(ledgers) - set(holders)):
        raise ConfigError(
            f"ledgers: {unknown[0]!r} is not one of the holders {', '.join(holders)}; mend the name", value=unknown[0]
        )
    for name, said in ledgers.items():
        if not isinstance(said, str | os.PathLike | Mapping):
            way_out = "give a path, or {'folder': path, 'max_epsilon': 1.0}"
            raise wrong_type("ledgers", said, "a ledger's folder", way_out, party=name)
    return {name: parse_ledger(f"ledgers.{name}", said, name) for name, said in ledgers.items()}


def parse_ledger(name: PartyId, said: object, party: str) -> LedgerPlace:
    """Parse argument ``name``: a party's ledger folder, or a mapping of it and limits; errors as ``parse_ledgers``."""
    if not isinstance(said, Mapping):
        return LedgerPlace(path_of(name, said, "a ledger's folder").resolve(), party)
    if _FOLDER not in said:
        raise ConfigError(f"{name}: says no folder; give {{'folder': 'ledgers/bank', 'max_epsilon': 1.0}}", key=name)
    folder = path_of(name, said[_FOLDER], "a ledger's folder").resolve()
    stated = {key: value for key, value in said.items() if key != _FOLDER}
    limits = _parse_ledger_limits(stated, name) if stated else None
    kept = limits_in(folder)
    if limits is not None and kept is not None and limits != kept:
        raise ConfigError(
            f"{name}: its limits are others than those in {folder / LIMITS_FILE}, which hold for whoever pays from "
            "that ledger; leave them out, or change the file",
            key=name,
            value=stated,
        )
    return LedgerPlace(folder, party, limits=limits)


def default_ledger_of(path: Path) -> LedgerPlace:
    """The default ledger of a saved graph: ledger/<party> beside its file. Raises ``DataError``: no graph is there."""
    party = saved_name(path)
    name = party if re.fullmatch(NAME_PATTERN, party) else sha256(party.encode("utf-8", "surrogatepass")).hexdigest()
    return LedgerPlace(resolve_unlinked(path).parent / "ledger" / name, party)


def check_apart(places: Mapping[PartyId, LedgerPlace]) -> None:
    """Refuse with ``ConfigError`` two holders of a job that would pay from one ledger."""
    whose: dict[Path, PartyId] = {}
    for holder, each in places.items():
        if (other := whose.setdefault(each.folder, holder)) != holder:
            words = (
                f"ledgers: {other} and {holder} would both pay from {each.folder}; give each one of its own, as in "
                f"ledgers={{'{holder}': 'ledgers/{holder}'}}"
            )
            raise ConfigError(words, code="one-ledger", value=str(each.folder))


def check_own(name: str, said: LedgerPlace, own: LedgerPlace) -> None:
    """Raise ``ConfigError`` if a saved graph is to pay from elsewhere, and its ``own`` ledger has entries or limits."""
    begun = any((own.folder / each).exists() for each in (FILE, LIMITS_FILE))
    if begun and own.folder.resolve() != said.folder:
        raise ConfigError(
            f"{name}: the graph has a ledger beside it, {own.folder}, which counts what was released of it; leave "
            f"{name} out, or move that folder to {said.folder}",
            code="another-ledger",
            key=name,
            value=str(said.folder),
        )


def check_limits(places: Mapping[PartyId, LedgerPlace], settings: JobSettings, nodes: int | None = None) -> None:
    """Refuse with ``ConfigError`` a job that a holder's ledger does not allow; ``nodes`` are common, where known."""
    for holder, each in places.items():
        limits = limits_in(each.folder) or each.limits
        if limits is None:
            continue
        # All paradigms are loaded for their revelations, so for a limit alone.
        everything = {"leakage": tuple(all_revelations()), "max_rounds": 64, "trust": ("dealer", "majority")}
        if (reason := refusal(limits.model_copy(update=everything), settings, holder, nodes)) is not None:
            raise ConfigError(
                f"{holder} refuses the job: {reason} ({each.folder / LIMITS_FILE})", code="refused", party=holder
            )


class _PlaceFile(BaseModel):
    """Content of ledger_place.json: where the ledger is, whose, and whether the rows' ids are in a file beside it."""

    folder: Path
    party: str
    ids: bool


def write_place(store: PartyStore, found: LedgerPlace) -> None:
    """Write a ledger's place, and its ids, into a party's part of a run; its limits into the ledger's folder."""
    keep_limits(found)
    if found.ids is not None:
        store.keeper.put(_IDS, pack_ids(found.ids), {})
    about = _PlaceFile(folder=found.folder, party=found.party, ids=found.ids is not None)
    write_whole(store.path / _PLACE, about.model_dump_json().encode())


def keep_limits(found: LedgerPlace) -> None:
    """Write a place's limits into the ledger's folder (limits.yaml), unless limits are there already."""
    if found.limits is not None and limits_in(found.folder) is None:
        said = found.limits.model_dump(mode="json", include=found.limits.model_fields_set)
        write_whole(private_folder(found.folder) / LIMITS_FILE, yaml.safe_dump(said, sort_keys=False).encode())


def read_place(store: PartyStore) -> LedgerPlace | None:
    """Read the place that ``write_place`` wrote; None where it wrote none. Raises ``RunError``: a file is damaged."""
    path = store.path / _PLACE
    if not path.is_file():
        return None
    with run_errors(path, "restore it, or begin a new run"):
        said, ids = _PlaceFile.model_validate_json(path.read_bytes()), None
        if said.ids:
            held = store.keeper.get(_IDS)
            ids = unpack_ids({} if held is None else held.tensors)
            if ids is None:
                raise KeyError(_IDS)
    return LedgerPlace(said.folder, said.party, ids)


def check_kept(run: RunDirectory, settings: JobSettings) -> None:
    """Refuse to go on with a run whose job a holder's ledger no longer allows; errors as ``check_limits``."""
    found = {name: read_place(run.party(name)) for name in settings.data.names}
    check_limits({name: each for name, each in found.items() if each is not None}, settings)


def holders_without_ledger(settings: JobSettings, lasting: Sequence[PartyId]) -> list[PartyId]:
    """Holders that release something, and pay from the ledger of their run alone: not those in ``lasting``."""
    if not adds_noise(settings):
        return []
    passing = (name for name in settings.data.names if name not in lasting)
    return [name for name in passing if largest_epsilon(settings, name) > 0 or is_noised(settings, name)]


def _parse_ledger_limits(said: object, source: str) -> LimitSettings:
    if isinstance(said, Mapping) and (others := [key for key in said if key not in LIMITS]):
        raise ConfigError(
            f"{source}: {others[0]!r} is no limit of a ledger, which has {', '.join(LIMITS)}; leave it out, or "
            "describe tables in a party file",
            key=source,
            value=str(others[0]),
        )
    return parse_limits(said, source)


def default_marks() -> Path:
    """Where this account keeps what it has seen of ledgers: in XDG_STATE_HOME, or ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "veilgraph" / "ledgers"


def lifetime_of(organisation: Organisation, marks: Path | None = None) -> Lifetime:
    """The ledger of all that an organisation ever released; ``marks`` is the folder of what was seen of it.

    Raises ``RunError`` where it is damaged, older than it was, gone, another party's, or cannot be read or written.
    """
    settings = organisation.settings
    folder = organisation.folder / settings.ledger
    budget = tighter_budget(_budget_of(settings.limits), limits_in(folder))
    return Lifetime(folder, settings.party, budget, Marks(marks or default_marks()))


def lifetime_at(place: LedgerPlace, marks: Path | None = None) -> Lifetime:
    """The ledger of all that a holder without a party file ever released; ``marks`` and errors as ``lifetime_of``."""
    budget = tighter_budget(Budget(), limits_in(place.folder) or place.limits)
    return Lifetime(place.folder, place.party, budget, Marks(marks or default_marks()))


def tighter_budget(budget: Budget, limits: LimitSettings | None) -> Budget:
    """The tighter of a party's budget and its folder's limits; ``ConfigError``: their units or neighbours differ."""
    if limits is None:
        return budget
    other = _budget_of(limits)
    for key, one, two in (("unit", budget.unit, other.unit), ("neighbours", budget.neighbours, other.neighbours)):
        if one and two and one != two:
            raise ConfigError(
                f"limits.epsilon_{key}={one} and {LIMITS_FILE} in the ledger's folder says {two}; a total is about one "
                "thing, so change one of them"
            )
    return Budget(
        min(budget.epsilon, other.epsilon),
        min(budget.delta, other.delta),
        budget.unit or other.unit,
        budget.neighbours or other.neighbours,
    )


def _budget_of(limits: LimitSettings) -> Budget:
    epsilon = float("inf") if limits.max_epsilon is None else limits.max_epsilon
    return Budget(epsilon, limits.max_delta, limits.epsilon_unit, limits.epsilon_neighbours)
