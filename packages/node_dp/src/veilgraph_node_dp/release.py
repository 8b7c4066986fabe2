"""What nodes perturbed by themselves, released a single time to the holders that learn (LPGNN, algorithm 1).

Who learns from a release keeps it, so that later sessions on the same nodes release nothing: every holder numbers its
releases, and a new alignment has a new one. Who releases keeps the very bytes, and sends them again for the same nodes,
whatever has become of its data: a release that followed every change would show which there were. Everything after is
computed from released values: it costs no ε.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from veilgraph.core.errors import BudgetSpent, ConfigError, DataError, ProtocolError, RunError
from veilgraph.core.tensor_file import Keeper
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.agreement import Hello, check_restart_allowed, stated_releases
from veilgraph.protocol.bounds import agree_and_check_bounds
from veilgraph.protocol.releases import RELEASE, depends_on
from veilgraph.protocol.role import RoleContext
from veilgraph_node_dp.mechanisms import AffineFeatures, FeatureMechanism, MultiBit, feature_mechanism
from veilgraph_node_dp.publisher import LocalPublisher
from veilgraph_node_dp.released import LABELS, ReleasedLabels, Releases, released_labels
from veilgraph_node_dp.settings import NodeDpJob, node_dp


def exchange_releases(
    session: RoleContext, graph: PartyGraph | None, held: int, kept: Mapping[str, Tensor]
) -> Releases:
    """Agree on the release that all holders have kept, or make a new one; all parties call it together.

    ``held`` is the number of this party's newest release, negative if it is of another alignment, 0 for none; ``kept``
    is what a holder that learns has of it. ``graph`` is None at the server.

    Raises:
        BudgetSpent: a new release is needed, and a holder's budget has no room for it.
        ConfigError: a party refuses the job, or holders with labels are not those that the job names.
        ProtocolError: what came is no release of this job.
        RunError: a new release is needed, and a party that has trained on the last does not begin again.
    """
    job, door = node_dp(session.settings), session.publisher
    publisher = door if isinstance(door, LocalPublisher) else None
    response = None if publisher is None else publisher.response
    room = door.affordable_releases() if session.link.party in job.duties.summing else None
    mine = Hello(
        job=job.hash(),
        nodes=0 if graph is None else graph.common,
        features=0 if publisher is None else publisher.mechanism.features,
        classes=0 if response is None else response.classes,
        alignment=session.alignment,
        refuses=session.refuses or ("" if graph is None else _refusal(session, graph, publisher)),
        release=held,
        steps=stated_releases(room if publisher is None else publisher.room()),
        restarts=session.restarts,
    )
    hellos = agree_and_check_bounds(session, mine, releases=True)
    columns = {holder: hellos[holder].features for holder in job.duties.releasing}
    classes = 0 if job.release.labels is None else hellos[job.release.labels.holder].classes
    if without := [holder for holder in job.duties.summing if hellos[holder].steps == 0]:
        raise BudgetSpent(
            f"a new release of sums over its edges is needed and the budget of {', '.join(without)} has no room for "
            "one; allow a larger privacy.epsilon_total in a new run, or leave room for predictions with "
            "privacy.predictions; or, where it is what was ever released (veilgraph budget --party), a larger "
            "limits.max_epsilon there",
            code="no-room",
            party=", ".join(without),
        )
    number, is_new = agreed_release(hellos, session.holders)
    if not is_new:
        return Releases(number, is_new=False, tensors=kept, columns=columns, classes=classes)
    spent = [holder for holder in job.duties.releasing if hellos[holder].steps == 0]
    if spent:
        raise BudgetSpent(
            f"a new release is needed, since there is none or other nodes are common, and the limits.max_epsilon of "
            f"{', '.join(spent)} has no room for it; raise it there, or lower the release's epsilon in a new run",
            party=", ".join(spent),
        )
    tensors: dict[str, Tensor] = {}
    if publisher is not None and graph is not None:
        _send_release(session, graph, publisher)
    if graph is not None and graph.party in job.duties.learning:
        tensors = _receive_all(session, graph.common, columns, classes)
    return Releases(number, is_new=True, tensors=tensors, columns=columns, classes=classes)


def released_features(session: RoleContext, releases: Releases, nodes: int) -> list[AffineFeatures]:
    """Return each releasing holder's features of common nodes, estimated as scale·x* + offset, in the job's order.

    Raises ``ProtocolError`` for a release of other data, ``KeyError`` where one is missing, ``ConfigError`` where the
    job releases none.
    """
    found = []
    for holder, columns in releases.columns.items():
        mechanism, values = _job_mechanism(node_dp(session.settings), columns), releases.tensors[_tensor_name(holder)]
        found.append(AffineFeatures(unpacked(values, nodes, mechanism), mechanism.scale, mechanism.offset))
    return found


def _job_mechanism(job: NodeDpJob, columns: int) -> FeatureMechanism:
    if job.release.features is None:
        raise ConfigError("the job releases no features; give release.features")
    return feature_mechanism(job.release.features, columns)


def unpacked(values: Tensor, nodes: int, mechanism: FeatureMechanism) -> Tensor:
    """Read what ``to_wire`` wrote, sparse_csr or strided, float32; raises ``ProtocolError`` for anything else."""
    columns = mechanism.features
    is_sampled = values.dtype == torch.int64
    if values.ndim != 2 or len(values) != nodes or not (is_sampled or values.shape[1] == columns):
        raise _bad_release(f"shape {list(values.shape)} for {nodes} nodes of {columns} columns")
    if not isinstance(mechanism, MultiBit):
        if values.dtype != torch.float32:
            raise _bad_release(f"dtype {values.dtype}")
        if not bool(values.isfinite().all()):
            raise _bad_release("a value that is not finite")
        return values
    if values.dtype == torch.uint8:
        if values.numel() and int(values.max()) > 2:
            raise _bad_release("a value that is none of −1, 0 and 1")
        if bool(((values != 1).sum(dim=1) != mechanism.sample_size).any()):
            raise _bad_release(f"not {mechanism.sample_size} features of every node")
        return values.to(torch.float32).sub_(1)
    if not is_sampled:
        raise _bad_release(f"dtype {values.dtype}")
    if values.shape[1] != mechanism.sample_size:
        raise _bad_release(f"{values.shape[1]} features of a node, and not {mechanism.sample_size}")
    places = values.abs()
    if nodes and not (bool((places.diff(dim=1) > 0).all()) and int(places.min()) >= 1 and int(places.max()) <= columns):
        raise _bad_release("columns that do not exist, or not in rising order")
    pointers = torch.arange(nodes + 1) * values.shape[1]
    signs = values.sign().to(torch.float32).reshape(-1)
    return torch.sparse_csr_tensor(pointers, (places - 1).reshape(-1), signs, (nodes, columns), check_invariants=True)


def _send_release(session: RoleContext, graph: PartyGraph, publisher: LocalPublisher) -> None:
    """Release common nodes' features and, where labels are private, these; send them to the learner."""
    common, link, response = graph.common_part(), session.link, publisher.response
    released = publisher.features(common.features)
    labels = None if response is None else _release_labels(common, publisher, response.classes)
    for to in session.settings.duties.learning:
        link.send(to, Tag(Kind.PERTURBED_FEATURES), released)
    if labels is not None:
        link.send(session.settings.data.label_party, Tag(Kind.PERTURBED_LABELS), labels)


