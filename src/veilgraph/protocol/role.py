"""What all parties of a job have in common: one forward and one backward pass at a time, weights, an optimiser.

In batches every party derives the sequence of target nodes from the job's seed, so that nobody has to be told whose
turn it is. It runs over all common nodes and not over the training nodes, which the label holder keeps to itself: its
loss leaves the others out.

Several machines of one holder compute its local part by ``Spreading``, a seam that ``veilgraph-machines`` fills.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource
from veilgraph.core.settings import Registry
from veilgraph.core.tensor_file import Keeper, MemoryKeeper
from veilgraph.core.trace import NO_TRACE, AnyTrace
from veilgraph.core.types import Link, PartyId
from veilgraph.mpc.ring import device_of
from veilgraph.nn.layers import Adam
from veilgraph.nn.local.build import CustomModel
from veilgraph.nn.local.model import LocalSettings
from veilgraph.nn.propagate import Adjacency
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.protocol.agreement import NONCE_BYTES, Hello, Point, Start, fewest_steps
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.party_settings import MachineSettings

Machines = MachineSettings | int
"""What a party file names; or how many processes of this machine."""

_NAME: Final = "machines"
_SPREADINGS: Final[Registry[Spreading]] = Registry("veilgraph.machines", {}, "veilgraph.protocol.role:Spreading")


@dataclass(frozen=True, eq=False)
class LocalPart:
    """What several machines can compute for one of P holders: each of ``local`` may be another of the same weights."""

    local: nn.ModuleList
    adjacency: Adjacency
    settings: LocalSettings
    dim: int
    holders: int


class Spreading(ABC):
    """Computes a holder's local part on several machines."""

    @abstractmethod
    def spread(
        self, part: LocalPart, machines: Machines, party: PartyId, timeout_s: float
    ) -> AbstractContextManager[None]:
        """A block within which the part, whose models are replaced, is computed on all machines of the holder.

        Raises ``ConfigError``: the model runs on one machine alone; ``LinkError``: a machine came late or is gone.
        """


def installed_spreading() -> Spreading:
    """The installed implementation; raises ``ConfigError`` where there is none."""
    if _NAME not in _SPREADINGS:
        raise ConfigError(
            "machines: the distribution veilgraph-machines is not installed, which computes on several; install it "
            "(in a checkout: packages/machines), or leave machines out",
            code="not-installed",
        )
    return _SPREADINGS[_NAME]


@dataclass(frozen=True, eq=False)
class Batch:
    """The targets of one step: Tensor[B] int64 distinct common nodes, and its ``index`` in its epoch, from 0.

    ``period``: for how many steps, with this, h^0 and W have stayed the same; 0 before the last of them.
    """

    index: int
    rows: Tensor
    period: int
    is_last: bool


def training_batches(settings: JobSettings, nodes: int, epoch: int) -> Sequence[Batch | None]:
    """The steps of a training epoch (from 1): common nodes in an order drawn for it; [None] without batches."""
    size = settings.passes.targets
    if size is None:
        return [None]
    generator = LearningStreams(settings.seed, "batches").generator("order", epoch)
    order = torch.split(torch.randperm(nodes, generator=generator), size)
    steps = len(order)
    every = settings.train.refresh_every or steps

    def period(index: int) -> int:
        if (index + 1) % every == 0:
            return every
        return index % every + 1 if index == steps - 1 else 0

    return [Batch(index, rows, period(index), index == steps - 1) for index, rows in enumerate(order)]


def inference_batches(settings: JobSettings, nodes: int) -> Sequence[Batch | None]:
    """The steps of an inference: all common nodes in their order; None, all at once, without batches."""
    size = settings.passes.targets
    if size is None:
        return [None]
    order = torch.split(torch.arange(nodes), size)
    return [Batch(index, rows, 0, index == len(order) - 1) for index, rows in enumerate(order)]


BEGINNING: Final = "begin"
"""Name in a party's keeper of weights that its first session begins with, of an earlier run."""


class Witness(ABC):
    """What can have a party's session run again before an auditor."""

    @abstractmethod
    def put_in(self, tensors: Mapping[str, Tensor], held: Sequence[Point], start: Start) -> Mapping[str, Tensor]:
        """Commit, before all other parties, to what this party puts into a session, and return what it is to use.

        ``held`` are its checkpoints, and ``start`` where the session goes on. All parties call it together.
        """

    @abstractmethod
    def keep(self) -> None:
        """Keep what was taken so far; called before a checkpoint is written that follows from it."""


