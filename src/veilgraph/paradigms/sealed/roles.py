"""The parties of a sealed job: holders, one of them with the labels, and the dealer at the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import gather
from veilgraph.mpc.sealed.cut_and_choose import Dealing, checked_link, dealer_of, unfinished
from veilgraph.mpc.sealed.dealer import DealerMachine
from veilgraph.mpc.sealed.holder import HolderMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.nn.calibration import Calibration
from veilgraph.paradigms.sealed.entering import own_data, slots_of, with_labels
from veilgraph.paradigms.sealed.plan import OwnData
from veilgraph.paradigms.sealed.role import SealedRole
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.judge import Judge, Predicted
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Session
from veilgraph.protocol.scores import Objective, Scores

_SURE = 30.0
"""The logit of a class that alone is known."""
_DATA = "data"
_NOISE = "noise-id"
_TABLES = "tables"


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _passed(epoch: int) -> Tag:
    """Of the message that a holder has saved the checkpoint before an epoch."""
    return Tag(Kind.READY, epoch, 1)


class Counted(Scores):
    """Of a step, of which the label holder knows but how many validation nodes are right."""

    @override
    def record(self) -> dict[str, float | None]:
        return {"val_accuracy": self.val_accuracy}


class Untold(Scores):
    """Of a model that has predicted none of the label holder's nodes, or named ones alone."""

    @override
    def summary(self) -> dict[str, float | None]:
        return dict.fromkeys(super().summary())


class SealedDealer(SealedRole):
    """Deals randomness; no message to it depends on anybody's data."""

    in_lockstep = False  # it deals ahead of the holders

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._unheard: int | None = None

    @override
    def catch_up(self, epoch: int | None) -> None:
        """Before it saves a checkpoint it waits until all holders have saved the one before."""
        if self.follows_checkpoint(epoch):
            self._unheard = epoch
        if self._unheard is not None and (epoch is None or epoch % self._job.train.checkpoint_every == 0):
            gather(self.session.link, self.session.holders, _passed(self._unheard), (1,), torch.uint8)
            self._unheard = None

    @override
    def machine(self, dealing: Dealing) -> Machine:
        link, holders, secrets = self.session.link, self.session.holders, self.session.secrets
        if self._job.dealer_checks:
            return dealer_of(link, holders, secrets, dealing)
        return DealerMachine(link, holders, secrets)

    @override
    def state(self) -> dict[str, Tensor]:
        """Nothing: all that it draws is of one session."""
        return {}


