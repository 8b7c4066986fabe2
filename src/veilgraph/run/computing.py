"""What one party computes: a training, or an inference with what was trained, and what it writes down of them."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Final

from veilgraph.core.errors import VeilgraphError
from veilgraph.core.files import write_whole
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import load_facts
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.aggregation import delta_of_too_many, too_many_units
from veilgraph.protocol.judge import Judge, Predicted
from veilgraph.protocol.limits import delta_too_large
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.resumption import Point
from veilgraph.protocol.role import Role, Session
from veilgraph.run.fitting import Fitted, fit, infer
from veilgraph.run.launch import spread
from veilgraph.run.ledgers import LEDGER_SUMMARY
from veilgraph.run.lifetimes import release_streams
from veilgraph.run.part import Part, Sitting
from veilgraph.run.predictions import (
    CALIBRATION,
    SEPARATOR,
    calibration_in,
    forget_named,
    named_nodes,
    save_predictions,
)
from veilgraph.run.run_directory import Record, load_tensors, save_tensors

ALONE: Final = "alone.json"
"""What a holder of own nodes reaches with the others, and by itself."""
log: Final = logging.getLogger("veilgraph")

TOLD_EVERY_S: Final = 30.0
"""So long at most, or an epoch if that is longer, a party's log says nothing of how far it is."""


def compute(sitting: Sitting, aligned: Aligned) -> None:
    """Trains, or predicts, with the other parties."""
    part, store = sitting.part, sitting.part.store
    session, paradigm = _session(sitting, aligned), paradigm_of(part.settings)
    aligned = paradigm.session.release(session, aligned)
    role = paradigm.session.role(session, aligned)
    with spread(role, part.machines), closing(role):
        if part.work == "predict":
            _predict(sitting, role)
        else:
            released_now = aligned.releases is not None and aligned.releases.is_new  # no checkpoint is of it
            leave = part.may_restart or part.settings.passes.learns_alone  # then nobody else is taken back
            _train(sitting, role, [] if released_now else store.checkpoints.points(restarts=leave))
        if (account := sitting.publisher.account()) is not None:
            account = {**account, "lasting": part.lifetime is not None}
            write_whole(store.path / LEDGER_SUMMARY, json.dumps(account).encode())
        if isinstance(role, Judge):
            predicted = role.predictions()
            save_predictions(
                store,
                predicted.probabilities,
                _predicted_ids(role, aligned.written or aligned.ids, predicted),
                aligned.class_names,
                predicted.nodes,
                predicted.columns,
                predicted.keys,
                alike=_predicted_ids(role, aligned.ids, predicted) if aligned.written else None,
                classes_alone=predicted.classes_alone,
                calibration=calibration_in(load_facts(store.model_path)),
            )
            forget_named(store)
    if not part.settings.passes.learns_alone:
        sitting.tell()  # a party that states its records has ended its work
    store.checkpoints.end()
    if part.work != "predict" and isinstance(role, Judge):
        _compare_with_alone(role, part)  # nobody waits for it any more


def _compare_with_alone(role: Judge, part: Part) -> None:
    """Note what the holder reaches by itself; a run that is complete stays so where that fails."""
    try:
        found = role.alone()
    except VeilgraphError as error:
        log.warning("%s: what it would reach alone is not known: %s", part.party, error)
        return
    if found is not None:
        write_whole(part.store.path / ALONE, json.dumps(found).encode())


def _predicted_ids(role: Judge, ids: Sequence[str] | None, predicted: Predicted) -> list[str] | None:
    if predicted.names is not None:
        return list(predicted.names)
    if predicted.rows is not None:
        named = [str(row) for row in range(role.graph.num_nodes)] if ids is None else ids
        words = [text.replace(SEPARATOR, " ") for text in named]
        return [SEPARATOR.join(words[row] for row in rows) for rows in predicted.rows.tolist()]
    if ids is None:
        return None
    common = list(ids[: role.graph.common])
    return common if predicted.nodes is None else [common[node] for node in predicted.nodes.tolist()]


def _session(sitting: Sitting, aligned: Aligned) -> Session:
    part, store = sitting.part, sitting.part.store
    names = part.work == "predict" and part.settings.outcome.predicts_named and aligned.graph is not None
    return Session(
        part.settings,
        sitting.link,
        _streams(part),
        system_secrets,
        alignment=aligned.identity,
        refuses=_refuses(part, aligned),
        publisher=sitting.publisher,
        trace=sitting.trace,
        restarts=part.may_restart,
        asked=named_nodes(store, aligned) if names else None,
        keeper=store.keeper,
        custom=part.custom,
    )


