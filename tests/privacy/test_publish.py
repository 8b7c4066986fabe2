"""The door: clipped, paid for, noised, each with noise of its own."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.privacy.jobs import make_graphs, private_job
from tests.privacy.lifetime.ledgers import NODES
from tests.privacy.lifetime.ledgers import ledger as lifetime_ledger
from tests.privacy.planned import job, planned
from veilgraph.core.errors import BudgetSpent, RunError
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy import accountant
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime_ledger import Account, Budget
from veilgraph.privacy.publisher import NoisedPublisher, clip_rows
from veilgraph.runtime.session.publishers import publisher_of
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import PartyStore


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.jsonl", 1e-4, 30.0, job="0" * 64) as opened:
        yield opened


def publisher(ledger: Ledger | None, **privacy: Any) -> NoisedPublisher:
    return NoisedPublisher(planned(job(20, **privacy), "A"), ledger, system_secrets)


def rows(count: int = 400, dim: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(count, dim, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("order", [1, 2])
def test_clipping_is_line_1_of_algorithm_1(order: int) -> None:
    x = rows()
    expected = torch.stack([row * min(1.0, 2.0 / float(row.norm(order))) for row in x])
    assert float((clip_rows(x, 2.0, order) - expected).abs().max()) < 1e-12
    short = x / 1000
    assert torch.equal(clip_rows(short, 2.0, order), short)


def test_clipping_has_the_gradient_of_its_formula() -> None:
    x = rows(6, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: clip_rows(values, 2.0, 2), (x,))
    zero = torch.zeros(2, 3, requires_grad=True)
    clip_rows(zero, 1.0, 2).sum().backward()
    assert zero.grad is not None
    assert torch.equal(zero.grad, torch.ones(2, 3))


@pytest.mark.parametrize("mechanism", ["gaussian", "james-stein-plus", "laplace"])
def test_the_gradient_of_what_is_released_is_that_of_the_clipped_rows(mechanism: str) -> None:
    x = (rows() * torch.linspace(0, 1, 400).unsqueeze(1)).requires_grad_()
    wanted = rows(400, 8).flip(0)
    with publisher(None, mechanism=mechanism, noise_multiplier=1, clip=2) as door:
        door.embeddings(x, 0).backward(wanted)
    plain = x.detach().clone().requires_grad_()
    clip_rows(plain, 2.0, 1 if mechanism == "laplace" else 2).backward(wanted)
    assert x.grad is not None
    assert plain.grad is not None
    assert float((x.grad - plain.grad).abs().max()) < 1e-12
    lengths = x.detach().norm(dim=1)
    assert bool((lengths > 2).any())
    assert bool((lengths < 2).any()), "no row is short enough to be left as it is"


def test_every_release_has_noise_of_its_own() -> None:
    """Noise is drawn ahead; none is used twice, on neither channel."""
    x = torch.zeros(5000, 4, dtype=torch.float64)
    with publisher(None, noise_multiplier=2, clip=1.5, gradient_clip=1.5) as door:
        seen = [door.embeddings(x, step) for step in range(4)] + [door.gradients(x, step) for step in range(4)]
    for number, one in enumerate(seen):
        assert abs(float(one.std()) - 3) < 0.1
        for other in seen[:number]:
            assert abs(float((one - other).std()) - 3 * math.sqrt(2)) < 0.15


def test_what_is_added_up_lies_on_one_grid_though_holders_noise_differs() -> None:
    """The coarsest of them; from a finer one by rounding down, whatever the value, so that the lowest bit is even."""
    plans = [{name: planned(job(40, epsilon_total=2 + 0.25 * at), name) for name in "AB"} for at in range(24)]
    cells = [[each[name].mechanism("embeddings").cell for name in "AB"] for each in plans]
    assert {coarse / fine for coarse, fine in cells} == {1.0, 2.0}
    for own, (coarse, fine) in zip(plans, cells, strict=True):
        assert own["A"].sum_cell("embeddings") == own["B"].sum_cell("embeddings") == coarse
        assert own["A"].sum_cell("gradients") == own["B"].sum_cell("gradients")
        if coarse == fine:
            continue
        x, finest = torch.zeros(4000, 8), 16 * coarse
        with NoisedPublisher(own["B"], None, system_secrets) as door:
            for grid, summand in ((coarse, door.summand(x, 0)), (finest, door.summand(x, 1, "embeddings", finest))):
                whole = summand / grid
                assert torch.equal(whole, whole.round())
                assert abs(float((whole % 2).mean()) - 0.5) < 0.02
                assert float(summand.std()) == pytest.approx(own["B"].multiplier, rel=0.03)
        return


@pytest.mark.parametrize("others", [0, 2])
def test_a_summand_is_paid_for_as_a_release_is(ledger: Ledger, others: int) -> None:
    with publisher(ledger, noise_multiplier=5) as door:
        door.plan = replace(door.plan, others=others)
        door.summand(rows(), 0)
        door.summand(rows(), 0, "gradients")
        door.gradients(rows(), 0, deep=True)
        counts = {"embeddings": 1, "gradients": 2} | ({"others": 2 * others} if others else {})
        assert door.spent().releases == counts


def test_each_release_is_paid_for_before_it_is_made(ledger: Ledger) -> None:
    with publisher(ledger, noise_multiplier=5) as door:
        for step in range(3):
            door.embeddings(rows(), step)
            door.gradients(rows(), step)
        spent = door.spent()
        assert spent.releases == {"embeddings": 3, "gradients": 3}
        assert spent.epsilon_total == pytest.approx(next(iter(ledger.totals().values())))
        assert spent.epsilon_release < spent.epsilon_total
        for step in range(ledger.room(door.plan.event) or 0):  # type: ignore[arg-type]
            door.embeddings(rows(4, 4), step)
        with pytest.raises(BudgetSpent):
            door.embeddings(rows(4, 4), step)
        assert door.spent().epsilon_total <= 30


def test_steps_to_come_are_paid_for_at_once(ledger: Ledger) -> None:
    with publisher(ledger, noise_multiplier=5) as door:
        door.expect(7, 0)
        assert door.spent().releases == {"embeddings": 7, "gradients": 7}
        assert len(ledger.path.read_text().splitlines()) == 3
        for step in range(7):
            door.embeddings(rows(), step)
            door.gradients(rows(), step)
        assert len(ledger.path.read_text().splitlines()) == 3
        door.embeddings(rows(), 7)
        assert door.spent().releases == {"embeddings": 8, "gradients": 7}


def test_a_budget_is_told_in_training_steps(ledger: Ledger) -> None:
    with publisher(ledger, noise_multiplier=5) as door:
        steps = door.affordable_steps()
        assert steps is not None
        assert steps > 20
        assert door.refusal() == ""
        door.expect(steps, 0)
        assert door.affordable_steps() == 0
        assert door.refusal() == "", "the inference has its room"
        while ledger.room(door.plan.event):  # type: ignore[arg-type]
            door.embeddings(rows(4, 4), 0)
        assert "0 more releases fit the budget of A and an inference needs 1" in door.refusal()
        assert "privacy.epsilon_total" in door.refusal()


def test_who_has_no_room_over_all_runs_is_told_of_that_limit(tmp_path: Path) -> None:
    """A larger ε of the run would only need more of it."""
    lifetime = lifetime_ledger(tmp_path / "lifetime", Budget(epsilon=2.0))
    account = Account(lifetime, lifetime.keys(NODES), 1e-4, "0" * 64, "job")
    with (
        Ledger.open(tmp_path / "ledger.jsonl", 1e-4, 30.0, job="0" * 64, lifetime=account) as opened,
        publisher(opened, noise_multiplier=5) as door,
    ):
        assert door.refusal() == ""
        while opened.room(door.plan.event):  # type: ignore[arg-type]
            door.embeddings(rows(4, 4), 0)
        assert "limits.max_epsilon at A" in door.refusal()
        assert "epsilon_total" not in door.refusal()


@pytest.mark.parametrize(
    ("privacy", "about"),
    [({}, ("row", "zero-out")), ({"schedule": "once", "unit": "edge", "degree_bound": 3}, ("edge", "replacement"))],
)
def test_every_epsilon_says_what_it_is_about(ledger: Ledger, privacy: dict[str, Any], about: tuple[str, str]) -> None:
    for of in (None, ledger):
        with publisher(of, noise_multiplier=5, delta=1e-4, **privacy) as door:
            account = door.account()
            assert (account["unit"], account["neighbours"], account["delta"]) == (*about, 1e-4)


def test_without_noise_nothing_is_paid_and_short_rows_pass_as_they_are() -> None:
    with publisher(None, noise_multiplier=0, clip=1e3, gradient_clip=1e3) as door:
        x = rows()
        assert torch.equal(door.embeddings(x, 0), x)
        assert torch.equal(door.gradients(x, 0), x)
        assert door.spent().epsilon_total == math.inf
        assert door.affordable_steps() is None


@pytest.mark.parametrize(
    ("of_job", "of_party", "budget"),
    [(9.0, 4.0, 4.0), (4.0, 9.0, 4.0), (4.0, None, 4.0), (None, 4.0, 4.0), (None, None, math.inf)],
)
def test_the_jobs_budget_and_the_partys_own_limit_both_hold(
    of_job: float | None, of_party: float | None, budget: float, tmp_path: Path
) -> None:
    """Whichever is the smaller: ``privacy.epsilon_total`` of the job, or ``limits.max_epsilon`` of the party's file."""
    settings = private_job(2, {"noise_multiplier": 2.0, "delta": 1e-5, "epsilon_total": of_job})
    graph, store = make_graphs(settings, 0)["B"], PartyStore(tmp_path)
    released = 0
    with publisher_of(store, settings, graph, of_party, begun=False) as door:
        assert isinstance(door, NoisedPublisher)
        assert door.budget == budget
        for step in range(6):
            try:
                door.embeddings(rows(graph.common), step)
            except BudgetSpent:
                break
            released += 1
        spent = door.spent().epsilon_total
    totals = [accountant.total({GaussianEvent(2.0): count}, 1e-5) for count in range(1, 7)]
    assert released == sum(total <= budget for total in totals)
    assert (released < 6) == math.isfinite(budget)
    assert spent == pytest.approx(totals[released - 1])
    assert len((tmp_path / LEDGER).read_text(encoding="utf-8").splitlines()) == 1 + released


def test_a_ledger_keeps_the_delta_that_it_was_begun_with(tmp_path: Path) -> None:
    """A job without one takes it from the number of nodes, which changes where tables do."""
    settings, store = private_job(2, {"noise_multiplier": 2.0}), PartyStore(tmp_path)
    graph = make_graphs(settings, 0)["B"]

    def delta_with(nodes: int) -> float:
        more = replace(graph, features=torch.zeros(nodes, 1))
        with publisher_of(store, settings, more, None, begun=False) as door:
            assert isinstance(door, NoisedPublisher)
            assert door.account()["delta"] == door.about()["delta"]
            return float(door.about()["delta"])

    assert [delta_with(nodes) for nodes in (900, 1100, 9999)] == [1e-4] * 3
    with refused(RunError, key=tmp_path / "ledger.jsonl"):
        delta_with(10_000)
    (tmp_path / LEDGER).unlink()
    assert delta_with(10_000) == 1e-5