class SealedHolder(SealedRole):
    """Has features and edges.

    Raises:
        DataError: they do not fit the job's public bounds.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        self._released: dict[str, Tensor] = {}
        self._own = own_data(self._job, graph, refuses=bool(session.refuses))
        self._tables, self._noise_id = _bytes(self._own.digest()), torch.zeros(SEED_BYTES, dtype=torch.uint8)

    @override
    def hello(self) -> Hello:
        stated = {
            "nodes": self.graph.common,
            "features": self._own.features.shape[1],
            "edges": slots_of(self._job, self._own.edges.shape[1]),
        }
        return super().hello().model_copy(update=stated)

    @override
    def catch_up(self, epoch: int | None) -> None:
        if epoch is not None and self.follows_checkpoint(epoch):
            self.session.link.send(SERVER, _passed(epoch), torch.ones(1, dtype=torch.uint8))

    @override
    def get(self, found: Mapping[PartyId, dict[str, Tensor]]) -> None:
        self._released = found[self.session.link.party]

    @override
    def opened_weights(self) -> dict[str, Tensor]:
        """Weights of its own columns in the first layer, as ``SealedProgram.release`` names them."""
        return self._released

    @override
    def declines(self) -> str:
        """Why this holder takes no part: its dealer failed a check, or a training could not be paid for at its end."""
        failed = unfinished(self.session.keeper) if self._job.dealer_checks else ""
        return failed or (self.session.publisher.refusal() if self._learns and self._is_new else "")

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        self._is_new = not held
        return super().setup(held)

    @override
    def voted(self) -> None:
        """The noise is new: what is opened of it has not been paid for."""
        self._noise_id = _bytes(self.session.secrets(SEED_BYTES))

    @override
    def pay(self) -> None:
        if self._job.privacy is not None:
            self.session.publisher.pay(self._noise_id.numpy().tobytes().hex())

    @override
    def weights(self) -> dict[str, Tensor]:
        """With ``privacy`` what votes are of as well: predictions have the same noise, so they are of the same data."""
        own = super().weights()
        return own if self._job.privacy is None else {**own, _NOISE: self._noise_id, _TABLES: self._tables}

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self.program.check(saved)
        if self._job.privacy is not None:
            self._noise_id = saved[_NOISE]
            if not torch.equal(saved[_TABLES], self._tables):
                raise RunError(
                    f"{self.session.link.party}: its data have changed since the training, whose votes are of the old "
                    "ones: with privacy a run predicts of the data that it was trained on alone; train a new run, "
                    "which is paid for anew",
                    code="data-changed",
                    party=self.session.link.party,
                )
        super().load_weights(saved)

    @override
    def state(self) -> dict[str, Tensor]:
        votes = {} if self._job.privacy is None else {_NOISE: self._noise_id}
        return {**super().state(), **votes, _DATA: _bytes(self._own.digest())}

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.program.check(saved)
        if not torch.equal(saved[_DATA], _bytes(self._own.digest())):
            raise RunError(
                f"{self.session.link.party}: its data have changed since the checkpoint; begin a new run, for what "
                "was computed of the old ones cannot be gone on with",
                code="data-changed",
                party=self.session.link.party,
            )
        self._noise_id = saved.get(_NOISE, self._noise_id)
        super().load_state({name: share for name, share in saved.items() if name not in (_DATA, _NOISE)})

    @override
    def machine(self, dealing: Dealing) -> Machine:
        link, holders, rate = self.session.link, self.session.holders, self._job.dealer_checks
        if rate:
            link = checked_link(link, holders, SERVER, dealing, rate, self.session.secrets, self.session.keeper)
        return HolderMachine(link, holders)

    @override
    def data(self) -> Mapping[PartyId, OwnData]:
        return {self.session.link.party: self._own}


class SealedLabelHolder(SealedHolder, Judge):
    """Has labels as well, and learns what the job says of every node."""

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, torch.float64)
        if self._job.predicts_named:
            self.predicted = torch.empty(0, dtype=torch.int64) if session.asked is None else session.asked
            self.logits = torch.empty((0, self._objective.classes), dtype=torch.float64)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """A training needs its labels, and states how many rows it trains on and judges by; a prediction does not."""
        if self._learns:
            common, classes = self.graph.common_part(), self._objective.classes
            self._own = with_labels(self._own, common, self._job, self.session.streams, classes)
        else:
            self._own = replace(self._own, asked=self.predicted)
        return super().setup(held)

    @override
    def declines(self) -> str:
        if (why := super().declines()) or self._learns or self.predicted is None:
            return why
        return self._naming.refusal(self.predicted.numel())

    @override
    def hello(self) -> Hello:
        own = self._own
        counts = {"training": own.rows, "validation": own.judged, "asked": own.asked}
        stated = {name: 0 if rows is None else rows.numel() for name, rows in counts.items()}
        return super().hello().model_copy(update=stated | {"classes": self._objective.classes})

    @override
    def learn(self, found: Tensor | None) -> None:
        assert found is not None
        if self._job.output == "probabilities":
            self.logits = found.clamp_min(2.0**-16).log()
            return
        classes = found[:, 0].round().to(torch.int64)
        self.logits = _SURE * nn.functional.one_hot(classes, self._objective.classes).to(torch.float64)

    @override
    def predictions(self) -> Predicted:
        return replace(super().predictions(), classes_alone=self._job.output == "classes")

    @override
    def judge(self, found: Tensor | None) -> None:
        assert found is not None
        assert self._own.judged is not None
        self._right = int(found) / self._own.judged.numel()

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Where probabilities of all nodes are opened: classes alone say nothing of how sure they are."""
        return super().calibration(probabilities) if self._job.output == "probabilities" else None

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """While training the one number that is known; of classes alone no ranking can be made."""
        if self._learns:
            return Counted(math.nan, 0.0, math.nan, self._right, None)
        if self.predicted is not None:
            return Untold(math.nan, math.nan, math.nan, math.nan, None)
        found = self._objective.score(self.logits.detach(), everything=everything)
        if self._job.output == "probabilities":
            return found
        return replace(found, val_auc=None, test_auc=None, val_ap=None, test_ap=None)
