"""A party of a job under Flower's FedAvg; run by the Python of Flower's own environment.

``python -m benchmarks.flower.party server ADDRESS JOB.yaml`` prints one line of JSON, ``benchmarks.averaging.Rounds``;
``… NUMBER ADDRESS JOB.yaml`` is the job's holder of that number, from 0. Holders train as ours do, on the same parts
from the same weights; Flower carries weights and tallies in the clear and averages them.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import flwr as fl  # type: ignore[import-not-found]
import torch
from torch import Tensor
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.tasks import Task
from veilgraph_averaging.training import EXTRA, public, summand

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.paradigm import paradigm_of

Metrics = dict[str, Any]


class Holder(fl.client.NumPyClient):  # type: ignore[misc]
    """Trains on one graph.

    Args:
        job: of all.
        task: of the job.
        graph: its own.
    """

    def __init__(self, job: AveragingJob, task: Task[Any, Any], graph: PartyGraph) -> None:
        self._job, self._task = job, task
        self._streams = LearningStreams(job.seed, graph.party)
        self._own = task.own(graph, self._streams)
        self._network = task.network(LearningStreams(job.seed, SERVER))

    def fit(self, parameters: list[Any], config: Metrics) -> tuple[list[Any], int, Metrics]:
        """A round of its own training: the weights after it, and of how many examples."""
        start = self._take(parameters)
        added = summand(
            self._job,
            self._task,
            self._network,
            self._own,
            lambda epoch: self._streams.generator("dropout", config["round"], epoch),
        )
        examples = self._task.examples(self._own)
        return [(start + added[:-EXTRA] / max(examples, 1)).numpy()], examples, {}

    def evaluate(self, parameters: list[Any], config: Metrics) -> tuple[float, int, Metrics]:
        """The tally of its own nodes."""
        self._take(parameters)
        with torch.no_grad():
            output = self._task.judging.output(self._network, self._own)
        return 0.0, 1, {"tally": self._task.judging.tally(self._network, self._own, output).numpy().tobytes()}

    def _take(self, parameters: list[Any]) -> Tensor:
        start = torch.from_numpy(parameters[0].copy())
        self._network.take(start)
        return start


def serve(job: AveragingJob, task: Task[Any, Any], address: str) -> list[Metrics]:
    """All rounds; for each the scores over all holders, and when they were there, in seconds."""
    network, holders = task.network(LearningStreams(job.seed, SERVER)), len(job.data.names)
    rounds: list[Metrics] = []

    def scored(told: list[tuple[int, Metrics]]) -> Metrics:
        total = sum(torch.frombuffer(bytearray(each["tally"]), dtype=torch.float64) for _, each in told)
        assert isinstance(total, Tensor)
        rounds.append({**task.judging.scores(network, total).record(), "at": time.perf_counter()})
        return {}

    strategy = fl.server.strategy.FedAvg(
        min_fit_clients=holders,
        min_evaluate_clients=holders,
        min_available_clients=holders,
        initial_parameters=fl.common.ndarrays_to_parameters([network.vector().numpy()]),
        on_fit_config_fn=lambda number: {"round": number},
        evaluate_metrics_aggregation_fn=scored,
        fit_metrics_aggregation_fn=lambda _: {},
    )
    config = fl.server.ServerConfig(num_rounds=job.train.epochs)
    fl.server.start_server(server_address=address, config=config, strategy=strategy)
    return rounds


def _await(address: str) -> None:
    """Until the server listens: a client that comes before gives up."""
    host, _, port = address.rpartition(":")
    while True:
        with socket.socket() as tried:
            if tried.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.05)


def _main() -> None:
    party, address, path = sys.argv[1:]
    torch.set_num_threads(1)
    job = averaging(read_job(Path(path)))
    graphs = paradigm_of(job).data.load(job).graphs
    kind = job.averaging.task.kind
    stated = {graph.party: kind.subject.stated(graph) for graph in graphs}
    task = kind(public(job, {graph.party: graph.num_features for graph in graphs}, stated))
    if party == SERVER:
        sys.stdout.write(json.dumps({"rounds": serve(job, task, address)}) + "\n")
    else:
        _await(address)
        fl.client.start_client(server_address=address, client=Holder(job, task, graphs[int(party)]).to_client())


if __name__ == "__main__":
    _main()
