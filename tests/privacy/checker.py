"""What may be on the wire: a table of every legal message, and statistics that tell a mask from what it hides.

``check_private`` reads one job, ``check_independent`` two jobs with different private inputs and secrets and the same
public shape. Both raise ``LeakFound``. With injected secrets the statistics are the same in every run, so the levels
below say how probable a false alarm is after a change of the code, not from run to run.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from tests.privacy.jobs import Recording
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.collectives import tensor_text
from veilgraph.link.view import Message
from veilgraph.mpc.mask import ring_sum
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.job import JobSettings

LEVEL: Final = 1e-7
"""A test of uniformity or independence fails below this p-value."""
CLEAR_LIMIT: Final = 0.5
"""R² that a message which is legally in the clear may reach on its sender's secrets; a linear image has 1."""
UNPUBLISHED: Final = "unpublished labels"
KEPT_BITS: Final = (64, 48, 32, 16)
"""A ring element is read as fixed point in its low bits too: a mask may not be coarser than what it hides."""

Role = Literal["any", "holder", "label holder", "server"]
Protection = Literal["public", "uniform", "clear"]
Pair = tuple[str, str, str]
Secret = tuple[str, Tensor, "Regressors"]
"""(name, rows, the columns to explain a message with)."""


class LeakFound(AssertionError):
    """A message says more than it may."""


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    Attributes:
        kind: of the message.
        rounds: of its tag.
        sender: the label holder is a holder, too.
        receiver: likewise.
        dtype: of its tensor.
        shape: numbers, or N, d, z (width of z_L), F of sender, F of receiver, "any".
        protection: public facts, uniformly random by itself, or data-dependent and in the clear.
    """

    kind: Kind
    rounds: range
    sender: Role
    receiver: Role
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    protection: Protection


def table(settings: JobSettings) -> list[Rule]:
    """Every message that a job with these settings may exchange."""
    model = vertical(settings).model
    real = torch.float64 if settings.precision == "float64" else torch.float32
    ring, byte = torch.int64, torch.uint8
    zero, backward = range(1), range(1, 2)
    every, inner, last = range(1, model.rounds + 1), range(1, model.rounds), range(model.rounds, model.rounds + 1)
    rules = [
        Rule(Kind.HELLO, zero, "any", "any", byte, ("any",), "public"),
        Rule(Kind.KEY, zero, "holder", "holder", byte, (32,), "public"),
        Rule(Kind.COMBINED, inner, "server", "holder", real, ("N", "d"), "clear"),
        Rule(Kind.COMBINED, last, "server", "label holder", real, ("N", "z"), "clear"),
        Rule(Kind.GRADIENT, zero, "label holder", "server", real, ("N", "z"), "clear"),
        Rule(Kind.GRADIENT, every, "server", "holder", real, ("N", "d"), "clear"),
    ]
    if settings.train.select_by != "last":
        rules.append(Rule(Kind.CONTROL, zero, "label holder", "any", torch.bool, (2,), "public"))
    if model.initial.method == "collaborative":
        rules += [
            Rule(Kind.SEED, zero, "server", "holder", byte, (32,), "public"),
            Rule(Kind.STATIC_DIFFERENCE, zero, "holder", "holder", ring, ("N", "F of sender"), "uniform"),
            Rule(Kind.MASKED_OPERAND, zero, "holder", "holder", ring, ("F of receiver", "d"), "uniform"),
            Rule(Kind.MASKED_OPERAND, backward, "holder", "holder", ring, ("N", "d"), "uniform"),
            Rule(Kind.CORRELATION, zero, "server", "holder", ring, ("N", "d"), "uniform"),
            Rule(Kind.CORRELATION, backward, "server", "holder", ring, ("F of receiver", "d"), "uniform"),
            Rule(Kind.SHARE, zero, "holder", "holder", ring, ("N", "d"), "uniform"),
        ]
    if model.initial.method == "secure-sum":
        rules += [
            Rule(Kind.MASKED, zero, "holder", "holder", ring, ("N", "d"), "uniform"),
            Rule(Kind.MASKED_GRADIENT, zero, "holder", "holder", ring, ("N", "d"), "uniform"),
        ]
    weighted = model.combine.strategy == "degree-weighted"
    if model.combine.is_masked:
        rules += [
            Rule(Kind.MASKED, every, "holder", "server", ring, ("N", "d"), "uniform"),
            Rule(Kind.MASKED, zero if weighted else range(0), "holder", "server", ring, ("N", 1), "uniform"),
            Rule(Kind.MASKED_GRADIENT, inner, "holder", "server", ring, ("N", "d"), "uniform"),
        ]
    else:
        rules += [
            Rule(Kind.EMBEDDING, every, "holder", "server", real, ("N", "d"), "clear"),
            Rule(Kind.EMBEDDING, zero if weighted else range(0), "holder", "server", real, ("N", 1), "clear"),
            Rule(Kind.GRADIENT, inner, "holder", "server", real, ("N", "d"), "clear"),
        ]
    return rules


def check_private(recording: Recording, rules: Sequence[Rule]) -> None:
    """Checks everything that left a party in one job.

    Raises:
        LeakFound: a message is not in the table, is not as random as its line says, or tells of its sender's
            features, degrees, local embeddings or labels; or what a receiver can add up is not random.
    """
    if not recording.sent:
        raise LeakFound("nothing was recorded")
    protections = [(message, rule_of(recording, rules, message).protection) for message in recording.sent]
    _check_public(message for message, protection in protections if protection == "public")
    hidden = _distinct(message for message, protection in protections if protection == "uniform")
    _check_uniform(hidden)
    _check_sums(recording)
    _check_fresh(hidden)
    _check_positions(hidden)
    for holder in recording.holders:
        own = [pair for pair in protections if pair[0].sender == holder and pair[1] != "public"]
        _check_unrelated(recording, holder, own)
    _check_both_ends(recording)


def check_independent(one: Recording, other: Recording, rules: Sequence[Rule]) -> None:
    """Checks that two jobs which differ in private inputs and secrets look alike and are not related.

    Raises:
        LeakFound: the exchange has another form, public messages differ, or hidden messages have another
            distribution or are related.
    """
    first, second = ({_key(message): message for message in job.sent} for job in (one, other))
    if first.keys() != second.keys():
        raise LeakFound(f"the form of the exchange depends on private inputs: {sorted(first.keys() ^ second.keys())}")
    bytes_of: dict[tuple[Kind, PartyId], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    once = {id(message) for message in _distinct(first.values())}
    for key, message in first.items():
        twin = second[key]
        rule = rule_of(one, rules, message)
        if message.tag.kind is Kind.HELLO and _stated(message.tensor) != _stated(twin.tensor):
            raise LeakFound(f"{_name(message)} depends on private inputs")
        if rule.protection == "uniform":
            if byte_p_value(message.tensor - twin.tensor) < LEVEL:
                raise LeakFound(
                    f"{_name(message)} is related to the same message of another job: its mask is no secret"
                )
            if id(message) in once:
                bytes_of[message.tag.kind, message.sender].append((message.tensor, twin.tensor))
    for (kind, sender), pairs in bytes_of.items():
        counted = np.stack([sum(_histogram(pair[job]) for pair in pairs) for job in (0, 1)])
        if stats.chi2_contingency(counted).pvalue < LEVEL:
            raise LeakFound(f"{sender}'s {kind.name.lower()} has another distribution in another job")


def _stated(hello: Tensor) -> str:
    """What a hello states, but for what is drawn in each session."""
    return re.sub('"nonce":"[0-9a-f]{32}"', "", tensor_text(hello))


def sent_in_clear(recording: Recording) -> set[Pair]:
    """(kind, sender, receiver) of everything data-dependent that travels in the clear."""
    rules = table(recording.settings)
    found = [(message, rule_of(recording, rules, message)) for message in recording.sent]
    return {
        (message.tag.kind.name, rule.sender, rule.receiver) for message, rule in found if rule.protection == "clear"
    }


# The table


def rule_of(recording: Recording, rules: Sequence[Rule], message: Message) -> Rule:
    """The line that allows a message.

    Raises:
        LeakFound: there is none.
    """
    for rule in rules:
        if (
            rule.kind is message.tag.kind
            and message.tag.round in rule.rounds
            and _is(recording, message.sender, rule.sender)
            and _is(recording, message.receiver, rule.receiver)
            and rule.dtype == message.tensor.dtype
            and _fits(recording, message, rule.shape)
        ):
            return rule
    raise LeakFound(f"no line of the table allows {_name(message)}")


def _is(recording: Recording, party: PartyId, role: Role) -> bool:
    return {
        "any": True,
        "holder": party in recording.holders,
        "label holder": party == recording.label_party,
        "server": party == SERVER,
    }[role]


def _fits(recording: Recording, message: Message, shape: tuple[int | str, ...]) -> bool:
    columns = {name: graph.num_features for name, graph in recording.graphs.items()}
    job, model = recording.settings, vertical(recording.settings).model
    wide = model.dim * (len(job.duties.publishing) if model.combine.strategy == "concat" else 1)
    symbols = {
        "N": recording.graphs[recording.label_party].num_nodes,
        "d": model.dim,
        "z": model.dim if model.server.layers > 0 else wide,
        "F of sender": columns.get(message.sender),
        "F of receiver": columns.get(message.receiver),
    }
    sizes = tuple(message.tensor.shape)
    return len(sizes) == len(shape) and all(
        want == "any" or got == (symbols[want] if isinstance(want, str) else want)
        for want, got in zip(shape, sizes, strict=True)
    )


def _check_both_ends(recording: Recording) -> None:
    sent = {_key(message): message for message in recording.sent}
    if len(sent) < len(recording.sent):
        raise LeakFound("a tag was used twice")
    for message in recording.received:
        origin = sent.get(_key(message))
        if origin is None or not torch.equal(origin.tensor, message.tensor):
            raise LeakFound(f"{_name(message)} was received but not sent so")
    unread = sent.keys() - {_key(message) for message in recording.received}
    if unread:
        raise LeakFound(f"sent for nobody to receive: {sorted(unread)}")


def _check_public(messages: Iterable[Message]) -> None:
    secrets: dict[Kind, set[bytes]] = defaultdict(set)
    senders: dict[Kind, set[PartyId]] = defaultdict(set)
    for message in messages:
        kind = message.tag.kind
        if kind is Kind.HELLO:
            Hello.model_validate_json(tensor_text(message.tensor))
        elif kind in (Kind.KEY, Kind.SEED):
            secrets[kind].add(bytes(message.tensor.tolist()))
            senders[kind].add(message.sender if kind is Kind.KEY else message.receiver)
    for kind, values in secrets.items():
        if len(values) != len(senders[kind]):
            raise LeakFound(f"two parties have the same {kind.name.lower()}")


# Uniformity


def byte_p_value(tensor: Tensor) -> float:
    """Of the hypothesis that all bytes of the tensor are uniform (chi-square, 256 bins)."""
    counted = _histogram(tensor)
    expected = counted.sum() / 256
    return float(stats.chi2.sf(((counted - expected) ** 2).sum() / expected, 255))


def _histogram(tensor: Tensor) -> np.ndarray:
    counted: np.ndarray = np.bincount(_bytes(tensor).flatten().numpy(), minlength=256)
    return counted


def _bytes(tensor: Tensor) -> Tensor:
    """[elements, bytes of one]."""
    return tensor.contiguous().view(torch.uint8).reshape(-1, tensor.element_size())


def _distinct(messages: Iterable[Message]) -> list[Message]:
    """The same tensor sent to several receivers counts once."""
    found: dict[tuple[PartyId, Kind, int, int, bytes], Message] = {}
    for message in messages:
        tag = message.tag
        found.setdefault((message.sender, tag.kind, tag.step, tag.round, message.tensor.numpy().tobytes()), message)
    return list(found.values())


def _check_uniform(hidden: Sequence[Message]) -> None:
    for message in hidden:
        if byte_p_value(message.tensor) < LEVEL:
            raise LeakFound(f"{_name(message)} is not uniform")


def _check_positions(hidden: Sequence[Message]) -> None:
    groups: dict[tuple[PartyId, Kind, int], list[Message]] = defaultdict(list)
    for message in hidden:
        groups[message.sender, message.tag.kind, message.tag.round].append(message)
    for (sender, kind, round_), messages in groups.items():
        pooled = torch.cat([_bytes(message.tensor) for message in messages])
        for position in range(pooled.shape[1]):
            if byte_p_value(pooled[:, position]) < LEVEL:
                raise LeakFound(f"byte {position} of {sender}'s {kind.name.lower()}/round {round_} is not uniform")


def _check_fresh(hidden: Sequence[Message]) -> None:
    """Two messages under one mask have a difference without a mask."""
    groups: dict[tuple[PartyId, torch.Size], list[Message]] = defaultdict(list)
    for message in hidden:
        groups[message.sender, message.tensor.shape].append(message)
    for messages in groups.values():
        for one, other in itertools.combinations(messages, 2):
            if byte_p_value(one.tensor - other.tensor) < LEVEL:
                raise LeakFound(f"{_name(one)} and {_name(other)} are under the same mask")


def _check_sums(recording: Recording) -> None:
    """What a receiver can add up, with what it holds itself, must be as random as the pieces."""
    for what, pieces in _sums(recording):
        if byte_p_value(ring_sum(pieces)) < LEVEL:
            raise LeakFound(f"{what} add up to something that is not uniform")


def _sums(recording: Recording) -> Iterator[tuple[str, list[Tensor]]]:
    slots: dict[tuple[Kind, int, int, torch.Size], dict[PartyId, Tensor]] = defaultdict(dict)
    operands: dict[tuple[PartyId, int], list[Tensor]] = defaultdict(list)
    for message in recording.sent:
        tag = message.tag
        if tag.kind in (Kind.SHARE, Kind.MASKED, Kind.MASKED_GRADIENT):
            slots[tag.kind, tag.step, tag.round, message.tensor.shape][message.sender] = message.tensor
        if tag.kind is Kind.MASKED_OPERAND and tag.round == 0:
            operands[message.receiver, tag.step].append(message.tensor)
    for (owner, step), pieces in operands.items():
        own = recording.shares[owner, step][owner]
        yield f"{owner}'s share of its weights and the operands it got in step {step}", [own, *pieces]
    for (kind, step, round_, _), by_sender in slots.items():
        for size in range(2, len(recording.settings.duties.publishing)):
            for some in itertools.combinations(by_sender, size):
                name = f"{kind.name.lower()}/step {step}/round {round_} of {', '.join(some)}"
                yield name, [by_sender[sender] for sender in some]


# Relation to secrets


class Regressors:
    """Columns, and a constant, to explain other columns with by least squares."""

    def __init__(self, columns: Tensor) -> None:
        basis, sizes, _ = torch.linalg.svd(_centred(columns), full_matrices=False)
        self.rank = int((sizes > sizes.max() * 1e-7).sum())
        self._basis = basis[:, : self.rank]

    def r_squared(self, columns: Tensor) -> Tensor:
        """Share of each column's variance that is explained; 0 for a constant column."""
        centred = _centred(columns)
        total = centred.square().sum(dim=0)
        explained: Tensor = (self._basis.T @ centred).square().sum(dim=0)
        return explained / torch.where(total > 0, total, 1)

    @property
    def noise_limit(self) -> float:
        """R² that a column which has nothing to do with the regressors exceeds hardly ever (1e-9)."""
        rows = len(self._basis)
        return float(stats.beta.isf(LEVEL / 100, self.rank / 2, (rows - self.rank - 1) / 2))


