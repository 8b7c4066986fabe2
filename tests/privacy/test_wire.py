"""The transcript test: what crosses the wire in whole jobs, and mutants that the test must catch."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests import nightly
from tests.chance import fixed_chance
from tests.privacy.checker import (
    LeakFound,
    Regressors,
    byte_p_value,
    check_independent,
    check_private,
    sent_in_clear,
    table,
)
from tests.privacy.jobs import DIM, NODES, Recording, Tamper, honest, job, make_graphs, run_job
from veilgraph.core.randomness import LearningStreams, expand
from veilgraph.core.types import SERVER, Kind, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Message, RecordedLink
from veilgraph.mpc import product, ring
from veilgraph.mpc.mask import PairwiseMasks, ring_sum
from veilgraph.paradigms.vertical.network import Collaborative, EmbeddingSession, init_std, init_weight
from veilgraph.paradigms.vertical.roles import LabelHolder
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.session import party

MODELS: dict[str, dict[str, Any]] = {
    "collaborative": {},
    "secure-sum": {"initial": {"method": "secure-sum"}},
    "individual": {"initial": {"method": "individual"}},
    "degree-weighted, two rounds": {"rounds": 2, "combine": {"strategy": "degree-weighted"}},
}
JOBS = {f"{holders} holders, {name}": job(holders, **model) for holders in (2, 3) for name, model in MODELS.items()}
BY_DAY = {
    "2 holders, collaborative",
    "2 holders, individual",
    "3 holders, secure-sum",
    "3 holders, degree-weighted, two rounds",
}
"""Of each kind one; with other numbers of holders, and without rounds, in the night."""
PLAIN = job(2)
THREE = job(3)
UNMASKED = {
    "mean": job(2, combine={"masked": False}),
    "concat": job(2, combine={"strategy": "concat"}),
    "two rounds": job(3, rounds=2, combine={"strategy": "degree-weighted", "masked": False}),
}


def run(
    settings: JobSettings,
    data: int = 1,
    secrets: object = 1,
    tamper: dict[str, Tamper] | None = None,
) -> Recording:
    graphs = make_graphs(settings, data)
    with TemporaryDirectory() as folder:
        return run_job(settings, graphs, Path(folder), secrets=secrets, tamper=tamper)


@cache
def recorded(name: str, data: int) -> Recording:
    """An honest run; data and secrets differ together."""
    return run({**JOBS, **UNMASKED}[name], data, secrets=data)


def of_each_kind(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [each if each in BY_DAY else pytest.param(each, marks=nightly) for each in names]
    )


def is_leak(settings: JobSettings, says: str, **tamper: Tamper) -> None:
    with pytest.raises(LeakFound, match=says):
        check_private(run(settings, tamper=tamper), table(settings))


# Honest jobs


@pytest.mark.cases(2)
@of_each_kind(JOBS)
def test_holders_send_nothing_but_masks_shares_and_seeds(name: str) -> None:
    check_private(recorded(name, 1), table(JOBS[name]))


@pytest.mark.cases(2)
@of_each_kind(JOBS)
def test_two_jobs_with_other_private_inputs_look_alike(name: str) -> None:
    check_independent(recorded(name, 1), recorded(name, 2), table(JOBS[name]))


@of_each_kind(JOBS)
def test_what_is_in_the_clear_is_exactly_this(name: str) -> None:
    expected = {
        ("GRADIENT", "label holder", "server"),
        ("GRADIENT", "server", "holder"),
        ("COMBINED", "server", "label holder"),
    }
    if vertical(JOBS[name]).model.rounds > 1:
        expected.add(("COMBINED", "server", "holder"))
    assert sent_in_clear(recorded(name, 1)) == expected


@of_each_kind(JOBS)
def test_every_line_of_the_table_is_used(name: str) -> None:
    """A line that no message needs would let one through."""
    recording = recorded(name, 1)
    rules = [rule for rule in table(recording.settings) if len(rule.rounds)]
    for left_out in range(len(rules)):
        with pytest.raises(LeakFound, match="no line of the table allows"):
            check_private(recording, rules[:left_out] + rules[left_out + 1 :])


@of_each_kind(JOBS)
def test_the_server_gets_only_what_it_needs(name: str) -> None:
    allowed = {Kind.HELLO, Kind.CONTROL, Kind.MASKED, Kind.MASKED_GRADIENT, Kind.GRADIENT}
    received = [message for message in recorded(name, 1).sent if message.receiver == SERVER]
    assert {message.tag.kind for message in received} <= allowed
    gradients = [message for message in received if message.tag.kind is Kind.GRADIENT]
    assert {message.sender for message in gradients} == {"A"}


# What is not masked


@pytest.mark.parametrize("name", UNMASKED)
def test_an_unmasked_job_is_told_so(name: str) -> None:
    recording = recorded(name, 1)
    assert ("EMBEDDING", "holder", "server") in sent_in_clear(recording)
    with pytest.raises(LeakFound, match=r"no line of the table allows embedding/.* from [ABC] to server"):
        check_private(recording, table(job(len(recording.holders), rounds=vertical(recording.settings).model.rounds)))


@pytest.mark.parametrize("name", UNMASKED)
def test_an_embedding_in_the_clear_is_told_even_where_the_job_asks_for_it(name: str) -> None:
    with pytest.raises(LeakFound, match=r"embedding/.* tells of [ABC]'s (local embedding \d+|degrees): R² 1.00"):
        check_private(recorded(name, 1), table(UNMASKED[name]))


def test_gradients_of_inner_rounds_are_in_the_clear_without_masks() -> None:
    assert ("GRADIENT", "holder", "server") in sent_in_clear(recorded("two rounds", 1))


# The statistics have power


def test_masks_pass_and_what_they_hide_does_not() -> None:
    recording = recorded("2 holders, collaborative", 1)
    embedding, features = recording.embeddings["B"][0], recording.graphs["B"].features
    mask = expand(bytes(32), "a mask", (NODES, DIM))
    encoded = ring.encode(embedding, 32, "it", "")
    assert byte_p_value(mask) > 1e-6
    assert byte_p_value(mask + encoded) > 1e-6
    assert byte_p_value(encoded) < 1e-100
    related = Regressors(features)
    assert float(related.r_squared(mask + encoded).max()) < related.noise_limit < 0.25
    image = features @ torch.randn(features.shape[1], DIM, generator=torch.Generator().manual_seed(1))
    assert float(related.r_squared(image).min()) > 0.999
    assert float(related.r_squared(ring.encode(image, 12, "it", "")).min()) > 0.999
    noisy = image + 5 * torch.randn(NODES, DIM, generator=torch.Generator().manual_seed(2))
    assert float(related.r_squared(noisy).max()) > related.noise_limit
    assert float(Regressors(embedding).r_squared(embedding).min()) > 0.999


def test_constant_columns_explain_and_are_explained_by_nothing() -> None:
    random = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    assert Regressors(torch.ones(50, 3)).r_squared(random).tolist() == [0, 0]
    assert Regressors(random).r_squared(torch.ones(50, 3)).tolist() == [0, 0, 0]


# Mutants: each changes one party's code, keeps the protocol correct, and must be caught


def zero_masks(monkeypatch: pytest.MonkeyPatch, prefix: str, suffix: str = "") -> None:
    """Dealer and holders take zero for the masks of that name: the products stay right and are not hidden."""

    def expanded(seed: bytes, purpose: str, shape: tuple[int, ...]) -> Tensor:
        if purpose.startswith(prefix) and suffix in purpose:
            return torch.zeros(shape, dtype=torch.int64)
        return expand(seed, purpose, shape)

    monkeypatch.setattr(product, "expand", expanded)


@pytest.mark.cases(3)
@pytest.mark.parametrize("settings", JOBS.values(), ids=list(JOBS))
def test_mutant_embeddings_without_a_mask(monkeypatch: pytest.MonkeyPatch, settings: JobSettings) -> None:
    def mask(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64)

    monkeypatch.setattr(PairwiseMasks, "mask", mask)
    is_leak(settings, "is not uniform")


@pytest.mark.parametrize("party", ["A", "B"])
def test_mutant_one_holders_embedding_without_a_mask(monkeypatch: pytest.MonkeyPatch, party: str) -> None:
    hide = PairwiseMasks.hide

    def hidden(self: PairwiseMasks, values: Tensor, bits: int, purpose: str, step: int, remedy: str) -> Tensor:
        masked = hide(self, values, bits, purpose, step, remedy)
        return ring.encode(values, bits, purpose, remedy) if self._party == party else masked & ((1 << 50) - 1)

    monkeypatch.setattr(PairwiseMasks, "hide", hidden)
    is_leak(PLAIN, rf"masked/step \d+/round 1 from [{party}AB] .* is not uniform")


@pytest.mark.cases(2)
@pytest.mark.parametrize("shift", [8, 24, -8, -24], ids=lambda shift: f"{shift} bits")
def test_mutant_a_mask_that_is_too_short(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    whole = PairwiseMasks.mask

    def mask(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        full = whole(self, purpose, step, shape)
        if purpose.startswith("W/"):
            return full
        return full << shift if shift > 0 else torch.sign(full) * (full.abs() >> -shift)

    monkeypatch.setattr(PairwiseMasks, "mask", mask)
    # embeddings' own low bits are uniform, but the same in passes with the same weights
    is_leak(PLAIN, "is not uniform|are under the same mask")


def test_mutant_one_mask_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PairwiseMasks.mask
    monkeypatch.setattr(PairwiseMasks, "mask", lambda self, purpose, step, shape: whole(self, purpose, 0, shape))
    is_leak(PLAIN, "are under the same mask")


def test_mutant_one_mask_for_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PairwiseMasks.mask

    def mask(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        return whole(self, "embedding" if "round" in purpose else purpose, step, shape)

    monkeypatch.setattr(PairwiseMasks, "mask", mask)
    is_leak(JOBS["2 holders, degree-weighted, two rounds"], "are under the same mask")


def test_mutant_one_operand_mask_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        product, "operand_mask_name", lambda owner, direction, step, block: f"V/{owner}/{direction.name}"
    )
    is_leak(PLAIN, "masked_operand.*are under the same mask")


def test_mutant_masks_from_a_key_everybody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    honest_init = PairwiseMasks.__init__

    def known(self: PairwiseMasks, party: str, keys: dict[str, bytes], rounding_key: bytes) -> None:
        honest_init(self, party, dict.fromkeys(keys, bytes(32)), rounding_key)

    monkeypatch.setattr(PairwiseMasks, "__init__", known)
    with pytest.raises(LeakFound, match=r"masked/step \d+/round 1 .* its mask is no secret"):
        check_independent(run(PLAIN, 1, secrets=1), run(PLAIN, 2, secrets=2), table(PLAIN))


def test_mutant_the_gradient_sent_in_place_of_the_gradient_under_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    zero_masks(monkeypatch, "V/", "BACKWARD")
    is_leak(PLAIN, r"masked_operand/step 0/round 1 from [AB] .* is not uniform")


@pytest.mark.parametrize("settings", [PLAIN, THREE], ids=["2 holders", "3 holders"])
def test_mutant_the_share_of_w_sent_in_place_of_the_share_under_its_mask(
    monkeypatch: pytest.MonkeyPatch, settings: JobSettings
) -> None:
    """Each share is uniform by itself: only what its receiver adds it to tells."""
    zero_masks(monkeypatch, "V/", "FORWARD")
    is_leak(settings, r"[ABC]'s share of its weights and the operands it got in step 0 add up to")


def test_mutant_both_operands_without_their_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    zero_masks(monkeypatch, "V/")
    is_leak(THREE, "B's share of its weights and the operands it got in step 0 add up to something that is not uniform")
    whole = PairwiseMasks.mask

    def mask(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        return whole(self, purpose, step, shape) * (not purpose.startswith("gradient of h0"))

    monkeypatch.setattr(PairwiseMasks, "mask", mask)
    is_leak(THREE, "masked_operand/.* is not uniform")


def test_mutant_the_features_sent_in_place_of_the_features_under_their_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    zero_masks(monkeypatch, "U")
    is_leak(PLAIN, r"static_difference/step 0/round 0 from [AB] .* is not uniform")


@pytest.mark.parametrize(
    ("tag", "says"),
    [
        (Tag(Kind.EMBEDDING), "no line of the table allows embedding"),
        (Tag(Kind.SHARE, 99), r"no line of the table allows share.*\[24, 8\]"),
        (Tag(Kind.MASKED_OPERAND, 99), r"masked_operand/step 99/round 0 from [AB] .* is not uniform"),
    ],
    ids=["another kind", "another shape", "a legal form"],
)
def test_mutant_what_a_share_is_made_of_sent_as_one_more_message(
    monkeypatch: pytest.MonkeyPatch, tag: Tag, says: str
) -> None:
    made = Collaborative.__init__

    def talkative(self: Collaborative, session: EmbeddingSession) -> None:
        made(self, session)
        for owner in session.others:
            weight = init_weight(session.streams, owner, session.features[owner], session.dim, 0.1)
            session.link.send(owner, tag, ring.encode(weight, 40, "W", ""))

    monkeypatch.setattr(Collaborative, "__init__", talkative)
    is_leak(PLAIN, says)


def only(kind: Kind, change: Any) -> Tamper:
    """Changes the tensors of one kind of message to the server."""

    def tamper(message: Message, graph: PartyGraph | None) -> Tensor:
        if message.tag.kind is not kind or message.receiver != SERVER:
            return honest(message, graph)
        assert graph is not None
        changed: Tensor = change(message.tensor, graph)
        return changed

    return tamper


def labels_in_place(tensor: Tensor, graph: PartyGraph) -> Tensor:
    assert graph.labels is not None
    return functional.pad(functional.one_hot(graph.labels), (0, DIM - 3)).to(tensor.dtype) * 1e-3


def labels_beside(tensor: Tensor, graph: PartyGraph) -> Tensor:
    return tensor + 1e-4 * labels_in_place(tensor, graph)


@pytest.mark.parametrize("change", [labels_in_place, labels_beside])
def test_mutant_labels_sent_in_a_gradient(change: Any) -> None:
    is_leak(PLAIN, "gradient/.* tells of A's unpublished labels", A=only(Kind.GRADIENT, change))


def test_mutant_labels_sent_as_one_more_message(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = LabelHolder.backward

    def talkative(self: LabelHolder, step: int) -> None:
        backward(self, step)
        if step == 0 and self.graph.labels is not None:
            self.session.link.send(SERVER, Tag(Kind.CONTROL, 99), self.graph.labels)

    monkeypatch.setattr(LabelHolder, "backward", talkative)
    is_leak(PLAIN, r"no line of the table allows control/step 99/round 0 from A to server \(int64 \[400\]\)")


def test_mutant_features_sent_in_a_gradient() -> None:
    projection = torch.randn(24, DIM, generator=torch.Generator().manual_seed(1))
    change = only(Kind.GRADIENT, lambda tensor, graph: 1e-3 * graph.features @ projection)
    is_leak(PLAIN, "gradient/.* tells of A's features(, with the other holders')?: R² 1.00", A=change)


def test_mutant_features_sent_under_the_tag_of_a_masked_embedding() -> None:
    change = only(Kind.MASKED, lambda tensor, graph: ring.encode(graph.features[:, :DIM], 32, "x", ""))
    is_leak(PLAIN, r"masked/.* from [AB] .* is not uniform", A=change, B=change)


def test_the_regression_alone_finds_an_embedding_under_a_uniform_looking_code() -> None:
    """Scaled until it wraps around, an embedding looks more uniform; its low bits still tell."""
    recording = recorded("2 holders, collaborative", 1)
    embedding = recording.embeddings["B"][0]
    high_mask = expand(bytes(32), "a coarse mask", (NODES, DIM)) << 48
    message = high_mask + ring.encode(embedding, 40, "it", "")
    related = Regressors(embedding)
    whole, low = (float(related.r_squared((message << move) >> move).max()) for move in (0, 16))
    assert whole < related.noise_limit
    assert low > 0.999


# Defects


@pytest.mark.parametrize("private_seeds", [True, False])
@pytest.mark.parametrize("method", ["collaborative", "secure-sum"])
def test_with_private_seeds_a_holder_cannot_solve_for_anothers_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, private_seeds: bool
) -> None:
    """And with the job's seed for all it can, as docs/explanation/threat-model.md says."""

    links: dict[str, RecordedLink] = {}

    class Kept(RecordedLink):
        def __init__(self, link: Any) -> None:
            super().__init__(link, keep_transcript=True)
            links[self.party] = self

    monkeypatch.setattr(party, "RecordedLink", Kept)
    width = 32
    settings = job(2, dim=width, initial={"method": method})
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"epochs": 1})})
    graphs = make_graphs(settings, 1)
    with fixed_chance("private seeds"):
        jobs.train(settings, tmp_path / "run", parties=list(graphs.values()), private_seeds=private_seeds)

    # From here on only what A has: its features, its view, and the job.
    kind = Kind.SHARE if method == "collaborative" else Kind.MASKED
    view = [message for message in links["A"].transcript() if message.tag == Tag(kind)]
    bits = 12 + 12 + 28 if method == "collaborative" else 40
    opened = ring.decode(ring_sum([message.tensor for message in view]), bits, torch.float64, "h^0", "")
    columns = {name: graph.num_features for name, graph in graphs.items()}
    std = init_std(vertical(settings).model.initial, sum(columns.values()), width)
    weights = {}
    for owner, width_of_x in columns.items():
        drawing = list(columns) if method == "collaborative" else [owner]
        parts = [LearningStreams(settings.seed, name) for name in drawing]
        own_std = std / len(drawing) ** 0.5
        weights[owner] = ring_sum([init_weight(part, owner, width_of_x, width, own_std) for part in parts])
    of_b = opened - graphs["A"].features.double() @ weights["A"]
    solved = of_b @ torch.linalg.pinv(weights["B"])
    explained = Regressors(solved).r_squared(graphs["B"].features)
    if private_seeds:
        assert float(explained.max()) < 0.9
        assert float((solved - graphs["B"].features).abs().max()) > 1e-2
    else:
        assert float(explained.min()) > 0.99
