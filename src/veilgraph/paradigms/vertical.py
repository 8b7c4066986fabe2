"""The vertical paradigm (VFGNN): train a job on this machine, and predict with what it trained.

Every party runs the same code in a thread over the in-memory link, or in a process of its own over local sockets.
All a party keeps is in its part of the run directory.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from veilgraph.core.config import JobSettings, parse_job
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.randomness import LearningStreams, system_secrets
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.datasets import load_parties
from veilgraph.graph.features import scale_features
from veilgraph.graph.party import PartyGraph, check_federation, load_party, save_party
from veilgraph.link.recorded import RecordedLink
from veilgraph.nn.network import CustomModel
from veilgraph.paradigms.fit import Fitted, fit, infer
from veilgraph.paradigms.run_directory import Record, RunDirectory, load_tensors, save_tensors, write_whole
from veilgraph.roles.data_holder import DataHolder
from veilgraph.roles.label_holder import LabelHolder
from veilgraph.roles.launch import run_processes, run_threads
from veilgraph.roles.role import Role, Session
from veilgraph.roles.server import Server

Work = Literal["train", "resume", "predict"]
Progress = Callable[[list[Record]], None]
"""Called now and then with all epochs' records so far."""


@dataclass(frozen=True)
class TrainResult:
    """What a finished run holds; all of it can be read back with ``load_result``.

    Attributes:
        path: the run directory.
        summary: best epoch, accuracies in [0, 1], seconds per step, bytes sent by each party.
        metrics: one record per epoch.
        predictions: classes and probabilities of every node, at the label holder.
    """

    path: Path
    summary: Record
    metrics: list[Record]
    predictions: Predictions


@dataclass(frozen=True)
class Predictions:
    """Predictions for some nodes.

    Attributes:
        nodes: Tensor[n] int64.
        classes: Tensor[n] int64.
        probabilities: Tensor[n, C], rows sum to 1.
    """

    nodes: Tensor
    classes: Tensor
    probabilities: Tensor


def train(
    settings: JobSettings,
    out: Path,
    *,
    parties: Sequence[PartyGraph] | None = None,
    custom: CustomModel | None = None,
    processes: bool = False,
    private_seeds: bool = False,
    progress: Progress = lambda records: None,
) -> TrainResult:
    """Trains a job from the start.

    Args:
        settings: the job.
        out: the run directory, made here.
        parties: one graph per holder, in place of the job's ``data``.
        custom: for ``model.local.model: custom``, makes a user's local model for a width.
        processes: run every party in a process of its own.
        private_seeds: every party draws a learning seed of its own from the operating system and keeps it in its part
            of the run. Without, all learn from the job's seed: the run can be repeated, but whoever has the job file
            can compute every party's initial weights, and from them and the first h^0 another's features.
        progress: called now and then.

    Raises:
        VeilgraphError: a setting, a party's data or the exchange broke a rule.
    """
    if parties is None:
        parties = load_parties(settings.data, settings.seed)
    else:
        settings = with_parties(settings, parties, out)
        for graph in parties:
            graph.validate()
        parties = [scale_features(graph, settings.data.feature_scaling) for graph in parties]
    _check_custom(settings, custom, processes=processes)
    check_federation(parties, settings.data.label_party)
    run = RunDirectory.create(out, settings)
    for graph in parties:
        save_party(graph, run.party(graph.party).graph_path)
    for party in (*settings.data.names, SERVER):
        run.party(party).save_seed(secrets.randbits(63) if private_seeds else settings.seed)
    return _train(run, settings, "train", custom, processes=processes, progress=progress)


def resume(
    path: Path,
    *,
    custom: CustomModel | None = None,
    processes: bool = False,
    progress: Progress = lambda records: None,
) -> TrainResult:
    """Goes on with a run that was cut off; the result is bit-identical to an uninterrupted one.

    A complete run is returned as it is.

    Raises:
        RunError: there is no run at ``path``, or a party's part of it is missing.
    """
    run = RunDirectory.open(path)
    settings = run.settings
    if run.summary is not None:
        return load_result(path)
    _check_custom(settings, custom, processes=processes)
    return _train(run, settings, "resume", custom, processes=processes, progress=progress)


def predict(
    path: Path,
    nodes: Sequence[int] | None = None,
    *,
    custom: CustomModel | None = None,
    processes: bool = False,
) -> Predictions:
    """Predicts with a trained run, through the same joint protocol; only the label holder learns the result.

    Args:
        path: a complete run.
        nodes: which rows to give back; default: all. The joint computation always covers all nodes, so the other
            parties do not learn which were asked for.
        custom: as in ``train``.
        processes: run every party in a process of its own.

    Raises:
        RunError: the run is not complete.
        ConfigError: a node does not exist.
    """
    run = RunDirectory.open(path)
    settings = run.settings
    if run.summary is None:
        raise RunError(f"{path} is not a complete run; finish it with: veilgraph train --resume {path}")
    _check_custom(settings, custom, processes=processes)
    wanted = None if nodes is None else _checked_nodes(nodes, int(run.summary["nodes"]))
    _run(run, settings, "predict", custom, processes=processes, tick=lambda: None)
    everything = _load_predictions(run, settings)
    if wanted is None:
        return everything
    chosen = torch.tensor(wanted, dtype=torch.int64)
    return Predictions(chosen, everything.classes[chosen], everything.probabilities[chosen])


