"""A single release in a party's part of a run, at who learns from it and at who makes it, so that it is not repeated.

``privacy.schedule: once`` releases embeddings, paradigm local perturbed features and labels, and the vertical method
``perturbed`` such features. Who learns from a release keeps it; who releases keeps what tells whether its data have
changed since, and in a file of its own the very bytes, which it sends again for as long as they have not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.keeper import Keeper
from veilgraph.core.secrets import new_name
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.single import digest_of, parts
from veilgraph.protocol.job import JobSettings

RELEASE: Final = "release"
OWN_RELEASE: Final = "own_release"


class KeptRelease:
    """What one holder keeps of the newest release of all.

    Args:
        keeper: of the party.
        settings: the job.
        identity: of the alignment.
        graph: of the holder.

    Attributes:
        number: of the newest release; negative where what it depends on has changed since; 0 for none.
        tensors: by name, what the party was given, where the release holds.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(self, keeper: Keeper, settings: JobSettings, identity: str, graph: PartyGraph) -> None:
        self._keeper = keeper
        self._depends_on = depends_on(settings, identity, graph)
        self.number = 0
        self.tensors: Mapping[str, Tensor] = {}
        if (kept := keeper.get(RELEASE)) is None:
            return
        tensors, facts = kept
        try:
            same, number = facts["depends_on"] == self._depends_on, int(facts["number"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(keeper, error) from error
        self.number = number if same else -number
        self.tensors = tensors if same else {}

    def replace(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Keeps a new release: its number, and what the party was given of it."""
        self._keeper.put(RELEASE, tensors, {"number": number, "depends_on": self._depends_on})


class OwnRelease:
    """What one holder has released of its data as they are now, by channel (``privacy.single.SentRelease``).

    Args:
        keeper: of the party.
        depends: what tells whether these data, and how they are released, are those of before.
        alone: keeps other jobs from what is kept, where the keeper is not of one run.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(
        self, keeper: Keeper, depends: str, alone: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self.keeper = keeper
        self._depends_on, self._alone = depends, alone
        self._look()

    @contextmanager
    def held(self) -> Iterator[None]:
        """See ``SentRelease.held``: with what other jobs have kept since."""
        with self._alone():
            self._look()
            yield

    def _look(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._shapes: dict[str, list[int]] = {}
        self._draws: dict[str, str] = {}
        if (kept := self.keeper.get(OWN_RELEASE)) is None:
            return
        tensors, facts = kept
        try:
            if facts["depends_on"] == self._depends_on:
                self._tensors, self._shapes = dict(tensors), dict(facts["sparse"])
                self._draws = dict(facts.get("draws", {}))  # none where an earlier release of veilgraph kept them
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{self.keeper.place(OWN_RELEASE)}: damaged ({error}); restore it, or delete it, and the holder "
                "releases anew and pays"
            ) from error

    def get(self, channel: str) -> Tensor | None:
        """What was kept for that channel; None where nothing was, or the data have changed since."""
        if channel not in self._shapes:
            return self._tensors.get(channel)
        pointers, columns, values = (self._tensors[f"{channel}/{part}"] for part in range(3))
        return torch.sparse_csr_tensor(pointers, columns, values, self._shapes[channel], check_invariants=True)

    def put(self, channel: str, released: Tensor) -> None:
        """Keeps it, with the name of a new draw: it is on the disk when this returns."""
        self._draws[channel] = new_name()
        if released.is_sparse_csr:
            self._shapes[channel] = list(released.shape)
            self._tensors |= {f"{channel}/{part}": tensor for part, tensor in enumerate(parts(released))}
        else:
            self._tensors[channel] = released
        facts = {"depends_on": self._depends_on, "sparse": self._shapes, "draws": self._draws}
        self.keeper.put(OWN_RELEASE, self._tensors, facts)

    def draw(self, channel: str) -> str:
        """The name of the draw that what is kept for that channel came of; empty where it was kept without one."""
        return self._draws.get(channel, "")


def damaged(keeper: Keeper, what: object) -> RunError:
    """Of what was kept of the newest release of all."""
    return RunError(f"{keeper.place(RELEASE)}: damaged ({what}); delete it, and the holders release anew")


def depends_on(settings: JobSettings, identity: str, graph: PartyGraph) -> str:
    """SHA-256 of all of a holder's data that its part of a single release depends on, and of which nodes are common."""
    return digest_of(f"{identity}/{graph.common}", released_data(settings, graph))


def summed_data(graph: PartyGraph, *, own_columns: bool) -> Sequence[Tensor | None]:
    """All of a learner's data that its noisy sums depend on (``JobSettings.summing``): those of the common nodes.

    Of labels those alone that something is learnt from.

    Args:
        graph: of the learner.
        own_columns: whether it learns of its own columns.
    """
    common = graph.common_part()
    labels, train, val = common.labels, common.train_mask, common.val_mask
    if labels is not None and train is not None and val is not None:
        labels = torch.where(train | val, labels, -1)
    features = common.features if own_columns else None
    return features, common.edge_index, common.edge_weight, labels, train, val


def released_data(settings: JobSettings, graph: PartyGraph) -> Sequence[Tensor | None]:
    """All of a holder's data that its part of a single release depends on."""
    if settings.privacy is not None and settings.privacy.once and graph.party not in settings.releasing:
        released = graph.party in settings.publishing
        return (graph.features, graph.edge_index, graph.edge_weight) if released else ()
    if graph.party in settings.perturbing:
        common = graph.common_part()
        return common.labels, *(getattr(common, split) for split in settings.perturbed_splits)
    if graph.party not in settings.releasing:
        return ()
    common, labels = graph.common_part(), settings.label_release
    features = graph.features if graph.party in settings.learning else common.features
    if labels is None or labels.holder != graph.party:
        return (features,)
    return features, common.labels, common.train_mask, common.val_mask