def _centred(columns: Tensor) -> Tensor:
    """Mean 0 and largest entry 1, so that neither 2^63 nor 1e-8 loses what matters."""
    real = columns.to(torch.float64)
    centred = real - real.mean(dim=0)
    scale = centred.abs().amax(dim=0)
    return centred / torch.where(scale > 1e-12 * real.abs().amax(dim=0), scale, torch.inf)


def readings(tensor: Tensor) -> Iterator[Tensor]:
    """A message's tensor as real columns: itself, or ring elements at several widths (R² needs no scale)."""
    if tensor.is_floating_point():
        yield tensor
        return
    for bits in KEPT_BITS:
        yield (tensor << (64 - bits)) >> (64 - bits)


def _check_unrelated(recording: Recording, holder: PartyId, messages: Sequence[tuple[Message, Protection]]) -> None:
    nodes = recording.graphs[holder].num_nodes
    columns, origins = [], []
    for message, protection in messages:
        if message.tensor.shape[0] == nodes:
            for reading in readings(message.tensor):
                columns.append(reading.to(torch.float64))
                origins += [(message, protection)] * reading.shape[1]
    if not columns:
        return
    everything = torch.cat(columns, dim=1)
    clear = torch.tensor([protection == "clear" for _, protection in origins])
    leaks: list[tuple[float, float, str, str]] = []
    for what, rows, regressors in secrets_of(recording, holder):
        limits = torch.full(clear.shape, regressors.noise_limit, dtype=torch.float64)
        if what != UNPUBLISHED:
            limits[clear] = CLEAR_LIMIT
        found = regressors.r_squared(everything[rows])
        for column in (found > limits).nonzero().flatten().tolist():
            leaks.append((float(found[column]), float(limits[column]), _name(origins[column][0]), what))
    if leaks:
        explained, limit, name, what = max(leaks)
        raise LeakFound(f"{name} tells of {holder}'s {what}: R² {explained:.2f} > {limit:.2f}")


