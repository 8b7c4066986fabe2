"""Jobs as version 0.1 spelt them, in today's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from veilgraph.core.former import moved, note
from veilgraph.graph.settings import PARTY_FILE_SUFFIXES
from veilgraph.protocol.job import JobSettings


def present(
    data: Mapping[str, Any], kind: type[JobSettings], others: Iterable[type[JobSettings]], source: str
) -> dict[str, Any]:
    """A job's settings in today's words, not validated yet.

    Args:
        data: of the job file.
        kind: the settings of its paradigm.
        others: those of the other paradigms.
        source: where they were read, for the notes.

    Raises:
        ValueError: a setting is given twice, or another paradigm's network says something.
    """
    return _brought(moved(_without_others(data, kind, others), kind.former, source), source)


def _without_others(
    data: Mapping[str, Any], kind: type[JobSettings], others: Iterable[type[JobSettings]]
) -> dict[str, Any]:
    """The settings less other paradigms' networks: a job file of version 0.1 had all, and those had to say nothing."""
    kept, own = dict(data), kind.former_network
    for other in others:
        key = other.former_network
        if key not in kept or key == own or (key in kind.model_fields and own not in kept):
            continue
        if not _says_nothing(kept.pop(key), other.formerly(other.model_construct().model_dump(mode="json"))[key]):
            raise ValueError(f"{key} is not the network of paradigm={data['paradigm']!r}; leave it out")
    return kept


def _says_nothing(said: object, default: object) -> bool:
    if isinstance(said, dict) and isinstance(default, dict):
        return all(key in default and _says_nothing(each, default[key]) for key, each in said.items())
    return bool(said == default)


def _brought(job: dict[str, Any], source: str) -> dict[str, Any]:
    """``data.parties`` was of graphs, party files and names alike, and a data set beside it was passed over."""
    data = job.get("data")
    parties = data.get("parties") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(parties, dict | list | tuple):
        return job
    job["data"] = data = dict(data)
    if data.pop("dataset", None) not in (None, "digits"):
        note("data.dataset beside data.parties", "nothing: it is not used", source)
    if not isinstance(parties, dict) or (parties and all(each is None for each in parties.values())):
        note("data.parties of names alone", "data.holders", source)
        names = list(parties)
        if data.pop("holders", len(names)) != len(names):
            raise ValueError(f"data.holders and data.parties, which names {len(names)}, differ; leave parties out")
        data.update(holders=names)
        del data["parties"]
    elif not any(str(path).endswith(PARTY_FILE_SUFFIXES) for path in parties.values()):
        note("data.parties of saved graphs", "data.graphs", source)
        data["graphs"] = data.pop("parties")
    return job
