"""The parties of a sealed job: holders, one of them with the labels, and the dealer at the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import DataError, RunError
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.dealer import DealerMachine
from veilgraph.mpc.sealed.holder import HolderMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.network import OwnData, Plan, SealedNetwork, Sizes
from veilgraph.paradigms.sealed.settings import SealedJob, SealedModelSettings, sealed
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.judge import Judge
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.scores import Objective, Scores, balanced_weights
from veilgraph.protocol.stated import agree_within

_SURE = 30.0
"""The logit of a class that alone is known."""
_ROUNDING = "rounding"
_DATA = "data"


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def plan_of(job: SealedJob) -> Plan:
    """What a job has all parties compute."""
    model, train = job.model, job.train
    return Plan(
        hops=model.hops,
        teleport=model.teleport,
        symmetric=model.normalization == "symmetric",
        hidden=model.hidden if model.network == "mlp" else None,
        learning_rate=train.exact_rate,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        batch=train.batch_size,
        weighted=train.class_weights == "balanced",
        seed=job.seed,
        output=job.output,
    )


def slots_of(model: SealedModelSettings, edges: int) -> int:
    """The number of edges that a holder seems to have: rounded up by up to a quarter, where the job states none."""
    if model.edge_slots is not None:
        return model.edge_slots
    step = 1 << max(0, edges.bit_length() - 3)
    return max(1, -(-edges // step) * step)


def own_data(job: SealedJob, graph: PartyGraph) -> OwnData:
    """What a holder puts in.

    Raises:
        DataError: it does not fit the job's public bounds.
    """
    model, common = job.model, graph.common_part()
    if common.edge_weight is not None:
        raise DataError(
            f"party {graph.party!r}: its edges have weights, and a sealed job adds every edge alike; leave weights out"
        )
    slots, edges = slots_of(model, common.num_edges), common.edge_index
    if common.num_edges > slots:
        raise DataError(f"party {graph.party!r}: {common.num_edges:,} edges, and model.edge_slots={slots:,}: raise it")
    share = (model.max_degree - 1) // len(job.data.names)
    degree = int(torch.bincount(edges[1], minlength=1).max()) if common.num_edges else 0
    if model.hops and degree > share:
        raise DataError(
            f"party {graph.party!r}: a node has {degree:,} edges, and model.max_degree={model.max_degree} leaves each "
            f"of {len(job.data.names)} holders {share:,}: raise it, or leave out edges of such nodes"
        )
    features = common.features.to_dense().to(torch.float64)
    if model.unit_rows:
        features = nn.functional.normalize(features, dim=1)
    return OwnData(features, edges)


class SealedRole(Role):
    """What all parties of a sealed job have in common: they run one program."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._job = sealed(session.settings)
        self._network: SealedNetwork | None = None
        self._entered = self._begun = False
        self._saved: dict[str, Tensor] | None = None
        self._goes_on = False

    def hello(self) -> Hello:
        """What this party states."""
        session = self.session
        return Hello(job=session.settings.hash(), restarts=session.restarts, alignment=session.alignment)

    def machine(self) -> Machine:
        """On which this party runs the program."""
        raise NotImplementedError

    def data(self) -> Mapping[PartyId, OwnData]:
        """What this party puts in."""
        return {}

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session = self.session
        stated = self.hello().model_copy(
            update={"checkpoints": list(held), "nonce": session.nonce(), "refuses": session.refuses}
        )
        hellos = agree_within(session, stated)
        start, label_party = agreed_start(session.link.party, hellos), session.settings.data.label_party
        self.nodes = hellos[session.holders[0]].nodes
        sizes = Sizes(
            self.nodes,
            hellos[label_party].training,
            hellos[label_party].classes,
            {holder: hellos[holder].features for holder in session.holders},
            {holder: hellos[holder].edges for holder in session.holders},
            self._job.model.max_degree,
        )
        self._network = SealedNetwork(self.machine(), sizes, plan_of(self._job), label_party, self.data())
        return start

    @property
    def network(self) -> SealedNetwork:
        """Once it is set up."""
        if self._network is None:
            raise RunError("a sealed role computes nothing before it is set up")
        return self._network

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if not self._entered:
            self.network.enter()
            self._entered = True
        if self._saved is not None:
            self.network.restore(self._saved, training=self._goes_on)
            self._saved, self._begun = None, self._begun or self._goes_on
        if epoch is None:
            self.learn(self.network.predict())
            return
        if not self._begun:
            self.network.begin()
            self._begun = True
        self.network.step(epoch - 1)

    def learn(self, found: Tensor | None) -> None:
        """What is told of every node, at the label holder."""

    @override
    def backward(self, step: int) -> None:
        """The program's step is both."""

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {}

    @override
    def weights(self) -> dict[str, Tensor]:
        """This party's shares: those of all holders add up to the weights, and all but one of them are noise."""
        return {name: share for name, share in self.state().items() if name.startswith("weight")}

    @override
    def state(self) -> dict[str, Tensor]:
        return self._saved if self._saved is not None else self.network.shares()

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self._saved, self._goes_on = dict(saved), False

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self._saved, self._goes_on = dict(saved), True