def secrets_of(recording: Recording, holder: PartyId) -> list[Secret]:
    """Everything of a holder that no single message of it may tell."""
    graph = recording.graphs[holder]
    everyone = torch.cat([other.features for other in recording.graphs.values()], dim=1)
    rows = torch.arange(graph.num_nodes)
    found: list[Secret] = []
    if graph.labels is not None and graph.train_mask is not None:
        unpublished = (~graph.train_mask).nonzero().squeeze(1)
        found.append((UNPUBLISHED, unpublished, Regressors(functional.one_hot(graph.labels[unpublished]))))
    found += [
        ("features", rows, Regressors(graph.features)),
        ("features, with the other holders'", rows, Regressors(everyone)),
        ("degrees", rows, Regressors(graph.degrees().unsqueeze(1))),
    ]
    for number, embedding in enumerate(recording.embeddings[holder]):
        found.append((f"local embedding {number}", rows, Regressors(embedding)))
    return found


def _key(message: Message) -> tuple[PartyId, PartyId, str, str, tuple[int, ...]]:
    return message.sender, message.receiver, str(message.tag), str(message.tensor.dtype), tuple(message.tensor.shape)


def _name(message: Message) -> str:
    form = f"{str(message.tensor.dtype).removeprefix('torch.')} {list(message.tensor.shape)}"
    return f"{message.tag} from {message.sender} to {message.receiver} ({form})"