def _release_labels(common: PartyGraph, publisher: LocalPublisher, classes: int) -> Tensor:
    """Perturb the training and validation labels of common nodes, and pack them with the split."""
    labels, train, val, known = released_labels(common)
    values = torch.full_like(labels, -1)
    values[known] = publisher.labels(labels[known])
    return ReleasedLabels(values, train & known, val & known & ~train, classes).packed()


def _receive_all(session: RoleContext, nodes: int, columns: Mapping[PartyId, int], classes: int) -> dict[str, Tensor]:
    """Receive and check every holder's release: ``features/<holder>``, and ``labels`` if they are private."""
    link, job = session.link, node_dp(session.settings)
    private = job.release.labels
    found: dict[str, Tensor] = {}
    for holder, width in columns.items():
        tag = Tag(Kind.PERTURBED_FEATURES)
        found[_tensor_name(holder)] = came = link.receive(holder, tag)
        with _with_sender(link.party, holder, tag):
            unpacked(came, nodes, _job_mechanism(job, width))
    if private is not None:
        tag = Tag(Kind.PERTURBED_LABELS)
        found[LABELS] = link.receive(private.holder, tag)
        with _with_sender(link.party, private.holder, tag):
            ReleasedLabels.unpacked(found[LABELS], nodes, classes)
    return found