@dataclass(frozen=True)
class RoleContext:
    """What every role is given besides its data: settings, link and randomness. Nothing is global."""

    settings: JobSettings
    link: Link
    streams: LearningStreams
    secrets: SecretSource
    alignment: str = ""
    """Identity of the alignment that gave the rows their order; empty where none was made."""
    refuses: str = ""
    """Why this party does not take part, told to all before work; empty when it does."""
    publisher: Publisher = OPEN
    """Pays for what a holder releases of its data."""
    keeper: Keeper = field(default_factory=MemoryKeeper)
    """Of what the party may need again in later sessions."""
    custom: CustomModel | None = None
    """For ``model.local.model: custom``."""
    trace: AnyTrace = NO_TRACE
    """Where the time goes, in a training with a profile."""
    restarts: bool = True
    """Whether this party would begin again from nothing: it has trained nothing, or lets it be replaced."""
    answers: bool = False
    """Whether this session opens what an earlier prediction kept shares of, and computes nothing."""
    asked: Tensor | None = None
    """Tensor[R] int64, the nodes that this party names in a prediction of named ones; None where it names none."""
    witness: Witness | None = None
    """In a training whose messages are signed (``Passes.signed``)."""

    @property
    def holders(self) -> tuple[PartyId, ...]:
        """The data holders in the job's order."""
        return self.settings.data.names

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and embeddings."""
        return precision(self.settings)

    def nonce(self) -> str:
        """Draw fresh hexadecimal digits; all parties' nonces together name the session."""
        return self.secrets(NONCE_BYTES).hex()

    @property
    def rounding_key(self) -> bytes:
        """Key of ``SecretRounding``: the same in all sessions of a job, as secret as the party's seed."""
        return self.streams.secret("rounding")

    @property
    def device(self) -> torch.device:
        """Where this party computes, messages apart; ``ConfigError`` if this machine lacks what the job names."""
        return device_of(self.settings.device)


def precision(settings: JobSettings) -> torch.dtype:
    """The torch dtype that the job names."""
    return torch.float64 if settings.precision == "float64" else torch.float32


