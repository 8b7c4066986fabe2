"""One party's session of a job, from beginning to end: what it opens, keeps on record and closes around its work."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Literal

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.trace import NO_TRACE, AnyTrace, Trace
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.party import load_party
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import TracedLink
from veilgraph.nn.local.build import CustomModel
from veilgraph.privacy.publisher import Publisher
from veilgraph.protocol.acceptance import agree_on_job
from veilgraph.protocol.job import adds_noise
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.organisation import Aligned, Organisation
from veilgraph.protocol.spreading import Machines
from veilgraph.run.attesting import Stands, attesting
from veilgraph.run.computing import compute
from veilgraph.run.ledgers import publisher_of, with_canaries
from veilgraph.run.lifetimes import Lasting, training_alone
from veilgraph.run.part import Part, Sitting, Work
from veilgraph.run.preparing import prepare
from veilgraph.run.run_directory import RunDirectory
from veilgraph.run.sending import Phase, SendingRecord, traffic_rows

log = logging.getLogger("veilgraph")
_SHOWN: Final = 12

SimulatedWork = Work | Literal["restart"]
"""On one machine: to resume, and where a party has lost its checkpoints to begin again."""

_TRAFFIC: Final[dict[Phase, str]] = {
    "align": "alignment_traffic.json",
    "train": "traffic.json",
    "predict": "prediction_traffic.json",
    "audit": "audit_traffic.json",
}


def run_party(part: Part, link: Link, recorder: RecordedLink) -> None:
    """What one party does from beginning to end, once the job is agreed on.

    It reads and writes its own part of the run; the label holder also writes metrics.jsonl and, where every party has
    a run directory of its own, every holder that learns the scores.

    Args:
        part: the party's.
        link: of the party; closed at the end.
        recorder: counts what crosses the wire, beneath or in place of ``link``.
    """
    with _sitting(part, link, recorder) as sitting:
        if part.work == "audit":
            _audit(sitting)
            return
        aligned = _aligned(sitting)
        if part.work == "align":
            sitting.tell()
            return
        with _published(part, aligned) as (aligned, sitting.publisher):
            _log_lifetime(part)
            compute(sitting, aligned)
            _log_lifetime(part)


@contextmanager
def _sitting(part: Part, link: Link, recorder: RecordedLink) -> Iterator[Sitting]:
    """Opens what a session needs; at its end, however it ends, what was sent is on record."""
    store = part.store
    phase: Phase = "train" if part.work == "resume" else part.work
    trace = new_trace(part)
    if isinstance(trace, Trace):
        link = TracedLink(link, trace)
    view = None if part.work == "audit" else store.new_view(part.work)
    if view is not None:
        link = RecordedLink(link, keep=view.append)
    record = SendingRecord(part.settings, store, phase, recorder)
    record.note()
    stands = Stands(part.party, part.lifetime, part.marks, releases=adds_noise(part.settings))
    evidence = attesting(store.path, part.settings, part.party, part.identity, part.names, stands)
    sitting = Sitting(part, link, record, evidence, trace)
    try:
        evidence.open(link)
        yield sitting
    finally:
        link.close()
        if isinstance(trace, Trace):
            trace.write(store.trace_path)
        if view is not None:
            view.close()
        write_whole(store.path / _TRAFFIC[phase], json.dumps(traffic_rows(recorder.traffic())).encode())
        record.close(sitting.publisher.spent())
        evidence.close()


def _audit(sitting: Sitting) -> None:
    part = sitting.part
    if part.auditor is None:
        raise ConfigError("work=audit is done across organisations: give an auditor")
    sitting.record.note()
    part.auditor(part.run, part.party, sitting.link)
    sitting.tell()


def _aligned(sitting: Sitting) -> Aligned:
    """The party's data: of its tables, or as the run was given them."""
    part, store, settings = sitting.part, sitting.part.store, sitting.part.settings
    if settings.data.from_tables:
        anew = part.work == "predict"
        aligned = prepare(store, sitting.link, settings, part.organisation, anew=anew, restarts=part.may_restart)
        done = "read" if not settings.is_aligned else "aligned"
        log.info("the tables are %s: %s", done, aligned.identity[:_SHOWN])
    else:
        graph = None if part.party == SERVER else load_party(store.graph_path)
        aligned = Aligned(graph=graph, ids=store.ids())
    sitting.record.note()
    return aligned


def _log_lifetime(part: Part) -> None:
    """What all of the party's releases come to, in its own log: a refusal tells the others less."""
    if part.lifetime is not None and log.isEnabledFor(logging.INFO):
        log.info("%s", str(part.lifetime))  # as it is now


@contextmanager
def _published(part: Part, aligned: Aligned) -> Iterator[tuple[Aligned, Publisher]]:
    """The party's data, with canaries where the job has any, and the door through which anything of them leaves."""
    store, settings, begun = part.store, part.settings, part.work != "train"
    watched = None
    if aligned.graph is not None:
        graph, watched = with_canaries(store, settings, aligned.graph, begun=begun)
        aligned = replace(aligned, graph=graph)
    lasting = None
    if part.lifetime is not None and aligned.graph is not None:
        lasting = Lasting(part.lifetime, aligned.ids if part.place is None else part.place.ids)
    with (
        publisher_of(
            store, settings, aligned.graph, part.limit, begun=begun, alignment=aligned.identity, lasting=lasting
        ) as publisher,
        training_alone(lasting if part.work in ("train", "resume") else None, settings) as busy,
    ):
        aligned = replace(aligned, refuses=aligned.refuses or busy)
        if watched is not None:
            publisher.watched = watched
        yield aligned, publisher


def new_trace(part: Part) -> AnyTrace:
    """The trace of a training that is profiled; else one that notes nothing."""
    if part.work not in ("train", "resume") or not part.store.trace_path.is_file():
        return NO_TRACE
    return Trace(part.party, 1 + (*part.settings.data.names, SERVER).index(part.party))


def run_simulated(
    run: RunDirectory,
    party: PartyId,
    work: SimulatedWork,
    link: Link,
    custom: CustomModel | None = None,
    machines: Machines | None = None,
) -> None:
    """What one party does where all parties share a machine and a run directory."""
    settings, recorder = run.settings, RecordedLink(link)
    organisation = None
    if settings.data.from_tables:
        organisation = None if party == SERVER else Organisation.read((settings.data.parties or {})[party], party)
        agree_on_job(recorder, settings, party, organisation)
    limits = LimitSettings() if organisation is None else organisation.settings.limits
    restarts = work == "restart" or limits.restart
    done: Work = "resume" if work == "restart" else work
    run_party(Part(run, party, done, custom, organisation, machines, restarts), recorder, recorder)
