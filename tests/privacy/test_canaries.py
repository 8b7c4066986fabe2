"""Canaries: what is planted and kept, and whole jobs whose ledger is held against what the server received."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.privacy.jobs import NODES, Recording, make_graphs, private_job, run_job
from tests.privacy.planned import job, planned
from veilgraph.audit.canaries import GaussianClaims, OneRunBound, canary_scores, one_run_epsilon
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.mpc.mask import open_sum
from veilgraph.paradigms.vertical.settings import plan, vertical
from veilgraph.privacy import mechanism
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.privacy.publisher import NoisedPublisher
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.session.publishers import publisher_of
from veilgraph.runtime.store.run_directory import PartyStore

COUNT, DELTA, EPSILON = 380, 1e-4, 4.0
GRADIENTS = (Kind.GRADIENT, Kind.MASKED_GRADIENT)
TO_SERVER = (Kind.EMBEDDING, Kind.MASKED, *GRADIENTS)


def drawn(count: int = 60, nodes: int = 100, seed: int = 0) -> Canaries:
    return Canaries.draw(count, nodes, fixed_secrets("canaries", seed))


def rows(nodes: int = 100, dim: int = 8) -> Tensor:
    return torch.randn(nodes, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# What is planted


def test_places_coins_and_directions_are_random_and_follow_from_the_key() -> None:
    canaries = drawn(5000, 8000)
    assert len(canaries.rows.unique()) == 5000
    assert 0 <= int(canaries.rows.min()) < 10
    assert 7990 < int(canaries.rows.max()) < 8000
    assert abs(float(canaries.coins.double().mean()) - 0.5) < 0.03
    directions = canaries.directions(6, 0)
    assert float((directions.norm(dim=1) - 1).abs().max()) < 1e-12
    assert float(directions.mean(dim=0).norm()) < 0.05
    assert float((directions.T @ directions / 5000 * 6 - torch.eye(6)).abs().max()) < 0.1
    assert torch.equal(canaries.directions(6, 7), -directions)
    assert abs(float(directions[canaries.coins, 0].mean())) < 0.05, "directions tell of coins"
    again, other = drawn(5000, 8000), drawn(5000, 8000, seed=1)
    assert torch.equal(again.directions(6, 0), directions)
    assert not torch.equal(other.rows, canaries.rows)
    assert not torch.equal(other.coins, canaries.coins)


@pytest.mark.parametrize("neighbours", ["zero-out", "replacement"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("channel", ["embeddings", "gradients"])
def test_a_canary_is_released_as_a_row_as_long_as_the_clip(channel: str, mechanism: str, neighbours: str) -> None:
    """With next to no noise the release shows the clipped rows: of norm C, or zero or -C where the coin says out."""
    settings = job(20, mechanism=mechanism, neighbours=neighbours, noise_multiplier=1e-8, clip=3, gradient_clip=0.2)
    of, canaries, x = planned(settings, "A"), drawn(), rows() / 100
    clip, order = (3.0 if channel == "embeddings" else 0.2), 1 if mechanism == "laplace" else 2
    with NoisedPublisher(of, None, system_secrets, canaries) as door:
        released = getattr(door, channel)(x, 4)
    directions = canaries.directions(8, 4, order)
    out = 0.0 if neighbours == "zero-out" else -1.0
    expected = clip * torch.where(canaries.coins, 1.0, out).unsqueeze(1) * directions
    planted = released[canaries.rows]
    assert float((planted - expected).abs().max()) < 1e-5
    assert float((planted[canaries.coins].norm(order, dim=1) - clip).abs().max()) < 1e-5
    others = torch.ones(100, dtype=torch.bool).index_fill(0, canaries.rows, value=False)
    assert float((released - x)[others].abs().max()) < 1e-5


@pytest.mark.parametrize("noise", [0, 0.5])
def test_no_gradient_flows_to_the_rows_that_canaries_replace(noise: float) -> None:
    canaries, wanted = drawn(), rows().flip(0)
    gradients = []
    for given in (canaries, None):
        x = rows().requires_grad_()
        with NoisedPublisher(planned(job(20, noise_multiplier=noise), "A"), None, system_secrets, given) as door:
            door.embeddings(x, 0).backward(wanted)
        assert x.grad is not None
        gradients.append(x.grad)
    with_canaries, without = gradients
    assert not with_canaries[canaries.rows].any()
    assert bool(without[canaries.rows].any(dim=1).all())
    without[canaries.rows] = 0
    assert torch.equal(with_canaries, without)


# What is refused, and what is kept


@pytest.mark.parametrize("unit", ["edge", "node"])
def test_canaries_are_rows(unit: str) -> None:
    with refused(ConfigError, key="canaries", value=5):
        private_job(2, {"schedule": "once", "epsilon_total": 4, "unit": unit, "degree_bound": 3, "canaries": 5})


def test_canaries_are_of_one_number_of_rows() -> None:
    with refused(ConfigError, key="privacy.canaries", value=101):
        drawn(101)
    with (
        NoisedPublisher(planned(job(20, noise_multiplier=1), "A"), None, system_secrets, drawn()) as door,
        refused(RunError, key="canaries"),
    ):
        door.embeddings(rows(99), 0)


def test_canaries_are_kept_for_all_sessions_of_a_run(tmp_path: Path) -> None:
    settings = private_job(2, {"noise_multiplier": 2.0, "canaries": 30})
    graph, store = make_graphs(settings, 0)["B"], PartyStore(tmp_path)
    assert store.canaries() is None

    def planted(*, begun: bool) -> Tensor:
        with publisher_of(store, settings, graph, None, begun=begun) as door:
            assert isinstance(door, NoisedPublisher)
            kept = store.canaries()
            assert kept is not None
            assert (kept.count, kept.nodes) == (30, NODES)
            x = rows(NODES).requires_grad_()
            door.embeddings(x, 0).sum().backward()
            assert x.grad is not None
            return x.grad[kept.rows]

    first = planted(begun=False)
    assert not first.any()
    content = store.canaries_path.read_bytes()
    assert not planted(begun=True).any()
    store.checkpoints.save(1, {}, {"judgement": {}, "stopped": False})
    assert not planted(begun=True).any()
    assert store.canaries_path.read_bytes() == content
    for damage in (lambda path: path.write_bytes(content[:40]), Path.unlink):
        damage(store.canaries_path)
        with refused(RunError, key=store.canaries_path):
            planted(begun=True)


# Whole jobs

EVERY_STEP = {"epsilon_total": EPSILON, "delta": DELTA, "canaries": COUNT}
JOBS = {
    "not masked": private_job(2, EVERY_STEP, combine={"masked": False}),
    "two rounds": private_job(2, EVERY_STEP, rounds=2, combine={"masked": False}),
    "masked": private_job(2, EVERY_STEP),
    "james-stein-plus, concat": private_job(
        3, EVERY_STEP | {"mechanism": "james-stein-plus"}, combine={"strategy": "concat"}, head={"logit_hops": 1}
    ),
    "replacement": private_job(2, EVERY_STEP | {"neighbours": "replacement"}, combine={"masked": False}),
    "once": private_job(2, EVERY_STEP | {"schedule": "once"}),
    "joint noise, two rounds": private_job(3, EVERY_STEP | {"joint_noise": {"colluding": 1}}, rounds=2),
    "once, joint noise": private_job(3, EVERY_STEP | {"schedule": "once", "joint_noise": {"colluding": 0}}),
}


def audited(settings: JobSettings, folder: Path) -> dict[PartyId, tuple[OneRunBound, OneRunBound]]:
    """Holder → what its canaries prove, of (ε, δ)-privacy and of Gaussian privacy."""
    recording = run_job(settings, make_graphs(settings, 1), folder, secrets=1)
    found = {}
    for holder in settings.duties.publishing:
        of, canaries = plan(settings, holder), PartyStore(folder / holder).canaries()
        assert of is not None
        assert canaries is not None
        seen = list(received(recording, holder))
        assert len(seen) == of.releases, "not every release is looked at"
        assert recording.paid[holder].total() == (of.releases if of.event is not None else 0)
        directions = [canaries.directions(matrix.shape[1], step).numpy() for step, matrix in seen]
        scores = canary_scores([matrix.numpy() for _, matrix in seen], canaries.rows.numpy(), directions)
        coins = canaries.coins.numpy()
        found[holder] = (
            one_run_epsilon(scores, coins, DELTA),
            one_run_epsilon(scores, coins, DELTA, claims=GaussianClaims()),
        )
    return found


def received(recording: Recording, holder: PartyId) -> Iterator[tuple[int, Tensor]]:
    """Step and content of every release that the server saw; with masks the sum of all holders'."""
    to_server = [one for one in recording.sent if one.receiver == SERVER and one.tag.kind in TO_SERVER]
    for message in to_server:
        if message.sender != holder:
            continue
        tensor = message.tensor
        if not tensor.is_floating_point():
            bits = 40 if message.tag.kind in GRADIENTS else vertical(recording.settings).model.combine.bits
            pieces = [other.tensor for other in to_server if other.tag == message.tag]
            tensor = open_sum(pieces, bits, torch.float64, "the sum", "")
        yield message.tag.step, tensor


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", JOBS)
def test_what_a_run_proves_is_under_its_ledger(name: str, tmp_path: Path) -> None:
    for of_any, of_gaussian in audited(JOBS[name], tmp_path).values():
        assert of_any.epsilon <= of_gaussian.epsilon < EPSILON
        assert of_gaussian.ceiling > EPSILON, "more could not have been told"


