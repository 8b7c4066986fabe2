"""One party's session of a job: what it brings, opens, computes, keeps on record and closes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from veilgraph.core.errors import ConfigError, VeilgraphError
from veilgraph.core.files import write_json
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import load_facts
from veilgraph.core.trace import NO_TRACE, AnyTrace, Trace
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.party import load_party, reload_party
from veilgraph.link.identity import Identity
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import TracedLink
from veilgraph.nn.local.build import CustomModel
from veilgraph.privacy.aggregation import delta_of_too_many, too_many_units
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.protocol.acceptance import agree_on_job
from veilgraph.protocol.agreement import Point
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.judge import Judge, Judgement, Predicted
from veilgraph.protocol.limits import delta_too_large
from veilgraph.protocol.organisation import Aligned, Organisation, Preparation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import LedgerPlace
from veilgraph.protocol.role import Machines, Role, RoleContext, installed_spreading
from veilgraph.runtime.session.answering import answer
from veilgraph.runtime.session.exchange import PeerHeads, RecordExchange
from veilgraph.runtime.session.preparation import prepare
from veilgraph.runtime.session.publishers import LifetimeAccount, publisher_of, with_canaries
from veilgraph.runtime.session.training import fit, infer
from veilgraph.runtime.session.witness import recorded
from veilgraph.runtime.store import ALONE, LEDGER_SUMMARY
from veilgraph.runtime.store.lifetime import lifetime_at, lifetime_of, limits_in, read_place
from veilgraph.runtime.store.predictions import (
    CALIBRATION,
    SEPARATOR,
    calibration_in,
    check_named,
    forget_named,
    named_nodes,
    save_predictions,
)
from veilgraph.runtime.store.run_directory import TABLES, PartyStore, Record, RunDirectory, load_tensors, save_tensors
from veilgraph.runtime.store.session_log import (
    Phase,
    TrafficLog,
    installed_software,
    record_software,
    traffic_rows,
)

Work = Literal["align", "train", "resume", "predict", "answer", "audit"]
Auditor = Callable[[RunDirectory, PartyId, Link], None]
"""What a party does in an audit across organisations; the room of audits is above this one."""


@dataclass(frozen=True)
class SessionSpec:
    """One party's session: of which run, what work it does, and what it brings.

    Attributes:
        machines: of the holder, where several share its local part.
        restarts: the party lets what it has trained be replaced, where the job cannot go on from it.
        identity: with which it signs its records; None on one machine, where nothing is signed.
        names: party → the name in its certificate, where that is another one.
        marks: folder of what the party has seen of its lifetime ledger; None: its account's.
    """

    run: RunDirectory
    party: PartyId
    work: Work
    custom: CustomModel | None = None
    organisation: Organisation | None = None
    machines: Machines | None = None
    restarts: bool = False
    identity: Identity | None = None
    names: Mapping[PartyId, str] = field(default_factory=dict)
    auditor: Auditor | None = None
    marks: Path | None = None

    @property
    def settings(self) -> JobSettings:
        """The job."""
        return self.run.settings

    @cached_property
    def store(self) -> PartyStore:
        """The party's own part of the run."""
        return self.run.party(self.party)

    @cached_property
    def may_restart(self) -> bool:
        """Whether training may begin again from nothing: by ``restarts``, to predict, or if it trained nothing."""
        return self.restarts or self.work == "predict" or not self.store.has_trained()

    @cached_property
    def lifetime(self) -> Lifetime | None:
        """The ledger of all that the party ever released; None where the job releases nothing, or it has none."""
        if not adds_noise(self.settings):
            return None
        if (own := self.organisation) is not None:
            # Whose tables are the run's own copy, and who named no ledger, has nothing beyond the run.
            copied = own.folder == (self.run.party_path(self.party) / TABLES).resolve()
            copied = copied and "ledger" not in own.settings.model_fields_set
            return None if copied else lifetime_of(own, self.marks)
        return None if self.place is None else lifetime_at(self.place, self.marks)

    @cached_property
    def place(self) -> LedgerPlace | None:
        """Where the lifetime ledger of a holder's graph is; None without one, with a party file, and at the server."""
        return None if self.organisation is not None or self.party == SERVER else read_place(self.store)

    @property
    def limit(self) -> float | None:
        """The largest total ε that the party itself accepts; None where it states none."""
        if self.organisation is not None:
            return self.organisation.settings.limits.max_epsilon
        limits = None if self.place is None else limits_in(self.place.folder)
        return None if limits is None else limits.max_epsilon


