"""The roles of a job with ``averaging.symbols``: holders send symbols once, and learn at home; the server is idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.agreement import Hello, Point, Start, same_count, session_name, start_alone
from veilgraph.protocol.bounds import agree_and_check_bounds
from veilgraph.protocol.judge import Objective, SharedJudge
from veilgraph.protocol.releases import labels_perturbed
from veilgraph.protocol.role import PartyModel, Role, RoleContext
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.symbols.exchange import (
    MOST_CLASSES,
    NONE,
    confirm_edges,
    exchange_symbols,
    most_listed,
    pairs_across,
)
from veilgraph_averaging.symbols.home import AtHome, Learnt, judged_by, own_model

_TWO = 2


def check_classes_of_symbols(job: AveragingJob, classes: int) -> None:
    """Raise ``ConfigError`` where labels have too many classes for the job's symbols."""
    given = job.averaging.symbols
    assert given is not None
    most, what = (
        (_TWO, "averaging.symbols.answers=all") if given.answers == "all" else (MOST_CLASSES, "averaging.symbols")
    )
    if classes > most:
        raise ConfigError(
            f"{what}: the labels have {classes} classes, and it is for {most} at most; "
            + ("set answers to trained" if most == _TWO else "merge classes, or leave averaging.symbols out"),
            code="classes",
            key="averaging.symbols",
            value=classes,
        )


def law_of(job: AveragingJob, classes: int) -> Tensor | None:
    """P(symbol | class), Tensor[C, C] float64; None where nodes without a label answer as well, so that none is known.

    Raises ``ConfigError``: the job has too many classes for symbols.
    """
    check_classes_of_symbols(job, classes)
    given, private = job.averaging.symbols, job.label_privacy
    assert given is not None
    assert private is not None
    return None if given.answers == "all" else LabelResponse(private.epsilon, classes).transition()


def bytes_of(job: AveragingJob, graph: PartyGraph, symbols: Tensor) -> Tensor:
    """Return the byte of each own node, uint8 [n]: its symbol, or ``NONE``; ``symbols`` as ``labels_perturbed``."""
    nodes, _ = labels_perturbed(job, graph.common_part())
    return torch.full((graph.common,), NONE, dtype=torch.uint8).index_copy(0, nodes, symbols.to(torch.uint8))


class SymbolServer(Role):
    """The server: agrees on the job, and has no part in what follows."""

    trains = False

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        self.model = PartyModel(session, {})

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session = self.session
        hello = Hello(job=session.settings.hash(), restarts=session.restarts, nonce=session.nonce())
        law_of(averaging(session.settings), _agreed_classes(agree_and_check_bounds(session, hello), session))
        return start_alone([], session.nonce())

    @override
    def forward(self, step: int, epoch: int | None) -> None: ...

    @override
    def backward(self, step: int) -> None: ...


class SymbolHolder(SharedJudge):
    """A holder of nodes and labels: sends a symbol for each edge across, and learns at home from those it is told.

    ``ids`` name the nodes of its graph, its own first and others' as ``holder/id``.
    """

    def __init__(self, session: RoleContext, graph: PartyGraph, ids: Sequence[str]) -> None:
        super().__init__(session)
        graph.validate()
        self._job, self._whole, self._ids = averaging(session.settings), graph, ids
        self.graph = graph.common_part()
        self._pairs = pairs_across(graph, ids, session.holders)
        self.counts: Tensor | None = None
        self._law: Tensor | None = None

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph = self.session, self.graph
        listed = most_listed(self._pairs)
        hello = Hello(
            job=self._job.hash(),
            features=graph.num_features,
            edges=listed,
            classes=graph.num_classes or 0,
            refuses=session.refuses or self._refusal() or session.publisher.refusal(),
            restarts=session.restarts,
            nonce=session.nonce(),
        )
        hellos = agree_and_check_bounds(session, hello)
        classes = _agreed_classes(hellos, session)
        self._law = law_of(self._job, classes)
        self._objective = Objective(graph, self._job.train, session.dtype)
        self._home = Learnt(graph.num_nodes, classes)
        self.model = PartyModel(session, {"home": self._home}, trained=())
        if self._learns:
            self.counts = self._exchange(hellos, classes)
        return start_alone(held, session.nonce())

    def _refusal(self) -> str:
        """Why it takes no part with its data; empty where it does."""
        graph = self.graph
        if graph.labels is None or graph.num_classes is None:
            return "averaging.symbols: it has no labels, and symbols are labels; leave it out of the job"
        for name, mask in (("training", graph.train_mask), ("validation", graph.val_mask)):
            if mask is None or not bool(mask.any()):
                return f"averaging.symbols: it has no {name} nodes; mark some"
        if not any(pairs.shape[1] for pairs in self._pairs.values()):
            return (
                "averaging.symbols: it has no edge to another holder's node, so symbols say nothing; say whose node an "
                "end is (source_holder, target_holder), or leave averaging.symbols out"
            )
        return ""

    def _exchange(self, hellos: Mapping[PartyId, Hello], classes: int) -> Tensor:
        """Compare edges, and only then release symbols and count those of others: float64 [n, C]."""
        session, publisher, given = self.session, self.session.publisher, self._job.averaging.symbols
        assert given is not None
        name = session_name([hello.nonce for hello in hellos.values()])
        most = {holder: hellos[holder].edges for holder in session.holders}
        confirmed = confirm_edges(session.link, name, self._whole, self._ids, session.holders, most, session.secrets)
        if not isinstance(publisher, LabelPublisher):
            raise ConfigError(f"averaging.symbols: {session.link.party} has no LabelPublisher; give its session one")
        mine = bytes_of(self._job, self.graph, publisher.perturbed())
        return exchange_symbols(session.link, confirmed, mine, classes, all_answer=given.answers == "all")

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        self.logits, self._alone = self._home.found, self._home.without

    @override
    def backward(self, step: int) -> None:
        """Do nothing: what it learns it learns in ``finish``."""

    @override
    def finish(self) -> None:
        if bool(self._home.learnt) or self.counts is None:
            return
        seed = self._job.seed
        with self.session.trace.span("home"):
            own = own_model(self._whole, self._ids, seed).output
            self._home.keep(*AtHome.of(self.graph, own, seed).mixed(self.counts, self._law))

    @override
    def alone(self) -> Record | None:
        """Compare what it predicts with what it would without symbols, on its own nodes, and name what it chose by."""
        if self._alone is None:
            return None
        found = self._objective.score(self._alone, everything=True)
        ways = {"together": dict(self.scores(everything=True).values), "alone": dict(found.values)}
        return {**ways, "judged_by": judged_by(self.graph, self._alone.shape[1])}


def _agreed_classes(hellos: Mapping[PartyId, Hello], session: RoleContext) -> int:
    return same_count("classes", {holder: hellos[holder].classes for holder in session.holders})
