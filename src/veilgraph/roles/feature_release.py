"""What nodes perturbed by themselves, released a single time to the holder that learns (LPGNN, algorithm 1).

A release is kept, so that later sessions on the same data release nothing: every holder numbers its releases and knows
whether its data have changed since. Everything after is computed from released values: it costs no ε.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import BudgetSpent, ConfigError, DataError, ProtocolError
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.graph.features import is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.kprop import AffineFeatures
from veilgraph.privacy.local.build import feature_mechanism
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.roles.agreement import Hello, agree
from veilgraph.roles.label_release import ReleasedLabels
from veilgraph.roles.role import Session

_LABELS: Final = "labels"


@dataclass(frozen=True, eq=False)
class Releases:
    """What a party works with.

    Attributes:
        number: of the release, the same at all holders.
        is_new: whether it was made in this session.
        tensors: at the holder that learns, by name, what came, as it crossed the wire; ``labels`` where these are
            private, and ``features/<holder>``.
        columns: holder that releases → its d.
        classes: c, of private labels.
    """

    number: int
    is_new: bool
    tensors: Mapping[str, Tensor]
    columns: Mapping[PartyId, int]
    classes: int

    def labels(self, nodes: int) -> ReleasedLabels | None:
        """The labels that were released; None where the learner has its own.

        Raises:
            ProtocolError: they are of other data.
            KeyError: they are missing.
        """
        return ReleasedLabels.unpacked(self.tensors[_LABELS], nodes, self.classes) if self.classes else None


def exchange_releases(
    session: Session,
    graph: PartyGraph | None,
    held: int,
    kept: Mapping[str, Tensor],
    publisher: LocalPublisher | None,
) -> Releases:
    """Agrees on the release that all have kept, or makes a new one; called at all parties together.

    Args:
        session: of this party.
        graph: its own, validated; None at the server.
        held: number of its newest release, negative if its data have changed since, 0 for none.
        kept: at the holder that learns, what came of that release.
        publisher: of a holder that releases.

    Raises:
        BudgetSpent: a new release is needed, and a holder's budget has no room for it.
        ConfigError: a party refuses the job, or holders with labels are not those that the job names.
        ProtocolError: what came is no release of this job.
        DataError: a feature lies outside the declared range.
    """
    job, link = session.settings, session.link
    labelled = publisher is not None and publisher.response is not None
    mine = Hello(
        job=job.hash(),
        nodes=0 if graph is None else graph.common,
        features=0 if graph is None else graph.num_features,
        classes=(graph.num_classes or 0) if graph is not None and labelled else 0,
        alignment=session.alignment,
        refuses=session.refuses or _misplaced_labels(session, graph, labelled=labelled),
        release=held,
        steps=None if publisher is None else publisher.room(),
    )
    hellos = agree(link, session.holders, mine)
    columns = {holder: hellos[holder].features for holder in job.releasing}
    classes = 0 if job.local.labels is None else hellos[job.local.labels.holder].classes
    stated = {hellos[holder].release for holder in session.holders}
    number = stated.pop() if len(stated) == 1 else 0
    if number > 0:
        return Releases(number, is_new=False, tensors=kept, columns=columns, classes=classes)
    spent = [holder for holder in job.releasing if hellos[holder].steps == 0]
    if spent:
        raise BudgetSpent(
            f"a new release is needed, since there is none or data have changed, and the limits.max_epsilon of "
            f"{', '.join(spent)} has no room for it; raise it there, or lower local.features.epsilon in a new run"
        )
    number = 1 + max(abs(hellos[holder].release) for holder in session.holders)
    tensors: dict[str, Tensor] = {}
    if publisher is not None and graph is not None:
        _release(session, graph, publisher)
    elif graph is not None:
        for holder, width in columns.items():
            came = link.receive(holder, Tag(Kind.PERTURBED_FEATURES))
            unpacked(came, graph.common, width)
            tensors[_name(holder)] = came
        if job.local.labels is not None:
            tensors[_LABELS] = link.receive(job.local.labels.holder, Tag(Kind.PERTURBED_LABELS))
            ReleasedLabels.unpacked(tensors[_LABELS], graph.common, classes)
    return Releases(number, is_new=True, tensors=tensors, columns=columns, classes=classes)


def released_features(session: Session, releases: Releases, nodes: int) -> list[AffineFeatures]:
    """Every releasing holder's estimate x' = scale·x* + offset, in the job's order of holders.

    Args:
        session: of the holder that learns.
        releases: as ``exchange_releases`` gave them.
        nodes: C.

    Raises:
        ProtocolError: a release is of other data.
        KeyError: one is missing.
        ConfigError: the job releases no features.
    """
    settings = session.settings.feature_release
    if settings is None:
        raise ConfigError("local.features is missing: the job releases none")
    found = []
    for holder, columns in releases.columns.items():
        mechanism, values = feature_mechanism(settings, columns), releases.tensors[_name(holder)]
        found.append(AffineFeatures(unpacked(values, nodes, columns), mechanism.scale, mechanism.offset))
    return found


def packed(released: Tensor) -> Tensor:
    """A mechanism's output as it crosses the wire.

    Args:
        released: Tensor[N, d]: sparse_csr of −1 and 1, as many in every row; int8 of −1, 0 and 1; or float32.

    Returns:
        Tensor[N, m] int64, 1 + column with the value's sign; Tensor[N, d] uint8, 1 + value; or as it is.
    """
    if is_sparse(released):
        columns = released.col_indices().to(torch.int64) + 1
        return (columns * released.values().sign().to(torch.int64)).view(released.shape[0], -1)
    return (released + 1).to(torch.uint8) if released.dtype == torch.int8 else released


def unpacked(values: Tensor, nodes: int, columns: int) -> Tensor:
    """What ``packed`` was given, sparse_csr or strided, float32.

    Raises:
        ProtocolError: it is nothing that a mechanism releases for so many nodes and columns.
    """
    is_dense = values.dtype in (torch.uint8, torch.float32)
    if values.ndim != 2 or len(values) != nodes or (is_dense and values.shape[1] != columns):
        raise _broken(f"shape {list(values.shape)} for {nodes} nodes of {columns} columns")
    if values.dtype == torch.uint8:
        if values.numel() and int(values.max()) > 2:
            raise _broken("a value that is none of −1, 0 and 1")
        return values.to(torch.float32) - 1
    if values.dtype == torch.float32:
        if not bool(values.isfinite().all()):
            raise _broken("a value that is not finite")
        return values
    if values.dtype != torch.int64:
        raise _broken(f"dtype {values.dtype}")
    places = values.abs()
    if values.numel() and not (
        bool((places.diff(dim=1) > 0).all()) and int(places.min()) >= 1 and int(places.max()) <= columns
    ):
        raise _broken("columns that do not exist, or not in rising order")
    pointers = torch.arange(nodes + 1) * values.shape[1]
    signs = values.sign().to(torch.float32).reshape(-1)
    return torch.sparse_csr_tensor(pointers, (places - 1).reshape(-1), signs, (nodes, columns), check_invariants=True)


def _release(session: Session, graph: PartyGraph, publisher: LocalPublisher) -> None:
    """To the holder that learns: features of the common nodes and, where they are private, labels."""
    to, link = session.settings.data.label_party, session.link
    common = graph.common_part()
    link.send(to, Tag(Kind.PERTURBED_FEATURES), packed(publisher.features(common.features)))
    if publisher.response is None:
        return
    if common.labels is None or common.train_mask is None or common.val_mask is None:
        raise DataError(f"party {graph.party!r}: labels or masks are missing, and local.labels names it; give them")
    known = (common.train_mask | common.val_mask) & (common.labels >= 0)
    values = torch.full_like(common.labels, -1)
    values[known] = publisher.labels(common.labels[known])
    released = ReleasedLabels(
        values, common.train_mask & known, common.val_mask & known & ~common.train_mask, publisher.response.classes
    )
    link.send(to, Tag(Kind.PERTURBED_LABELS), released.packed())


def _misplaced_labels(session: Session, graph: PartyGraph | None, *, labelled: bool) -> str:
    """Why this party cannot take part: labels are not where the job says."""
    learner = session.settings.data.label_party
    if graph is None:
        return ""
    if graph.party == learner and session.settings.local.labels is None and graph.labels is None:
        return f"it has no labels, and data.label_holder={learner} learns from its own; give them, or see local.labels"
    if labelled and graph.labels is None:
        return f"it has no labels, and local.labels.holder={graph.party} releases them; give them, or name another"
    return ""


def _name(holder: PartyId) -> str:
    return f"features/{holder}"


def _broken(what: str) -> ProtocolError:
    return ProtocolError(f"released features hold {what}; install the same release of veilgraph at every party")