def _checked_nodes(nodes: Sequence[int], count: int) -> list[int]:
    checked = []
    for node in nodes:
        try:
            number = operator.index(node)
        except TypeError:
            number = -1
        if not 0 <= number < count:
            raise ConfigError(f"nodes: {node!r} is not a node; give whole numbers from 0 to {count - 1}")
        checked.append(number)
    return checked


def load_result(path: Path) -> TrainResult:
    """Reads a complete run.

    Raises:
        RunError: it is not complete.
    """
    run = RunDirectory.open(path)
    if run.summary is None:
        raise RunError(f"{path} is not a complete run; finish it with: veilgraph train --resume {path}")
    return TrainResult(path, run.summary, run.metrics(), _load_predictions(run, run.settings))


def with_parties(settings: JobSettings, parties: Sequence[PartyGraph], out: Path) -> JobSettings:
    """The job for graphs given directly: its ``data`` names the holders and where the run keeps their graphs."""
    paths = {graph.party: str(RunDirectory(out).party_path(graph.party) / "graph.safetensors") for graph in parties}
    labelled = [graph.party for graph in parties if graph.labels is not None]
    label_party = settings.data.label_holder or next(iter(labelled), parties[0].party if parties else "")
    check_federation(parties, label_party)
    content = settings.model_dump(mode="json")
    content["data"].update(parties=paths, holders=len(parties), label_holder=label_party)
    return parse_job(content)


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
            write_whole(store.path / "result.json", json.dumps(_party_result(role, fitted)).encode())
        if isinstance(role, LabelHolder):
            _save_predictions(run, role)
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


def _train(
    run: RunDirectory,
    settings: JobSettings,
    work: Work,
    custom: CustomModel | None,
    *,
    processes: bool,
    progress: Progress,
) -> TrainResult:
    _run(run, settings, work, custom, processes=processes, tick=lambda: progress(run.metrics()))
    progress(run.metrics())
    traffic = [
        entry
        for party in (*settings.data.names, SERVER)
        for entry in json.loads((run.party(party).path / "traffic.json").read_text(encoding="utf-8"))
    ]
    run.write_json("traffic.json", traffic)
    label_store = run.party(settings.data.label_party)
    result = json.loads((label_store.path / "result.json").read_text(encoding="utf-8"))
    metrics = run.metrics()
    steps = sorted(record["step_seconds"] for record in metrics)
    result["seconds_per_step"] = steps[len(steps) // 2]
    result["sent_bytes"] = {
        party: sum(entry["bytes"] for entry in traffic if entry["party"] == party and entry["direction"] == "sent")
        for party in (*settings.data.names, SERVER)
    }
    run.write_json("summary.json", result)
    return load_result(run.path)


def _run(
    run: RunDirectory,
    settings: JobSettings,
    work: Work,
    custom: CustomModel | None,
    *,
    processes: bool,
    tick: Callable[[], None],
) -> None:
    parties = (*settings.data.names, SERVER)
    if processes:
        command = ["-m", "veilgraph.paradigms.worker", str(run.path), work]
        run_processes({party: [*command, party] for party in parties}, tick)
        return

    def program(party: PartyId) -> Callable[[Link], None]:
        return lambda link: run_party(run, party, work, link, custom)

    run_threads({party: program(party) for party in parties}, settings.timeout_s, tick)


def _check_custom(settings: JobSettings, custom: CustomModel | None, *, processes: bool) -> None:
    if (settings.model.local.model == "custom") != (custom is not None):
        raise ConfigError(
            f"model.local.model={settings.model.local.model!r}: a custom local model is passed from Python as "
            "custom=<function of the width>, and only with model.local.model: custom"
        )
    if custom is not None and processes:
        raise ConfigError("custom: a Python object cannot be given to separate processes; use processes=False")


def _party_result(role: Role, fitted: Fitted) -> Record:
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


def _save_predictions(run: RunDirectory, role: LabelHolder) -> None:
    probabilities = role.logits.detach().softmax(dim=1)
    store = run.party(role.session.link.party)
    save_tensors(store.path / "predictions.safetensors", {"probabilities": probabilities}, {})
    write_whole(store.path / "predictions.csv", predictions_csv(_predictions(probabilities)).encode())


def _load_predictions(run: RunDirectory, settings: JobSettings) -> Predictions:
    store = run.party(settings.data.label_party)
    return _predictions(load_tensors(store.path / "predictions.safetensors")[0]["probabilities"])


def _predictions(probabilities: Tensor) -> Predictions:
    return Predictions(torch.arange(len(probabilities)), probabilities.argmax(dim=1), probabilities)


def predictions_csv(predictions: Predictions) -> str:
    """``node,class,p0,p1,…``: one line per node."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = predictions.probabilities.shape[1]
    writer.writerow(["node", "class", *(f"p{index}" for index in range(columns))])
    rows: Any = zip(
        predictions.nodes.tolist(), predictions.classes.tolist(), predictions.probabilities.tolist(), strict=True
    )
    for node, predicted, chances in rows:
        writer.writerow([node, predicted, *(f"{chance:.6f}" for chance in chances)])
    return text.getvalue()
