"""The secure product by itself: online and offline seconds and bytes of one step, two holders."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass

import torch

from benchmarks.graphs import public
from veilgraph.core.randomness import system_secrets
from veilgraph.core.types import SERVER, Kind, Link, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.recorded import RecordedLink
from veilgraph.mpc import ring
from veilgraph.mpc.dealer import Dealer, Direction
from veilgraph.mpc.product import SecureProduct
from veilgraph.mpc.shares import open_shares
from veilgraph.roles.launch import run_threads

DIM = 64
STEPS = 12
BITS = 12


@dataclass(frozen=True)
class ProductFigures:
    """Medians over steps; milliseconds and bytes per step and holder.

    The online times are of the slower holder, or, measured alone, of A.
    """

    dataset: str
    online_forward_ms: float
    online_open_ms: float
    online_backward_ms: float
    offline_holder_ms: float
    offline_dealer_ms: float
    online_bytes: float

    @property
    def online_ms(self) -> float:
        """The online part of a whole step."""
        return self.online_forward_ms + self.online_open_ms + self.online_backward_ms


class AfterA:
    """B's features, whose products wait until A's are done: so A has the machine to itself, as on one of its own."""

    def __init__(self, operand: ring.StaticOperand, done: threading.Semaphore) -> None:
        self._operand, self._done = operand, done
        self.shape = operand.shape

    def times(self, right: torch.Tensor) -> torch.Tensor:
        """A·right."""
        self._done.acquire()
        return self._operand.times(right)

    def transposed_times(self, right: torch.Tensor) -> torch.Tensor:
        """Aᵀ·right."""
        self._done.acquire()
        return self._operand.transposed_times(right)


def measure(dataset: str, *, alone: bool = False) -> ProductFigures:
    """Runs the protocol with nothing around it; the parties meet at a barrier before every timed part.

    Args:
        dataset: Cora, CiteSeer or PubMed.
        alone: B computes after A, and A's times are reported; otherwise both share the machine.
    """
    parties = public(dataset)
    a_done = threading.Semaphore(0)
    timed_parties = ["A"] if alone else [graph.party for graph in parties]
    graphs = {graph.party: graph for graph in parties}
    features = {graph.party: graph.num_features for graph in parties}
    meet = threading.Barrier(3)
    times: dict[str, dict[str, list[float]]] = {party: {} for party in (*graphs, SERVER)}

    def timed(party: str, part: str, started: float) -> None:
        times[party].setdefault(part, []).append((time.perf_counter() - started) * 1e3)
        if party == "A" and part in ("forward", "backward"):
            a_done.release()

    def holder(graph: PartyGraph, link: Link) -> float:
        recorded = RecordedLink(link)

        def convert(values: torch.Tensor) -> torch.Tensor:
            return ring.encode(values, BITS, "features", "scale them")

        matrix = graph.features
        operand = ring.static_operand(matrix, convert)
        if alone and graph.party != "A":
            operand = AfterA(operand, a_done)
        product = SecureProduct(recorded, operand, ring.dense(matrix, convert), features, DIM)
        others = [party for party in graphs if party != graph.party]
        shares = {party: torch.randint(-(2**40), 2**40, (count, DIM)) for party, count in features.items()}
        gradient = torch.randint(-(2**20), 2**20, (graph.num_nodes, DIM))
        before = sum(entry.bytes for entry in recorded.traffic() if entry.direction == "sent")
        for step in range(STEPS):
            meet.wait()
            started = time.perf_counter()
            forward = product.prepare(Direction.FORWARD, step)
            backward = product.prepare(Direction.BACKWARD, step)
            timed(graph.party, "offline", started)
            meet.wait()
            started = time.perf_counter()
            share = product.forward(step, forward, shares)
            timed(graph.party, "forward", started)
            meet.wait()
            started = time.perf_counter()
            open_shares(recorded, others, Tag(Kind.SHARE, step), share)
            timed(graph.party, "open", started)
            meet.wait()
            started = time.perf_counter()
            product.backward(step, backward, gradient)
            timed(graph.party, "backward", started)
        after = sum(entry.bytes for entry in recorded.traffic() if entry.direction == "sent")
        return (after - before) / STEPS

    def server(link: Link) -> float:
        dealer = Dealer(link, features, parties[0].num_nodes, DIM, system_secrets)
        dealer.send_seeds()
        for step in range(STEPS):
            started = time.perf_counter()
            dealer.deal(Direction.FORWARD, step)
            dealer.deal(Direction.BACKWARD, step)
            timed(SERVER, "offline", started)
            for _ in range(4):
                meet.wait()
        return 0.0

    programs = {party: (lambda link, graph=graph: holder(graph, link)) for party, graph in graphs.items()}
    sent = run_threads({**programs, SERVER: server}, 600, lambda: None)

    def slower(part: str) -> float:
        return max(statistics.median(times[party][part][2:]) for party in timed_parties)

    return ProductFigures(
        dataset,
        slower("forward"),
        slower("open"),
        slower("backward"),
        slower("offline"),
        statistics.median(times[SERVER]["offline"][2:]),
        max(sent.values()),
    )