@dataclass
class Session:
    """A party at work, in one session.

    What crosses ``link`` is counted and, where the run says so, kept and timed: ``record`` is of what it sends,
    ``evidence`` are statements of that. ``publisher`` is set while its ledgers are open.
    """

    part: SessionSpec
    link: Link
    record: TrafficLog
    evidence: RecordExchange
    trace: AnyTrace
    publisher: Publisher = OPEN

    def tell(self) -> None:
        """Record what was sent, and exchange statements of it; to be called once no more of its data is sent."""
        self.record.end_block(self.publisher.spent())
        self.evidence.tell(self.link)


log = logging.getLogger("veilgraph")

SimulatedWork = Work | Literal["restart"]
"""On one machine: to resume, and where a party has lost its checkpoints to begin again."""

_TRAFFIC: Final[dict[Phase, str]] = {
    "align": "alignment_traffic.json",
    "train": "traffic.json",
    "predict": "prediction_traffic.json",
    "answer": "answer_traffic.json",
    "audit": "audit_traffic.json",
}


def run_party(part: SessionSpec, link: Link, recorder: RecordedLink) -> None:
    """Run one party's session from beginning to end, once the job is agreed on; ``link`` is closed at the end.

    It reads and writes its own part of the run; a holder that learns the scores also writes metrics.jsonl, where it has
    a run directory of its own or labels. ``recorder`` counts what crosses the wire, beneath or in place of ``link``.
    """
    with _open_session(part, link, recorder) as session:
        if part.work == "audit":
            if part.auditor is None:
                raise ConfigError("work=audit is done across organisations: give an auditor")
            session.record.note()
            part.auditor(part.run, part.party, session.link)
            session.tell()
            return
        if part.work == "answer":
            session.record.note()
            role = paradigm_of(part.settings).session.role(_role_context(session, Aligned()), Aligned())
            answer(role, part.store, session.record)
            return
        aligned = _load_data(session)
        if part.work == "align":
            session.tell()
            return
        with _with_publisher(part, aligned) as (aligned, session.publisher):
            _log_lifetime(part)
            compute(session, aligned)
            _log_lifetime(part)


@contextmanager
def _open_session(part: SessionSpec, link: Link, recorder: RecordedLink) -> Iterator[Session]:
    """Exchange statements, and yield the session; at its end, however it ends, record traffic, view and trace."""
    store = part.store
    phase: Phase = "train" if part.work == "resume" else part.work
    trace: AnyTrace = NO_TRACE
    if phase == "train" and store.trace_path.is_file():
        trace = Trace(part.party, 1 + (*part.settings.data.names, SERVER).index(part.party))
        link = TracedLink(link, trace)
    view = None if part.work in ("answer", "audit") else store.new_view(part.work)
    if view is not None:
        link = RecordedLink(link, keep=view.append)
    record = TrafficLog(part.settings, store, phase, recorder)
    record.note()
    peer_heads = PeerHeads(part.party, part.lifetime, part.marks, releases=adds_noise(part.settings))
    evidence = RecordExchange(store.path, part.settings, part.party, part.identity, part.names, peer_heads)
    session = Session(part, link, record, evidence, trace)
    try:
        evidence.open(link)
        yield session
    finally:
        link.close()
        if isinstance(trace, Trace):
            trace.write(store.trace_path)
        if view is not None:
            view.close()
        write_json(store.path / _TRAFFIC[phase], traffic_rows(recorder.traffic()))
        record.close(session.publisher.spent())
        evidence.close()