class PartyModel:
    """A party's part of the model: its ``networks`` by name, what its Adam trains of them, and what is saved.

    ``trained`` are the weights that Adam trains, by default all; ``rates`` learning rates of their own. ``besides``
    gives live tensors that belong to the weights beside those of the networks, ``in_training`` those that training
    needs as well.

    Attributes:
        is_stale: whether weights have changed since a pass last computed h^0.
        opened: what the job tells this party of the trained model in the clear, by name.
        best: the weights that training would end with, by name.
    """

    def __init__(
        self,
        session: RoleContext,
        networks: Mapping[str, nn.Module],
        *,
        trained: Sequence[nn.Parameter] | None = None,
        rates: Mapping[nn.Parameter, float] = MappingProxyType({}),
        besides: Callable[[], Mapping[str, Tensor]] = dict,
        in_training: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        self.session, self.networks = session, networks
        everything = [parameter for network in networks.values() for parameter in network.parameters()]
        self.trained = everything if trained is None else list(trained)
        self._rates, self._besides, self._in_training = rates, besides, in_training
        self.is_stale = True
        self.opened: dict[str, Tensor] = {}
        self.best: Mapping[str, Tensor] = {}

    def weights(self) -> dict[str, Tensor]:
        """The live weights by name, the party's part of the model; no shape depends on the number of nodes."""
        networks = {
            f"{part}.{name}": tensor
            for part, network in self.networks.items()
            for name, tensor in network.state_dict().items()
        }
        return {**networks, **self._besides()}

    def state(self) -> dict[str, Tensor]:
        """The live weights, and what else training needs to go on, by name."""
        return {**self.weights(), **self._in_training()}

    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        """Overwrite the live weights; raises ``RunError`` if the saved ones are of another network."""
        self._load(saved, self.weights())

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        """Overwrite the live state; raises ``RunError`` if the saved one is of another network or number of nodes."""
        self._load(saved, self.state())

    def _load(self, saved: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        if {name: live.shape for name, live in tensors.items()} != {name: old.shape for name, old in saved.items()}:
            raise RunError(
                f"{self.session.link.party}: the saved weights are of another network or party; give the files of this "
                "party's own run, or delete the checkpoint and resume"
            )
        for name, live in tensors.items():
            live.copy_(saved[name])
        self.is_stale = True

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """Adam with L2 over ``trained``; None where there is nothing to train."""
        return build_optimizer(self.trained, self._rates, self.session.settings) if self.trained else None

    def zero_grad(self) -> None:
        """Forgets gradients before a training pass."""
        for parameter in self.trained:
            parameter.grad = None

    def update(self) -> None:
        """One optimiser step."""
        if self.optimizer is not None:
            self.optimizer.step()


class Role(ABC):
    """One party. ``forward`` and ``backward`` run in lockstep with those of the other parties.

    Passes are counted by ``step``; the same step is never used twice in a session. ``model`` is known once set up.
    """

    model: PartyModel

    trains = True
    """Whether anything is left to do once it is set up."""
    in_lockstep = True
    """Whether the last step shows that every other party has begun it."""

    def __init__(self, session: RoleContext) -> None:
        self.session = session
        self.nodes = 0
        """C, how many nodes all holders of a vertical job know; known once set up."""
        self.batch: Batch | None = None
        """The targets of the pass, set before it; None: all common nodes at once."""
        self.embed_step = -1
        """Counts the initial embeddings computed in this session."""
        self.affordable_steps: int | None = None
        """Training steps that every party's privacy budget allows, known once set up; None without a budget."""
        self.scarcest: tuple[PartyId, ...] = ()
        """Whose budgets allow no more than that."""
        self._learns = True

    @abstractmethod
    def setup(self, held: Sequence[Point]) -> Start:
        """Agree with the others, and prepare the session from the newest ``held`` checkpoint that all have, or anew.

        Raises ``RunError``: there is none, and a party that has trained something does not let it be replaced.
        """

    def keep(self) -> None:  # noqa: B027  (only some roles have anything)
        """Save what the parties agreed on, once set up and before anything is computed from it."""

    @abstractmethod
    def forward(self, step: int, epoch: int | None) -> None:
        """One joint forward pass; ``epoch`` counts the dropout streams, None means evaluation."""

    @abstractmethod
    def backward(self, step: int) -> None:
        """The backward pass of the training pass just run: gradients everywhere, updates of what trains itself."""

    def finish(self) -> None:  # noqa: B027  (only some roles have anything)
        """Train what this party trains once and alone, after the last epoch and with the best weights."""

    def _dropout(self, epoch: int | None, purpose: str = "dropout") -> torch.Generator | None:
        """The dropout stream of an epoch, or of the batch in it; None in evaluation."""
        if epoch is None:
            return None
        counters = (epoch,) if self.batch is None else (epoch, self.batch.index)
        return self.session.streams.generator(purpose, *counters)

    def infer_only(self) -> None:
        """Announces that no backward pass will follow, so that nothing is prepared for one."""
        self._learns = False

    def allow_steps(self, hellos: Mapping[PartyId, Hello]) -> None:
        """Set ``affordable_steps`` and ``scarcest`` from all parties' hellos."""
        self.affordable_steps = fewest = fewest_steps(hellos)
        self.scarcest = tuple(party for party, hello in hellos.items() if fewest is not None and hello.steps == fewest)

    def _changed(self) -> None:
        """Mark h^0 as stale after an update of the weights; in batches only at the end of a period."""
        if self.batch is None or self.batch.period:
            self.model.is_stale = True

    def _embeds_now(self) -> bool:
        """Whether this forward pass computes h^0 anew, as after a change of weights; if so, ends that and counts it."""
        if not self.model.is_stale:
            return False
        self.model.is_stale = False
        self.embed_step += 1
        return True

    def close(self) -> None:  # noqa: B027  (only some roles have background work)
        """Ends background work."""


def build_optimizer(parameters: list[nn.Parameter], rates: Mapping[nn.Parameter, float], settings: JobSettings) -> Adam:
    """Adam with L2, as every party uses for its plain weights; ``rates`` are those other than the job's."""
    rate = settings.train.learning_rate
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(rates.get(parameter, rate), []).append(parameter)
    return Adam(
        [{"params": group, "lr": own_rate} for own_rate, group in groups.items()],
        lr=rate,
        weight_decay=settings.train.weight_decay,
    )
