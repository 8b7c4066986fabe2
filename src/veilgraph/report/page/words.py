"""The job in words: who takes part with what, how the network is computed, and what that shows to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from veilgraph.core.types import SERVER
from veilgraph.core.words import counted
from veilgraph.protocol.figures import LAST, LOSS
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.record import RecordSettings
from veilgraph.report.page.found import Found, HolderFacts
from veilgraph.report.risks import Risk, risks

_UNSAID: Final = "not said: the job has none (record)"


@dataclass(frozen=True)
class Contribution:
    """A row of the table of parties; cells are empty where something is not known here."""

    party: str
    role: str
    nodes: str
    columns: str
    edges: str
    labels: str


@dataclass(frozen=True)
class Job:
    """The section: sentences, what all messages together tell, the parties' table, and the job file as it is.

    ``record``: what the job says of its purpose, retention and roles, or that it does not; ``risks``: what could go
    wrong.
    """

    sentences: tuple[str, ...]
    reveals: tuple[str, ...]
    contributions: tuple[Contribution, ...]
    source: str
    record: tuple[tuple[str, str], ...]
    risks: tuple[Risk, ...]


def job(found: Found) -> Job:
    """The job of a run, in words."""
    settings = found.settings
    paradigm = paradigm_of(settings)
    contributions = tuple(_contribution(found, holder) for holder in settings.data.names)
    part = paradigm.server_part(settings)
    if found.deals is not None:
        part += f"; certified as {found.deals}"
    server = Contribution(SERVER, part, "none", "none", "none", "none")
    source = (found.path / "job.yaml").read_text(encoding="utf-8", errors="replace")
    sentences, reveals = (*paradigm.describe(settings), _schedule(settings)), tuple(revelations(settings).values())
    record = dict(() if settings.record is None else settings.record.told())
    said = tuple((name, record.get(name, _UNSAID)) for name in RecordSettings.model_fields)
    return Job(sentences, reveals, (*contributions, server), source, said, risks(settings))


def _contribution(found: Found, holder: str) -> Contribution:
    facts, job_ = found.holders.get(holder), found.settings
    part = paradigm_of(job_).part_of(job_, holder)
    if facts is None:
        size = found.table_sizes.get(holder)
        return Contribution(holder, part, "" if size is None else f"{size:,}", "", "", "")
    nodes = f"{facts.nodes:,}"
    if job_.is_aligned and facts.common != facts.nodes:
        nodes += f", {facts.common:,} common"
    return Contribution(
        holder,
        part,
        nodes,
        f"{facts.columns:,}",
        f"{facts.edges:,}" if facts.edges else "none",
        _labels(facts),
    )


def _labels(facts: HolderFacts) -> str:
    if facts.splits is None:
        return "none"
    train, val, test = facts.splits
    classes = "" if facts.classes is None else f"{counted(facts.classes, 'class', 'classes')}: "
    return f"{classes}{train:,} training, {val:,} validation, {test:,} test"


def _schedule(settings: JobSettings) -> str:
    train = settings.train
    by, measures = train.select_by, settings.measures
    epochs = counted(train.epochs, "epoch")
    if by == LAST:
        return f"Training lasts {epochs}; the last model is kept, and no other party is told how it did."
    chosen = "the lowest loss" if by == LOSS else measures.named(by).best
    stop = (
        ""
        if train.patience is None
        else f"; it ends after {counted(train.patience, 'evaluation')} without a better one"
    )
    return f"Training lasts at most {epochs}{stop}. The model with {chosen} on the validation {measures.of} is kept."
