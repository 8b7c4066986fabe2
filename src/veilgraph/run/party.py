"""What one party of a job does from beginning to end."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.randomness import LearningStreams, system_secrets
from veilgraph.core.trace import NO_TRACE, AnyTrace, Trace
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.party import load_party
from veilgraph.link.identity import Identity
from veilgraph.link.recorded import RecordedLink
from veilgraph.link.traced import TracedLink
from veilgraph.link.view import ViewFile
from veilgraph.nn.network import CustomModel
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.privacy.publish import Publisher
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Judge
from veilgraph.protocol.limits import LimitSettings, delta_too_large
from veilgraph.protocol.organisation import Aligned, Organisation, agree_on_job
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.role import Role, Session
from veilgraph.run.attesting import attesting
from veilgraph.run.fitting import Fitted, fit, infer
from veilgraph.run.ledgers import LEDGER_SUMMARY, AnyPublisher, publisher_of, spent, with_canaries
from veilgraph.run.predictions import save_predictions
from veilgraph.run.preparing import prepare
from veilgraph.run.run_directory import (
    PartyStore,
    Record,
    RunDirectory,
    load_tensors,
    save_tensors,
)
from veilgraph.run.sending import Phase, SendingRecord, traffic_rows
from veilgraph.run.spread import Machines, spread

log = logging.getLogger("veilgraph")
_SHOWN: Final = 12
_OWN_NAMES: Final[Mapping[PartyId, str]] = MappingProxyType({})

Work = Literal["align", "train", "resume", "predict", "audit"]
Auditor = Callable[[RunDirectory, PartyId, Link], None]
"""What a party does in an audit across organisations; the room of audits is above this one."""
SimulatedWork = Work | Literal["restart"]
"""On one machine: to resume, and where a party has lost its checkpoints to begin again."""

_TRAFFIC: Final[dict[Work, str]] = {
    "align": "alignment_traffic.json",
    "train": "traffic.json",
    "resume": "traffic.json",
    "predict": "prediction_traffic.json",
    "audit": "audit_traffic.json",
}
_PHASES: Final[dict[Work, Phase]] = {
    "align": "align",
    "train": "train",
    "resume": "train",
    "predict": "predict",
    "audit": "audit",
}


def run_party(
    run: RunDirectory,
    party: PartyId,
    work: Work,
    link: Link,
    recorder: RecordedLink,
    *,
    custom: CustomModel | None = None,
    organisation: Organisation | None = None,
    machines: Machines | None = None,
    restarts: bool = False,
    identity: Identity | None = None,
    names: Mapping[PartyId, str] = _OWN_NAMES,
    auditor: Auditor | None = None,
) -> None:
    """What one party does from beginning to end, once the job is agreed on.

    It reads and writes its own part of the run; the label holder also writes metrics.jsonl and, where every party has
    a run directory of its own, every holder that learns the scores.

    Args:
        run: directory of the run.
        party: a holder or the server.
        work: align only; train from the start; resume from the newest common checkpoint; predict; or audit.
        link: of the party; closed at the end.
        recorder: counts what crosses the wire, beneath or in place of ``link``.
        custom: for ``model.local.model: custom``.
        organisation: the holder's own tables, where the job is from tables.
        machines: of the holder, where several share its local part.
        restarts: the party lets what it has trained be replaced, where the job cannot go on from it.
        identity: with which it signs its records; None on one machine, where nothing is signed.
        names: party → the name in its certificate, where that is another one.
        auditor: with ``work`` audit.
    """
    settings, store = run.settings, run.party(party)
    restarts = restarts or work == "predict" or not store.checkpoints.has_trained()
    trace = _new_trace(run, party, work)
    if isinstance(trace, Trace):
        link = TracedLink(link, trace)
    recorded = None if work == "audit" else store.new_view(work)
    view = None if recorded is None else ViewFile(*recorded)
    if view is not None:
        link = RecordedLink(link, keep=view.append)
    record = SendingRecord(settings, store, _PHASES[work], recorder)
    record.note()
    evidence = attesting(store.path, settings, party, identity, names)
    publisher: AnyPublisher | None = None

    def tell() -> None:
        """Once nothing of its data will be sent any more: what it sent goes on record, and the others hear of it."""
        record.end_block(None if publisher is None else publisher.spent())
        evidence.tell(link)

    try:
        evidence.open(link)
        if work == "audit":
            if auditor is None:
                raise ConfigError("work=audit is done across organisations: give an auditor")
            record.note()
            auditor(run, party, link)
            tell()
            return
        if settings.data.from_tables:
            aligned = prepare(store, link, settings, organisation, anew=work == "predict", restarts=restarts)
            done = "read" if not settings.is_aligned else "aligned"
            log.info("the tables are %s: %s", done, aligned.identity[:_SHOWN])
        else:
            graph = None if party == SERVER else load_party(store.graph_path)
            aligned = Aligned(graph=graph, ids=store.ids())
        record.note()
        if work == "align":
            tell()
        else:
            limit = None if organisation is None else organisation.settings.limits.max_epsilon
            with _published(store, settings, aligned, limit, begun=work != "train") as (aligned, publisher):
                _compute(run, party, work, link, custom, aligned, record, publisher, trace, machines, restarts, tell)
    finally:
        link.close()
        if isinstance(trace, Trace):
            trace.write(store.trace_path)
        if view is not None:
            view.close()
        write_whole(store.path / _TRAFFIC[work], json.dumps(traffic_rows(recorder.traffic())).encode())
        record.close(None if publisher is None else publisher.spent())
        evidence.close()


@contextmanager
def _published(
    store: PartyStore, settings: JobSettings, aligned: Aligned, limit: float | None, *, begun: bool
) -> Iterator[tuple[Aligned, AnyPublisher | None]]:
    """The party's data, with canaries where the job has any, and the door through which anything of them leaves."""
    watched = None
    if aligned.graph is not None:
        graph, watched = with_canaries(store, settings, aligned.graph, begun=begun)
        aligned = replace(aligned, graph=graph)
    with publisher_of(store, settings, aligned.graph, limit, begun=begun, alignment=aligned.identity) as publisher:
        if isinstance(publisher, Publisher):
            publisher.watched = watched
        yield aligned, publisher


