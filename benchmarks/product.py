"""The secure product by itself: online and offline seconds and bytes of one step, two holders."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.graphs import public
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, Kind, Link, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import RecordedLink
from veilgraph.mpc import ring
from veilgraph.mpc.mask import PairwiseMasks, open_shares
from veilgraph.mpc.product import BLOCK_BYTES, Dealer, Direction, SecureProduct, row_blocks
from veilgraph.runtime.launch.processes import run_threads

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


def after_a(operand: ring.StaticOperand, done: threading.Semaphore) -> ring.StaticOperand:
    """B's features, whose products wait until A's are done: so A has the machine to itself, as on one of its own."""

    def waiting(multiply: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        def product(right: torch.Tensor) -> torch.Tensor:
            done.acquire()
            return multiply(right)

        return product

    return ring.StaticOperand(waiting(operand.times), waiting(operand.transposed_times))


class _Waiting(SecureProduct):
    """B's side, that computes when A has."""

    def __init__(self, done: threading.Semaphore, *given: Any) -> None:  # noqa: ANN401 - as SecureProduct's
        self._done = done
        super().__init__(*given)

    def _static(self, *given: Any) -> Any:  # noqa: ANN401
        block = super()._static(*given)
        return replace(block, operand=after_a(block.operand, self._done))


def measure(dataset: str, parties: Sequence[PartyGraph] | None = None, *, alone: bool = False) -> ProductFigures:
    """Runs the protocol with nothing around it; the parties meet at a barrier before every timed part.

    Args:
        dataset: Cora, CiteSeer or PubMed, or a name for what is given.
        parties: two holders' graphs; default: the data set's.
        alone: B computes after A, and A's times are reported; otherwise both share the machine.
    """
    parties = public(dataset) if parties is None else parties
    blocks = 1 << 40 if alone else BLOCK_BYTES
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

        masks = PairwiseMasks.agree(recorded, list(graphs), system_secrets)
        given = (recorded, masks, graph.features, convert, features, DIM, blocks)
        product = _Waiting(a_done, *given) if alone and graph.party != "A" else SecureProduct(*given)
        pieces = range(len(row_blocks(graph.num_nodes, features, DIM, blocks)))
        others = [party for party in graphs if party != graph.party]
        shares = {party: torch.randint(-(2**40), 2**40, (count, DIM)) for party, count in features.items()}
        gradient = torch.randint(-(2**20), 2**20, (graph.num_nodes, DIM))
        before = sum(entry.bytes for entry in recorded.traffic() if entry.direction == "sent")
        for step in range(STEPS):
            meet.wait()
            started = time.perf_counter()
            for future in product.ahead([(direction, step, piece) for direction in Direction for piece in pieces]):
                future.result()
            timed(graph.party, "offline", started)
            meet.wait()
            started = time.perf_counter()
            opened = [share for _, share in product.forward(step, shares)]
            timed(graph.party, "forward", started)
            meet.wait()
            started = time.perf_counter()
            for piece, share in enumerate(opened):
                open_shares(recorded, others, Tag(Kind.SHARE, step, piece), share)
            timed(graph.party, "open", started)
            meet.wait()
            started = time.perf_counter()
            product.backward(step, gradient.__getitem__, learns=False)
            timed(graph.party, "backward", started)
        product.close()
        after = sum(entry.bytes for entry in recorded.traffic() if entry.direction == "sent")
        return (after - before) / STEPS

    def server(link: Link) -> float:
        dealer = Dealer(link, features, parties[0].num_nodes, DIM, system_secrets, block_bytes=blocks)
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