class SealedDealer(SealedRole):
    """Deals randomness; no message to it depends on anybody's data."""

    @override
    def machine(self) -> Machine:
        session = self.session
        self._dealing = DealerMachine(session.link, session.holders, session.secrets)
        return self._dealing

    @override
    def state(self) -> dict[str, Tensor]:
        return {_ROUNDING: _bytes(self._dealing.rounding)}

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self._dealing.rounding = saved[_ROUNDING].numpy().tobytes()
        super().load_state({})


class SealedHolder(SealedRole):
    """Has features and edges.

    Raises:
        DataError: they do not fit the job's public bounds.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        self._own = own_data(self._job, graph)

    @override
    def hello(self) -> Hello:
        stated = {
            "nodes": self.graph.common,
            "features": self.graph.num_features,
            "edges": slots_of(self._job.model, self._own.edges.shape[1]),
        }
        return super().hello().model_copy(update=stated)

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self.network.check(saved)
        super().load_weights(saved)

    @override
    def state(self) -> dict[str, Tensor]:
        return {**super().state(), _DATA: _bytes(self._own.digest())}

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.network.check(saved)
        if not torch.equal(saved[_DATA], _bytes(self._own.digest())):
            raise RunError(
                f"{self.session.link.party}: its data have changed since the checkpoint; begin a new run, for what "
                "was computed of the old ones cannot be gone on with"
            )
        super().load_state({name: share for name, share in saved.items() if name != _DATA})

    @override
    def machine(self) -> Machine:
        return HolderMachine(self.session.link, self.session.holders)

    @override
    def data(self) -> Mapping[PartyId, OwnData]:
        return {self.session.link.party: self._own}


class SealedLabelHolder(SealedHolder, Judge):
    """Has labels as well, and learns what the job says of every node."""

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, torch.float64)
        assert common.labels is not None
        assert common.train_mask is not None
        rows = common.train_mask.nonzero()[:, 0]
        if not rows.numel():
            raise DataError(f"party {graph.party!r}: none of its labelled common nodes is for training; mark some")
        # Where a row stands among the training rows tells nothing: the order is drawn from the party's own seed.
        order = session.streams.generator("rows")
        rows = rows[torch.randperm(rows.numel(), generator=order)]
        labels = common.labels[rows]
        weights = None
        if session.settings.train.class_weights == "balanced":
            weights = balanced_weights(labels, self._objective.classes)[labels]
        self._own = replace(self._own, rows=rows, labels=labels, weights=weights)

    @override
    def hello(self) -> Hello:
        assert self._own.rows is not None
        stated = {"training": self._own.rows.numel(), "classes": self._objective.classes}
        return super().hello().model_copy(update=stated)

    @override
    def learn(self, found: Tensor | None) -> None:
        assert found is not None
        if self._job.output == "probabilities":
            self.logits = found.clamp_min(2.0**-16).log()
            return
        classes = found[:, 0].round().to(torch.int64)
        self.logits = _SURE * nn.functional.one_hot(classes, self._objective.classes).to(torch.float64)

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """Of classes alone no ranking can be made."""
        found = super().scores(everything=everything)
        return found if self._job.output == "probabilities" else replace(found, val_auc=None, test_auc=None)