def _new_trace(run: RunDirectory, party: PartyId, work: Work) -> AnyTrace:
    if work not in ("train", "resume") or not run.party(party).trace_path.is_file():
        return NO_TRACE
    return Trace(party, 1 + (*run.settings.data.names, SERVER).index(party))


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
        path = None if party == SERVER else (settings.data.parties or {})[party]
        organisation = None if path is None else Organisation.read(path, party)
        agree_on_job(recorder, settings, party, organisation)
    limits = LimitSettings() if organisation is None else organisation.settings.limits
    run_party(
        run,
        party,
        "resume" if work == "restart" else work,
        recorder,
        recorder,
        custom=custom,
        organisation=organisation,
        machines=machines,
        restarts=work == "restart" or limits.restart,
    )


def _refuses(settings: JobSettings, aligned: Aligned) -> str:
    """Why the party does not go on with the nodes that it has in common with the others; empty when it does."""
    return aligned.refuses or ("" if aligned.graph is None else delta_too_large(settings, aligned.graph.common))


def _compute(
    run: RunDirectory,
    party: PartyId,
    work: Work,
    link: Link,
    custom: CustomModel | None,
    aligned: Aligned,
    record: SendingRecord,
    publisher: AnyPublisher | None,
    trace: AnyTrace,
    machines: Machines | None,
    restarts: bool,
    tell: Callable[[], None],
) -> None:
    settings, store = run.settings, run.party(party)
    streams = LearningStreams(store.seed(), party)
    noise = publisher if isinstance(publisher, Publisher) else None
    session = Session(
        settings, link, streams, system_secrets, aligned.identity, _refuses(settings, aligned), noise, trace, restarts
    )
    local = publisher if isinstance(publisher, LocalPublisher) else None
    cast = PARADIGMS[settings.paradigm].cast(session, store.path, aligned, custom, local)
    role, alone = cast.role, settings.learns_alone
    writes = isinstance(role, Judge) and (role.reports or settings.data.is_apart)
    with spread(role, machines), closing(role):
        if work == "predict":
            role.infer_only()
            role.setup([])
            cast.keep()
            if alone:
                tell()
            role.load_weights(load_tensors(store.model_path)[0])
            infer(role, 0)
        else:

            def begin(epoch: int, last: int) -> None:
                cast.keep()
                if alone:  # the others are done: they do not wait for what it learns
                    tell()
                log.info("training begins after epoch %d", epoch)
                if last < settings.train.epochs:
                    log.warning("the privacy budget ends training after epoch %d of %d", last, settings.train.epochs)
                if writes:
                    run.begin_metrics(epoch)

            def log_epoch(epoch_record: Record) -> None:
                if writes:
                    run.append_metrics(epoch_record)

            def saved(epoch: int) -> None:
                record.note(None if publisher is None else publisher.spent())
                log.info("epoch %d of at most %d", epoch, settings.train.epochs)
                settle()

            def settle() -> None:
                if writes and store.checkpoints.is_settled():
                    run.settle_metrics()

            held = [] if cast.begins_anew else store.checkpoints.points(restarts=restarts)
            fitted = fit(role, store, held, begin=begin, log=log_epoch, saved=saved)
            save_tensors(store.model_path, role.weights(), {})
            store.checkpoints.settle()
            settle()
            write_whole(store.path / "result.json", json.dumps(_result(role, fitted)).encode())
        if publisher is not None:
            write_whole(store.path / LEDGER_SUMMARY, json.dumps(spent(publisher)).encode())
        if isinstance(role, Judge):
            ids = None if aligned.ids is None else aligned.ids[: role.graph.common]
            save_predictions(store, role.logits.detach().softmax(dim=1), ids, aligned.class_names)
    if not alone:
        tell()


def _result(role: Role, fitted: Fitted) -> Record:
    if not isinstance(role, Judge):
        return {"started_at": fitted.started_at}
    alone = role.without_releases()
    return {
        "nodes": role.graph.common,
        "best_epoch": fitted.judgement.best_epoch,
        **role.scores(everything=True).summary(),
        **({} if alone is None else {"without_releases": alone}),
        "started_at": fitted.started_at,
    }