def _load_data(session: Session) -> Aligned:
    """Read and align the party's tables, or load the graph that the run has."""
    part, store, settings = session.part, session.part.store, session.part.settings
    if settings.data.from_tables:
        own = Preparation(session.link, settings, LearningStreams(store.seed(), part.party), part.organisation)
        aligned = prepare(store, own, anew=part.work == "predict", restarts=part.may_restart)
        done = "read" if not settings.is_aligned else "aligned"
        log.info("the tables are %s: %s", done, aligned.identity[:12])
    else:
        # A training begins with graphs that the job's data or Python's gave: those were checked before they were saved.
        checked = part.work == "train" and settings.data.graphs is not None
        read = reload_party if checked else load_party
        graph = None if part.party == SERVER else read(store.graph_path)
        aligned = Aligned(graph=graph, ids=store.ids())
    session.record.note()
    return aligned


def _log_lifetime(part: SessionSpec) -> None:
    if part.lifetime is not None and log.isEnabledFor(logging.INFO):
        log.info("%s", str(part.lifetime))  # as it is now


@contextmanager
def _with_publisher(part: SessionSpec, aligned: Aligned) -> Iterator[tuple[Aligned, Publisher]]:
    """Yield the party's data, with canaries where the job has any, and the publisher of what it releases."""
    store, settings, begun = part.store, part.settings, part.work != "train"
    watched = None
    if aligned.graph is not None:
        graph, watched = with_canaries(store, settings, aligned.graph, begun=begun)
        aligned = replace(aligned, graph=graph)
    lasting = None
    if part.lifetime is not None and aligned.graph is not None:
        ids = aligned.ids if part.place is None else part.place.ids
        if ids is not None and settings.inputs.joins_others:
            ids = ids[: aligned.graph.common]  # others' nodes are nobody of its own
        lasting = LifetimeAccount(part.lifetime, ids)
    with publisher_of(
        store, settings, aligned.graph, part.limit, begun=begun, alignment=aligned.identity, lasting=lasting
    ) as publisher:
        if watched is not None:
            publisher.watched = watched
        yield aligned, publisher


def run_simulated(
    run: RunDirectory,
    party: PartyId,
    work: SimulatedWork,
    link: Link,
    custom: CustomModel | None = None,
    machines: Machines | None = None,
) -> None:
    """Run one party's session where all parties share this machine and ``run``; with tables, agree on the job first."""
    settings, recorder = run.settings, RecordedLink(link)
    organisation = None
    if settings.data.from_tables:
        organisation = None if party == SERVER else Organisation.read((settings.data.parties or {})[party], party)
        agree_on_job(recorder, settings, party, organisation)
    restarts = work == "restart" or (organisation is not None and organisation.settings.limits.restart)
    done: Work = "resume" if work == "restart" else work
    versions = installed_software()
    record_software(run.party_path(party), done, dict.fromkeys((*settings.data.names, SERVER), versions))
    run_party(SessionSpec(run, party, done, custom, organisation, machines, restarts), recorder, recorder)


TOLD_EVERY_S: Final = 30.0
"""So long at most, or an epoch if that is longer, a party's log says nothing of how far it is."""


def compute(session: Session, aligned: Aligned) -> None:
    """Train or predict with the other parties; write what the ledger comes to and, at a judge, the predictions."""
    part, context = session.part, _role_context(session, aligned)
    is_signed = part.settings.passes.signed and part.work != "predict"
    server_name = part.names.get(SERVER, SERVER)
    kept = recorded(context, part.store.path, aligned.graph, part.identity, server_name) if is_signed else None
    with nullcontext(context) if kept is None else kept as context:
        _compute(session, context, aligned)


