"""The attack ``lowbits`` on what is summed under masks, at each place where a sum is opened."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from tests.attacks.lowbits import entries, opened, rows, unit_rows
from tests.errors import refused
from tests.mpc.sessions import agreed_masks
from tests.reference.horizontal import federate as federate_horizontally
from tests.reference.horizontal import job as horizontal_job
from tests.reference.horizontal import parts_of
from tests.roles.federation import NODES, Settings, federate, small_job, small_parties
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.link.view import Message
from veilgraph.mpc.mask import SLACK_BITS, SecretRounding, ring_sum
from veilgraph.nn.combine import CombineSettings, build_combine
from veilgraph.nn.propagate import Adjacency
from veilgraph.protocol.cut import WEIGHT_BITS
from veilgraph.tables.encode import FRACTION_BITS, exact, exact_sums

COUNT, DIM, BITS = 16_000, 16, 32
NO_USE = 0.02
"""How far the AUC of what is no use may be from 1/2."""


def worst(found: Iterable[tuple[str, float]]) -> float:
    return max(abs(auc - 0.5) for _, auc in found)


def contributions(
    holders: int, seed: int = 0, *, relu: bool = False, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """c of every holder as ``mean`` makes it of unit rows."""
    generator = torch.Generator().manual_seed(seed + holders)
    share = torch.tensor(1 / holders, dtype=dtype)
    return [unit_rows(COUNT, DIM, generator, relu=relu, dtype=dtype) * share for _ in range(holders)]


@pytest.fixture
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums without the protection, for the controls."""
    monkeypatch.setattr(SecretRounding, "move", lambda self, encoded, values, bits: None)


@pytest.mark.parametrize("holders", [2, 3, 8])
def test_low_bits_do_not_tell_whether_an_entry_is_small(holders: int) -> None:
    pieces = contributions(holders)
    total = opened(pieces, BITS)
    for threshold in (3, 5, 7, 9, 12):
        limit = 2.0**-threshold / holders
        assert worst(entries(total, pieces[0].abs() < limit)) < NO_USE, threshold
        any_small = torch.stack([piece.abs() < limit for piece in pieces]).any(dim=0)
        if 0.02 < float(any_small.double().mean()) < 0.98:
            assert worst(entries(total, any_small)) < NO_USE, threshold


@pytest.mark.parametrize("holders", [2, 3, 7, 8])
def test_low_bits_do_not_tell_which_rows_one_holder_contributed_alone(holders: int) -> None:
    pieces = contributions(holders)
    alone = torch.rand(COUNT, generator=torch.Generator().manual_seed(1)) < 0.5
    total = opened([pieces[0], *(piece * ~alone[:, None] for piece in pieces[1:])], BITS)
    assert worst(rows(total, alone)) < NO_USE
    assert worst(rows(total >> 3, alone)) < NO_USE, "nor do those just above"