def less_noise(patch: pytest.MonkeyPatch, share: float = 0.25) -> None:
    draw = Gaussian.draw
    patch.setattr(Gaussian, "draw", lambda self, shape, source: share * draw(self, shape, source))


def same_noise(patch: pytest.MonkeyPatch) -> None:
    draw, drawn = Gaussian.draw, dict[object, Tensor]()

    def again(self: Gaussian, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        return drawn.setdefault((self, shape), draw(self, shape, source)).clone()

    patch.setattr(Gaussian, "draw", again)


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mechanism, "clip_to_grid", lambda x, clip, order, step: x.double())


@pytest.mark.parametrize("mutate", [less_noise, same_noise, no_clipping])
def test_a_run_of_a_broken_publisher_proves_more_than_its_ledger_says(mutate: Any, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        found = audited(JOBS["not masked"], tmp_path)
    assert found["B"][1].epsilon > EPSILON


@pytest.mark.parametrize(("name", "share"), [("two rounds", 0.25), ("masked", 3 / 64)])
def test_too_little_noise_shows_over_two_channels_and_rounds_and_through_masks(
    name: str, share: float, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        less_noise(patch, share)
        for _, of_gaussian in audited(JOBS[name], tmp_path).values():
            assert of_gaussian.epsilon > EPSILON


def test_without_noise_nearly_all_coins_are_seen(tmp_path: Path) -> None:
    settings = private_job(2, {"noise_multiplier": 0, "canaries": 200}, combine={"masked": False})
    for of_any, _ in audited(settings, tmp_path).values():
        assert of_any.epsilon > 0.7 * of_any.ceiling