def _compute(session: Session, context: RoleContext, aligned: Aligned) -> None:
    part, store, paradigm = session.part, session.part.store, paradigm_of(session.part.settings)
    aligned = paradigm.session.release(context, aligned)
    role = paradigm.session.role(context, aligned)
    with spread(role, part.machines), closing(role):
        if part.work == "predict":
            _predict(session, role)
        else:
            leave = part.may_restart or part.settings.passes.learns_alone  # then nobody else is taken back
            _train(session, role, [] if aligned.released_now else store.checkpoints.points(restarts=leave))
        if (account := session.publisher.account()) is not None:
            account = {**account, "lasting": part.lifetime is not None}
            write_json(store.path / LEDGER_SUMMARY, account)
        if isinstance(role, Judge):
            predicted = role.predictions()
            save_predictions(
                store,
                predicted,
                _predicted_ids(role, aligned.written or aligned.ids, predicted),
                aligned.class_names,
                alike=_predicted_ids(role, aligned.ids, predicted) if aligned.written else None,
                calibration=calibration_in(load_facts(store.model_path)),
            )
            forget_named(store)
    if not part.settings.passes.learns_alone:
        session.tell()  # a party that states its records has ended its work
    store.checkpoints.end()
    if part.work != "predict" and isinstance(role, Judge):
        _compare_with_alone(role, part)  # nobody waits for it any more


def _compare_with_alone(role: Judge, part: SessionSpec) -> None:
    """Write what the holder reaches by itself to alone.json; an error is logged alone, since the run is complete."""
    try:
        found = role.alone()
    except VeilgraphError as error:
        log.warning("%s: what it would reach alone is not known: %s", part.party, error)
        return
    if found is not None:
        write_json(part.store.path / ALONE, found)


def _predicted_ids(role: Judge, ids: Sequence[str] | None, predicted: Predicted) -> list[str] | None:
    """A name for each row of predictions: its own, of several nodes their ids joined by tabs, or the node's id."""
    if predicted.names is not None:
        return list(predicted.names)
    if predicted.rows is not None:
        named = [str(row) for row in range(role.graph.num_nodes)] if ids is None else ids
        words = [text.replace(SEPARATOR, " ") for text in named]
        return [SEPARATOR.join(words[row] for row in rows) for rows in predicted.rows.tolist()]
    if ids is None:
        return None
    common = list(ids[: role.graph.common])
    if predicted.prepared:  # of all, to be asked for by
        return common
    return common if predicted.nodes is None else [common[node] for node in predicted.nodes.tolist()]


def _role_context(session: Session, aligned: Aligned) -> RoleContext:
    part, store = session.part, session.part.store
    outcome = part.settings.outcome
    names = part.work == "predict" and outcome.predicts_named and not outcome.keeps_shares and aligned.graph is not None
    return RoleContext(
        part.settings,
        session.link,
        LearningStreams(part.store.seed(), part.party),
        system_secrets,
        alignment=aligned.identity,
        refuses=_refuses(part, aligned),
        publisher=session.publisher,
        trace=session.trace,
        restarts=part.may_restart,
        answers=part.work == "answer",
        asked=named_nodes(store, aligned) if names else None,
        keeper=store.keeper,
        custom=part.custom,
    )


def _refuses(part: SessionSpec, aligned: Aligned) -> str:
    """Why the party takes no part with these data; empty if it does."""
    graph, job = aligned.graph, part.settings
    if aligned.refuses or graph is None:
        return aligned.refuses
    budget = None if part.lifetime is None else part.lifetime.budget
    has_delta = part.party in job.duties.noising and not job.noise.counts_votes
    units, own_delta = too_many_units(job.privacy, graph) if has_delta else "", ""
    if budget is not None and math.isfinite(budget.epsilon):  # at whose δ none of its units may go unprotected
        own_delta = delta_of_too_many(budget.delta, budget.unit or "node", graph, "limits.max_delta")
    if reason := delta_too_large(job, graph.common) or units or own_delta:
        return reason
    own = None if part.organisation is None else part.organisation.settings.limits.most_neighbours
    if own is None or job.inputs.degree_rules.get(part.party) is None:
        return ""
    if paradigm_of(job).privacy.most_edges_at_a_node(graph) <= own:
        return ""
    return (  # in all jobs alike
        "a node of its graph has more neighbours than limits.most_neighbours: raise that, or have the edges exported "
        "with fewer at a node, a choice that no ε covers"
    )