@pytest.mark.parametrize("holders", [2, 3])
def test_low_bits_do_not_tell_whose_entry_is_zero(holders: int) -> None:
    pieces = contributions(holders, relu=True)
    filled = torch.stack(pieces) != 0
    shown = filled.any(dim=0)  # a sum that is 0 shows by its value
    total = opened(pieces, BITS)[shown][: COUNT * DIM // 2].view(-1, DIM)
    for positive in (~filled[0], filled.sum(dim=0) == 1):
        assert worst(entries(total, positive[shown][: COUNT * DIM // 2].view(-1, DIM))) < NO_USE


@pytest.mark.parametrize(
    ("bits", "dtype", "size"),
    [
        pytest.param(44, torch.float32, 1.0, id="the most bits"),
        pytest.param(40, torch.float32, 2.0**10, id="large values"),
        pytest.param(24, torch.float32, 1.0, id="few bits"),
        pytest.param(44, torch.float64, 2.0**10, id="large values in float64"),
    ],
)
def test_whatever_the_bits_the_precision_and_the_size(bits: int, dtype: torch.dtype, size: float) -> None:
    pieces = [size * piece for piece in contributions(2, dtype=dtype)]
    total = opened(pieces, bits)
    assert worst(entries(total, pieces[0].abs() < 2.0**-7 * size)) < NO_USE


def test_without_it_low_bits_tell(as_it_was: None) -> None:
    pieces = contributions(2)
    small = torch.stack([piece.abs() < 2.0**-8 for piece in pieces]).any(dim=0)
    assert dict(entries(opened(pieces, BITS), small))["odds by 10 bits"] > 0.75
    alone = torch.rand(COUNT, generator=torch.Generator().manual_seed(1)) < 0.5
    for holders in (2, 3, 8):
        pieces = contributions(holders)
        total = opened([pieces[0], *(piece * ~alone[:, None] for piece in pieces[1:])], BITS)
        assert worst(rows(total, alone)) > 0.4


def test_a_grid_at_the_last_place_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of a float32 leaves gaps that show above its last place: the slack is needed."""
    monkeypatch.setattr("veilgraph.mpc.mask.SLACK_BITS", 0)
    pieces = contributions(3)
    alone = torch.rand(COUNT, generator=torch.Generator().manual_seed(1)) < 0.5
    total = opened([pieces[0], *(piece * ~alone[:, None] for piece in pieces[1:])], BITS)
    assert worst(rows(total, alone)) > 0.1


# The theorem


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float64, 53)])
@pytest.mark.parametrize("exponent", [-3, 0, 9])
def test_the_sum_is_uniform_below_the_digits_of_its_largest_summand(
    dtype: torch.dtype, digits: int, exponent: int
) -> None:
    """Modulo w of the largest, whatever else is added; and no value is moved by more than w/2."""
    bits = digits + 3 - exponent - SLACK_BITS  # w is 2^4 in the ring
    largest = torch.full((64_000,), 2.0**exponent, dtype=dtype)
    spread = torch.arange(1, 64_001, dtype=torch.int32 if dtype == torch.float32 else torch.int64)
    largest = (largest.view(spread.dtype) + (spread << 2)).view(dtype)  # even digits alone
    others = [torch.zeros_like(largest), torch.full_like(largest, 2.0 ** (exponent - 1))]
    pieces = [largest, *others]
    total = opened(pieces, bits)
    counts = torch.bincount(total % 16, minlength=16).numpy()
    assert chisquare(counts).pvalue > 1e-4
    exact = torch.stack([(piece.double() * 2.0**bits).to(torch.int64) for piece in pieces]).sum(dim=0)
    assert int((total - exact).abs().max()) <= 8 + 4


def test_zeros_stay_and_a_value_is_always_moved_alike() -> None:
    """So that a thousand sessions on the same values give no mean of more digits."""
    masks = agreed_masks(["A", "B"], "lowbits")
    values = unit_rows(50, 4, torch.Generator().manual_seed(0))
    zeros = torch.zeros_like(values)

    def total(step: int, first: Tensor) -> Tensor:
        return ring_sum([masks["A"].hide(first, BITS, "it", step, ""), masks["B"].hide(zeros, BITS, "it", step, "")])

    assert int(total(0, zeros).abs().max()) == 0
    assert torch.equal(total(1, values), total(2, values))
    assert torch.equal(total(3, values.flip(0)), total(4, values).flip(0))
    plain = (values.double() * 2.0**BITS).round().to(torch.int64)
    assert float((total(5, values) != plain).double().mean()) > 0.9
    other = agreed_masks(["A", "B"], "another key")
    different = ring_sum([other[name].hide(each, BITS, "it", 1, "") for name, each in (("A", values), ("B", zeros))])
    assert not torch.equal(different, total(1, values))


def test_another_dtype_is_refused() -> None:
    with refused(DataError, key="dtype", value="torch.float16"):
        SecretRounding(bytes(32)).move(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float16), 4)


# Each place


def sums(messages: Iterable[Message], holders: Iterable[PartyId]) -> dict[tuple[Tag, bool], Tensor]:
    """(tag, whether the server opens it) → the sum in the ring of what the holders sent, of real numbers."""
    pieces: dict[tuple[Tag, bool], dict[PartyId, Tensor]] = defaultdict(dict)
    for message in messages:
        if message.tag.kind in (Kind.MASKED, Kind.MASKED_GRADIENT):
            pieces[message.tag, message.receiver == SERVER][message.sender] = message.tensor
    complete = set(holders)
    return {place: ring_sum(sent.values()) for place, sent in pieces.items() if set(sent) <= complete and len(sent) > 1}


def evenness(totals: Iterable[Tensor]) -> float:
    """p-value of the three lowest bits of sums being uniform; a sum of zeros shows by its value."""
    low = torch.cat([total[total != 0].flatten() for total in totals]) & 7
    assert len(low) > 400, "too few to say"
    return float(chisquare(torch.bincount(low, minlength=8).numpy()).pvalue)


def vertical(*changes: Settings) -> dict[str, list[Tensor]]:
    settings = small_job(3, {"precision": "float32", "model": {"local": {"normalize": True}}}, *changes)
    federation = federate(settings, small_parties(3), 8)
    return by_kind(sums(everything(federation.transcripts), settings.data.names))


def everything(transcripts: dict[PartyId, tuple[Message, ...]]) -> list[Message]:
    return [m for party, view in transcripts.items() for m in view if m.sender == party]


def by_kind(found: dict[tuple[Tag, bool], Tensor]) -> dict[str, list[Tensor]]:
    grouped: dict[str, list[Tensor]] = defaultdict(list)
    for (tag, to_server), total in found.items():
        grouped[f"{tag.kind.name} {'server' if to_server else 'holders'}"].append(total)
    return grouped


def horizontal() -> dict[str, list[Tensor]]:
    settings = horizontal_job(3, combine="max").model_copy(update={"precision": "float32"})
    _, transcripts = federate_horizontally(settings, parts_of(settings), 12)
    found = by_kind(sums(everything(transcripts), settings.data.names))
    return {"MASKED_GRADIENT holders": found["MASKED_GRADIENT holders"]}


PLACES: dict[str, Callable[[], dict[str, list[Tensor]]]] = {
    "two rounds": lambda: vertical({"model": {"rounds": 2, "initial": {"method": "individual"}}}),
    "secure sum": lambda: vertical(
        {"model": {"initial": {"method": "secure-sum"}, "combine": {"strategy": "regression"}}}
    ),
    "horizontal": horizontal,
}
KINDS = {
    "two rounds": {"MASKED server", "MASKED_GRADIENT server"},
    "secure sum": {"MASKED server", "MASKED holders", "MASKED_GRADIENT holders"},
    "horizontal": {"MASKED_GRADIENT holders"},
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("place", PLACES)
def test_every_sum_that_a_job_opens(place: str) -> None:
    found = PLACES[place]()
    assert set(found) == KINDS[place]
    for kind, totals in found.items():
        assert evenness(totals) > 1e-4, kind


@pytest.mark.parametrize("place", PLACES)
def test_every_sum_that_a_job_opened_without_it(place: str, as_it_was: None) -> None:
    for kind, totals in PLACES[place]().items():
        assert evenness(totals) < 1e-6, kind


def test_the_same_job_is_rounded_alike_and_each_holder_otherwise() -> None:
    job = small_job(2, {"precision": "float32"})
    first, second = (federate(job, small_parties(2), 3).label_holder.logits for _ in range(2))
    assert torch.equal(first, second)
    keys = {name: role.session.rounding_key for name, role in federate(job, small_parties(2), 0).roles.items()}
    assert len(set(keys.values())) == 3, "a party has another's"
    secrets = [LearningStreams(seed, name).secret("rounding") for seed, name in ((1, "A"), (1, "B"), (2, "A"))]
    assert len({*secrets, LearningStreams(1, "A").secret("another purpose")}) == 4


def test_sums_of_degrees_say_no_more_than_the_sum() -> None:
    """Below its whole part a sum of degree + 1/P is the same at every node; rounded to float32 it was not."""
    settings = small_job(3, {"precision": "float32", "model": {"combine": {"strategy": "degree-weighted"}}})
    graphs = small_parties(3)
    federation = federate(settings, graphs, 0)
    total = sums(everything(federation.transcripts), settings.data.names)[Tag(Kind.MASKED, 0, 0), True]
    degrees = torch.stack([torch.bincount(graph.edge_index[1], minlength=NODES) for graph in graphs])
    assert len(degrees.unique()) > 4
    rest = total.flatten() - degrees.sum(dim=0) * 2**WEIGHT_BITS
    assert len(rest.unique()) == 1
    assert abs(int(rest[0]) - 2**WEIGHT_BITS) <= 3


def test_weights_of_large_degrees_are_rounded_like_those_of_small_ones() -> None:
    edges = torch.zeros(2, 3_000_001, dtype=torch.int64)
    edges[1, -1] = 1
    adjacency = Adjacency.of_edges(edges, None, 2, torch.float32)
    weight = build_combine(CombineSettings(strategy="degree-weighted")).holder_weight(3, adjacency)
    assert weight is not None
    rest = opened([weight, torch.zeros_like(weight)], WEIGHT_BITS).flatten() % 2**WEIGHT_BITS
    assert rest.tolist() == [round(2**WEIGHT_BITS / 3)] * 2


def test_an_exact_sum_of_a_column_tells_of_its_smallest_value() -> None:
    """Of a thousand amounts above 1, the last digits show the one below 1 (docs/explanation/threat-model.md)."""
    generator = torch.Generator().manual_seed(3)
    amounts = torch.cat([1 + torch.rand(1000, generator=generator), torch.tensor([0.03])]).numpy()
    (total,) = exact_sums(np.zeros(len(amounts), dtype=np.int64), amounts, 1)
    last = 1 << (FRACTION_BITS - 23)  # of all that are above 1
    fits = [cents for cents in range(1, 100) if (total - exact(float(np.float32(cents / 100)))) % last == 0]
    assert fits == [3]