def _streams(part: Part) -> LearningStreams:
    """The party's; where it releases once, the same in every job: what is released then depends on its data alone."""
    settings, privacy = part.settings, part.settings.privacy
    of_job = part.organisation is not None and part.organisation.settings.seed == "job"
    if (
        part.lifetime is None
        or privacy is None
        or not privacy.once
        or part.party not in settings.duties.publishing
        or of_job
    ):
        return LearningStreams(part.store.seed(), part.party)
    return release_streams(part.lifetime)


def _refuses(part: Part, aligned: Aligned) -> str:
    """Why the party does not go on with the nodes that it has in common with the others; empty when it does."""
    graph, job = aligned.graph, part.settings
    if aligned.refuses or graph is None:
        return aligned.refuses
    units = too_many_units(job.privacy, graph) if part.party in job.duties.noising else ""
    return (
        delta_too_large(job, graph.common) or units or _breaks_own_delta(part, graph) or _breaks_own_rule(part, graph)
    )


def _breaks_own_delta(part: Part, graph: PartyGraph) -> str:
    """Return why the party's own δ, at which its budget for life is, protects none of its units; empty if it does."""
    if part.lifetime is None or math.isinf(part.lifetime.budget.epsilon):
        return ""
    budget = part.lifetime.budget
    return delta_of_too_many(budget.delta, budget.unit or "node", graph, "limits.max_delta")


def _breaks_own_rule(part: Part, graph: PartyGraph) -> str:
    """That its tables break what its party file says of neighbours, in all jobs alike; empty where they do not."""
    own = None if part.organisation is None else part.organisation.settings.limits.most_neighbours
    if own is None or part.settings.inputs.degree_rules.get(part.party) is None:
        return ""
    if paradigm_of(part.settings).privacy.most_edges_at_a_node(graph) <= own:
        return ""
    return (
        "a node of its graph has more neighbours than limits.most_neighbours: raise that, or have the edges exported "
        "with fewer at a node, a choice that no ε covers"
    )


def _predict(sitting: Sitting, role: Role) -> None:
    part = sitting.part
    role.infer_only()
    role.setup([])
    role.keep()
    if part.settings.passes.learns_alone:
        sitting.tell()
    role.model.load_weights(load_tensors(part.store.model_path)[0])
    infer(role, 0)


def _train(sitting: Sitting, role: Role, held: list[Point]) -> None:
    part, run, store = sitting.part, sitting.part.run, sitting.part.store
    epochs, alone = part.settings.train.epochs, part.settings.passes.learns_alone
    writes = isinstance(role, Judge) and (role.reports or part.settings.data.is_apart)

    def begin(epoch: int, last: int) -> None:
        if alone:  # the others are done: they do not wait for what it learns
            sitting.tell()
        log.info("training begins after epoch %d", epoch)
        if last < epochs:
            log.warning("the privacy budget ends training after epoch %d of %d", last, epochs)
        if writes:
            run.begin_metrics(epoch)

    def log_epoch(epoch_record: Record) -> None:
        if writes:
            run.append_metrics(epoch_record)

    told = time.monotonic()

    def done(epoch: int, kept: bool) -> None:
        nonlocal told
        if kept:
            sitting.record.note(sitting.publisher.spent())
        if kept or time.monotonic() - told >= TOLD_EVERY_S:
            told = time.monotonic()
            log.info("epoch %d of at most %d", epoch, epochs)
        if kept:
            settle()

    def settle() -> None:
        if writes and store.checkpoints.is_settled():
            run.settle_metrics()

    fitted = fit(role, store.checkpoints, held, begin=begin, log=log_epoch, done=done)
    save_tensors(store.model_path, role.model.weights(), _calibration(role) if isinstance(role, Judge) else {})
    if released := role.model.opened:
        save_tensors(store.released_path, released, {})
    store.checkpoints.settle()
    settle()
    write_whole(store.path / "result.json", json.dumps(_result(role, fitted)).encode())


def _calibration(role: Judge) -> Record:
    """What the model's later predictions are calibrated by as well: kept with its weights."""
    found = role.calibration(role.predictions().probabilities)
    return {} if found is None else {CALIBRATION: asdict(found)}


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