def _predict(session: Session, role: Role) -> None:
    """Set the role up for inference, load the trained weights, and make the forward passes."""
    part = session.part
    role.infer_only()
    role.setup([])
    if not part.settings.data.is_apart:
        check_named(part.run)
    role.keep()
    if part.settings.passes.learns_alone:
        session.tell()
    role.model.load_weights(load_tensors(part.store.model_path)[0])
    infer(role, 0)


def _train(session: Session, role: Role, held: list[Point]) -> None:
    """Train, writing metrics and logging progress; then save the model, what it releases, and result.json."""
    part, store, epochs, told = session.part, session.part.store, session.part.settings.train.epochs, time.monotonic()
    writes = isinstance(role, Judge) and (role.reports or part.settings.data.is_apart)
    metrics = part.run if writes else None

    def begin(epoch: int, last: int) -> None:
        if part.settings.passes.learns_alone:  # the others are done: they do not wait for what it learns
            session.tell()
        log.info("training begins after epoch %d", epoch)
        if last < epochs:
            log.warning("the privacy budget ends training after epoch %d of %d", last, epochs)
        if metrics is not None:
            metrics.begin_metrics(epoch)

    def log_epoch(epoch_record: Record) -> None:
        if metrics is not None:
            metrics.append_metrics(epoch_record)

    def settle() -> None:
        if metrics is not None and store.checkpoints.is_settled():
            metrics.settle_metrics()

    def done(epoch: int, kept: bool) -> None:
        nonlocal told
        if kept:
            session.record.note(session.publisher.spent())
            settle()
        if kept or time.monotonic() - told >= TOLD_EVERY_S:
            told = time.monotonic()
            log.info("epoch %d of at most %d", epoch, epochs)

    started, judgement = fit(role, store.checkpoints, held, begin=begin, log=log_epoch, done=done)
    # What the model's later predictions are calibrated by as well is kept with its weights.
    found = role.calibration(role.predictions().probabilities) if isinstance(role, Judge) else None
    save_tensors(store.model_path, role.model.weights(), {} if found is None else {CALIBRATION: asdict(found)})
    if released := role.model.opened:
        save_tensors(store.released_path, released, {})
    store.checkpoints.settle()
    settle()
    write_json(store.path / "result.json", _result_record(role, started, judgement))


def _result_record(role: Role, started: int, judgement: Judgement) -> Record:
    """Content of result.json: ``started_at`` and, at a judge, the nodes, the best epoch and the scores."""
    found: Record = {}
    if isinstance(role, Judge):
        found = {"nodes": role.graph.common, "best_epoch": judgement.best_epoch, **role.scores(everything=True).values}
        if (alone := role.without_releases()) is not None:
            found["without_releases"] = alone
    return {**found, "started_at": started}


def check_spread(settings: JobSettings) -> None:
    """Refuse with ``ConfigError`` a job whose holders cannot have several machines, or lack what computes on them."""
    reason = paradigm_of(settings).session.unspreadable(settings)
    if reason is not None:
        raise ConfigError(reason)
    installed_spreading()


def spread(role: Role, machines: Machines | None) -> AbstractContextManager[None]:
    """A block in which a holder's local part, not yet set up, is computed on several machines, if any.

    Raises ``ConfigError``: there is no such part, or nothing to spread it; ``LinkError``: a machine is not there.
    """
    if machines is None:
        return nullcontext()
    session = role.session
    check_spread(session.settings)
    if (part := paradigm_of(session.settings).session.local_part(role)) is None:
        raise ConfigError(f"machines: {session.link.party} has no graph to share; leave them out")
    return installed_spreading().spread(part, machines, session.link.party, session.settings.timeout_s)