@contextmanager
def _with_sender(party: PartyId, sender: PartyId, tag: Tag) -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise error.told(f"{party} got {tag} from {sender}: {error}", sender) from error


def _refusal(session: RoleContext, graph: PartyGraph, publisher: LocalPublisher | None) -> str:
    """Return why this holder cannot take part, or empty: a feature out of range, or misplaced labels."""
    if publisher is not None and not publisher.is_free:  # what was released is not looked at again
        try:
            publisher.mechanism.check(graph.common_part().features)
        except DataError:  # names a value, which nobody else is told
            low, high = publisher.mechanism.low, publisher.mechanism.high
            return (
                f"it has a feature outside the range from low={low:g} to high={high:g} of the job's release; declare "
                "one that holds every value that a feature can have, or clip the features to it"
            )
    return misplaced_labels(node_dp(session.settings), graph)


def misplaced_labels(job: NodeDpJob, graph: PartyGraph) -> str:
    """Return why a holder's graph does not fit the job: labels are not where it says; empty if they are."""
    learner, private = job.data.label_party, job.release.labels
    if graph.party == learner and private is None and graph.labels is None:
        return (
            f"it has no labels, and data.label_holder={learner} learns from its own; give them, or see release.labels"
        )
    if private is None:
        return ""
    if graph.party == learner and graph.labels is not None:
        return (
            f"it has labels itself, and release.labels.holder={private.holder} releases those to learn from; leave out "
            "its own, or release.labels"
        )
    if graph.party == private.holder and graph.labels is None:
        return f"it has no labels, and release.labels.holder={graph.party} releases them; give them, or name another"
    return ""


def _tensor_name(holder: PartyId) -> str:
    return f"features/{holder}"


def _bad_release(what: str) -> ProtocolError:
    return ProtocolError(
        f"released features hold {what}; install the same release of veilgraph at every party", code="released-features"
    )


def agreed_release(hellos: Mapping[PartyId, Hello], holders: Sequence[PartyId]) -> tuple[int, bool]:
    """Return the number of the single release that all work with, and whether it is to be made now.

    Where holders state different ones, or one is of another alignment, it is new and numbered above all others. Raises
    ``RunError``: a party that trained on its release would have to begin again, and does not allow that.
    """
    numbers = {holder: hellos[holder].release for holder in holders}
    held = [number for number in numbers.values() if number > 0]
    usual = max(numbers.values(), key=held.count)
    if usual > 0 and held.count(usual) == len(numbers):
        return usual, False
    without = [other for other, number in numbers.items() if number != usual or number <= 0]
    check_restart_allowed(
        {other: hello.restarts for other, hello in hellos.items()}, without, "the release that was learnt from"
    )
    return 1 + max(map(abs, numbers.values())), True


class KeptRelease:
    """One holder's saved part of the newest release; raises ``RunError`` if its file is damaged.

    ``number`` is negative if it is of another alignment, 0 for none; ``tensors``: what it received, {} if not valid.
    """

    def __init__(self, keeper: Keeper, identity: str, graph: PartyGraph) -> None:
        self._keeper = keeper
        self._depends_on = depends_on(identity, graph)
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
        """Save a new release over the old: its number, and the tensors that this holder received."""
        self._keeper.put(RELEASE, tensors, {"number": number, "depends_on": self._depends_on})


def damaged(keeper: Keeper, what: object) -> RunError:
    """Make the error for a damaged file of the saved release."""
    return RunError(f"{keeper.place(RELEASE)}: damaged ({what}); delete it, and the holders release anew")


def agree_on_release(session: RoleContext, graph: PartyGraph | None) -> Releases:
    """Agree on the release of all holders, and save a new one for later sessions; ``graph`` is None at the server."""
    if graph is None:
        return exchange_releases(session, None, 0, {})
    kept = KeptRelease(session.keeper, session.alignment, graph)
    releases = exchange_releases(session, graph, kept.number, kept.tensors)
    if releases.is_new:
        kept.replace(releases.number, releases.tensors)
    return releases


@contextmanager
def checked(session: RoleContext) -> Iterator[None]:
    """Raise ``RunError`` if reading the saved release fails in the block; a new one was checked when it came."""
    try:
        yield
    except KeyError as error:
        raise damaged(session.keeper, f"it lacks {error}") from error
    except ProtocolError as error:
        raise damaged(session.keeper, str(error).partition(";")[0]) from error
