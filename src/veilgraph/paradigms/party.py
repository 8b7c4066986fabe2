"""What one party of a vertical job does from beginning to end."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

from veilgraph.core.randomness import LearningStreams, system_secrets
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.link.recorded import RecordedLink
from veilgraph.nn.network import CustomModel
from veilgraph.paradigms.fit import Fitted, fit, infer
from veilgraph.paradigms.predictions import save_predictions
from veilgraph.paradigms.run_directory import Record, RunDirectory, load_tensors, save_tensors, write_whole
from veilgraph.roles.data_holder import DataHolder
from veilgraph.roles.label_holder import LabelHolder
from veilgraph.roles.role import Role, Session
from veilgraph.roles.server import Server

Work = Literal["train", "resume", "predict"]


def run_party(run: RunDirectory, party: PartyId, work: Work, link: Link, custom: CustomModel | None) -> None:
    """What one party does from beginning to end.

    It reads and writes its own part of the run; the label holder also writes metrics.jsonl.
    """
    settings, store = run.settings, run.party(party)
    recorded = RecordedLink(link)
    session = Session(settings, recorded, LearningStreams(store.seed(), party), system_secrets)
    role = _role(session, party, None if party == SERVER else load_party(store.graph_path), custom)
    try:
        if work == "predict":
            role.infer_only()
            role.setup([])
            role.load_weights(load_tensors(store.model_path)[0])
            infer(role, 0)
        else:

            def begin(epoch: int) -> None:
                if isinstance(role, LabelHolder):
                    run.forget_metrics_after(epoch)

            fitted = fit(role, store, resume=work == "resume", begin=begin, log=run.append_metrics)
            save_tensors(store.model_path, role.weights(), {})
            write_whole(store.path / "result.json", json.dumps(_result(role, fitted)).encode())
        if isinstance(role, LabelHolder):
            save_predictions(store, role.logits.detach().softmax(dim=1))
        traffic = [asdict(entry) | {"kind": entry.kind.name.lower()} for entry in recorded.traffic()]
        name = "prediction_traffic.json" if work == "predict" else "traffic.json"
        write_whole(store.path / name, json.dumps(traffic).encode())
    finally:
        role.close()
        recorded.close()


def _role(session: Session, party: PartyId, graph: PartyGraph | None, custom: CustomModel | None) -> Role:
    if graph is None:
        return Server(session)
    kind = LabelHolder if party == session.settings.data.label_party else DataHolder
    return kind(session, graph, custom)


def _result(role: Role, fitted: Fitted) -> Record:
    if not isinstance(role, LabelHolder):
        return {"started_at": fitted.started_at}
    scores = role.scores()
    return {
        "nodes": role.graph.num_nodes,
        "best_epoch": fitted.judgement.best_epoch,
        "val_accuracy": scores.val_accuracy,
        "test_accuracy": scores.test_accuracy,
        "train_accuracy": scores.train_accuracy,
        "started_at": fitted.started_at,
    }
