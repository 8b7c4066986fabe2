"""Leaks planted one by one: the audit finds each of them, and has nothing to say of the same run without it."""

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.audit.runs import VERDICTS, divided, same_mask
from tests.cli.commands import veilgraph
from tests.roles.federation import merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.graph import dataset as random_split
from veilgraph.graph.party import load_party, save_party
from veilgraph.mpc.mask import PairwiseMasks, SecretRounding
from veilgraph.paradigms.vertical import once as released
from veilgraph.privacy import mechanism
from veilgraph.privacy.aggregation import NoisySums, Then
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.mechanism import Gaussian, Mechanism
from veilgraph.privacy.publisher import NoisedPublisher, clip_rows
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_parts
from veilgraph.tables.nodes import draw_splits

Patch = pytest.MonkeyPatch
Content = Mapping[str, Any]

NODES, SEED = 320, 3
NOISY: Content = {
    "model": {"initial": {"method": "individual"}, "local": {"model": "sage-mean", "hops": 1, "normalize": True}},
    "train": {"epochs": 3, "select_by": "last"},
    "privacy": {"unit": "row", "schedule": "every-step", "noise_multiplier": 1.0, "clip": 0.2},
}
FIXED: Content = {"initial": {"method": "individual"}, "local": {"model": "appnp", "hops": 1, "normalize": True}}
HOPS: Content = {"hops": 2, "dim": 8}
NODE: Content = {"unit": "node", "degree_bound": 2, "canaries": 20, "canaries_in": "data"}
JOBS: Mapping[str, tuple[int, Content]] = {
    "collaborative": (2, {"train": {"epochs": 4}}),
    "secure-sum": (2, {"model": {"initial": {"method": "secure-sum"}}}),
    "three, masked": (3, {"model": {"initial": {"method": "individual"}}}),
    "noisy": (2, NOISY),
    "noisy, in the clear": (2, merge(cast(Any, NOISY), {"model": {"combine": {"masked": False}}})),
    "joint": (2, merge(cast(Any, NOISY), {"model": {"initial": {"method": "collaborative"}}})),
    "joint noise": (4, merge(cast(Any, NOISY), {"model": {"rounds": 2}, "privacy": {"joint_noise": {"colluding": 1}}})),
    "once": (2, {"model": FIXED, "privacy": {"unit": "row", "epsilon_total": 4.0, "predictions": 2}}),
    "once, joint noise": (
        4,
        {
            "model": FIXED,
            "privacy": {"unit": "row", "epsilon_total": 4.0, "predictions": 1, "joint_noise": {"colluding": 1}},
        },
    ),
    "once, in every hop": (2, {"model": FIXED, "privacy": {"epsilon_total": 4.0, "unit": "edge", "aggregation": HOPS}}),
    "once, own rows in the clear": (
        2,
        {
            "model": FIXED,
            "privacy": {"epsilon_total": 4.0, "unit": "edge", "aggregation": {**HOPS, "own_rows": "clear"}},
        },
    ),
    "once, of a node, in every hop": (
        3,
        {"model": FIXED, "privacy": {"epsilon_total": 4.0, **NODE, "aggregation": HOPS}},
    ),
    "once, of a node": (3, {"model": FIXED, "privacy": {"epsilon_total": 4.0, **NODE}}),
}
LOCAL: Content = {
    "paradigm": "node-dp",
    "release": {"features": {"epsilon": 4.0, "low": -50, "high": 50}, "labels": {"epsilon": 2.0, "holder": "B"}},
    "data": {"dataset": "synthetic", "holders": 3, "split": [0.5, 0.25, 0.25], "stratify": False},
}


def job_of(name: str, folder: Path) -> JobSettings:
    base: Content = {"seed": SEED, "train": {"epochs": 2, "patience": None}}
    if name == "local":
        return parse_job(merge(cast(Any, base), cast(Any, LOCAL)))
    if name == "tables":
        return by_class(folder, base)
    holders, changes = JOBS[name]
    base = {**base, "model": {"dim": 8}, "data": divided(folder, "ABCD"[:holders], NODES, 6 * holders, SEED)}
    return parse_job(merge(cast(Any, base), cast(Any, changes)))


def by_class(folder: Path, base: Content) -> JobSettings:
    """A horizontal job on tables that are sorted by class, as a database may give them."""
    content = {**base, "paradigm": "horizontal", "data": {"dataset": "synthetic"}, "model": {"dim": 8}}
    settings = parse_job(content)
    parties = export_parts(settings.data, folder, 0, job=settings)
    for file in parties.values():
        nodes = file.parent / "nodes.csv"
        header, *lines = nodes.read_text(encoding="utf-8").splitlines()
        column = header.split(",").index('"label"')
        lines.sort(key=lambda line: line.split(",")[column])
        nodes.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    data = {"parties": {name: str(file) for name, file in parties.items()}, "label_holder": "A"}
    return parse_job(settings.model_dump(mode="json") | {"data": data})


# The leaks


def mask_used_again(patch: Patch) -> None:
    patch.setattr(PairwiseMasks, "mask", same_mask)


def one_holder_unmasked(patch: Patch) -> None:
    """The other two agree on masks between themselves alone, so that the sums still open."""
    mask = PairwiseMasks.mask

    def without_c(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        keys = {} if self._party == "C" else {peer: key for peer, key in self._keys.items() if peer != "C"}
        masks = PairwiseMasks(self._party, keys, bytes(32))
        return mask(masks, purpose, step, shape)

    patch.setattr(PairwiseMasks, "mask", without_c)


def half_the_noise(patch: Patch) -> None:
    draw = Gaussian.draw
    patch.setattr(Gaussian, "draw", lambda self, shape, source: 0.5 * draw(self, shape, source))


def noise_used_again(patch: Patch) -> None:
    """A publisher draws once, and adds that to all of its releases."""

    def drawn(self: Any, of: Mechanism, shape: tuple[int, ...]) -> Future[Tensor]:
        kept = self.__dict__.setdefault("kept", {})
        if (of, shape) not in kept:
            kept[of, shape] = of.draw(shape, self._source)
        found: Future[Tensor] = Future()
        found.set_result(kept[of, shape].clone())
        return found

    patch.setattr(NoisedPublisher, "draw_release", drawn)


def noise_of_a_fixed_seed(patch: Patch) -> None:
    draw = Gaussian.draw
    patch.setattr(Gaussian, "draw", lambda self, shape, source: draw(self, shape, bytes))


def one_row_unclipped(patch: Patch) -> None:
    clip_to_grid = mechanism.clip_to_grid

    def clipped(x: Tensor, clip: float, order: int, step: float) -> Tensor:
        rows = clip_to_grid(x, clip, order, step)
        rows[7] = (x[7].to(torch.float64) / step).round() * step
        return rows

    patch.setattr(mechanism, "clip_to_grid", clipped)


def gradients_without_noise(patch: Patch) -> None:
    def gradients(self: NoisedPublisher, rows: Tensor, step: int, *, deep: bool = False) -> Tensor:
        return clip_rows(rows, self.plan.settings.gradient_clip, 2)

    patch.setattr(NoisedPublisher, "gradients", gradients)


def nothing_paid(patch: Patch) -> None:
    patch.setattr(Ledger, "spend", lambda *arguments, **named: None)
    patch.setattr(Ledger, "reserve", lambda *arguments, **named: 1)


def others_not_paid_for(patch: Patch) -> None:
    """What other holders release of h0, which has this holder's features in it."""
    reserve = Ledger.reserve

    def own_alone(self: Ledger, event: Any, channel: str, step: int, count: int, **named: Any) -> int:
        return count if channel == "others" else reserve(self, event, channel, step, count, **named)

    patch.setattr(Ledger, "reserve", own_alone)
    patch.setattr(NoisedPublisher, "pay_for_others", lambda self, step: None)


def degrees_not_bounded(patch: Patch) -> None:
    patch.setattr(released, "bound_degrees", lambda edges, nodes, bound: torch.ones(edges.shape[1], dtype=torch.bool))


def noise_after_the_last_hop_alone(patch: Patch) -> None:
    draw, counted = Gaussian.draw, itertools.count()

    def last_alone(self: Gaussian, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        return draw(self, shape, source) * (next(counted) % 3 == 2)

    patch.setattr(Gaussian, "draw", last_alone)


def one_noise_for_all_hops(patch: Patch) -> None:
    release = NoisySums.release

    def same(self: NoisySums, rows: Tensor, source: SecretSource, then: Then | None = None) -> Tensor:
        seed = source(SEED_BYTES)
        return release(self, rows, lambda _: seed, then)

    patch.setattr(NoisySums, "release", same)


def no_secret_rounding(patch: Patch) -> None:
    patch.setattr(SecretRounding, "move", lambda self, encoded, values, bits: None)


def split_by_classes(patch: Patch) -> None:
    draw = draw_splits

    def stratified(labels: Any, fractions: Any, name: str) -> Any:
        return draw(labels, fractions.model_copy(update={"stratify": True}), name)

    patch.setattr(random_split, draw_splits.__name__, stratified)


def seeds_of_the_job(patch: Patch) -> None:
    patch.setattr(jobs, "private_seed", lambda: SEED)


def order_of_the_table(patch: Patch) -> None:
    patch.setattr(LearningStreams, "order", lambda self, purpose, ids: list(range(len(ids))))


def changed_data(run: Path) -> None:
    """B's features are others, and the next predictions want a release of them."""
    path = RunDirectory.open(run).party("B").graph_path
    graph = load_party(path)
    path.unlink()
    save_party(replace(graph, features=graph.features.flip(0)), path)
    predict(run)


@dataclass(frozen=True)
class Leak:
    """One of them.

    Attributes:
        job: that it is planted in.
        plant: does it.
        found_by: the attack that the audit fails by.
        limits: of the audit; most need none.
        after: what is done with the run before it is audited.
    """

    job: str
    plant: Callable[[Patch], None]
    found_by: str
    limits: Mapping[str, float] | None = None
    after: Callable[[Path], None] | None = None

    @property
    def plan(self) -> AuditPlan:
        """Everything that fails by itself, and what is limited."""
        return AuditPlan(attacks=(*VERDICTS, *(self.limits or ())), limits=cast(Any, self.limits))


LEAKS: Mapping[str, Leak] = {
    "a mask used again": Leak("collaborative", mask_used_again, "uniformity"),
    "one holder unmasked": Leak("three, masked", one_holder_unmasked, "uniformity"),
    "half the noise": Leak("noisy", half_the_noise, "noise-level"),
    "noise used again": Leak("noisy", noise_used_again, "noise-level"),
    "half of each share of a step": Leak("joint noise", half_the_noise, "noise-level"),
    "shares of a step used again": Leak("joint noise", noise_used_again, "noise-level"),
    "half of each share": Leak("once, joint noise", half_the_noise, "noise-level"),
    "shares used again for other data": Leak(
        "once, joint noise", noise_of_a_fixed_seed, "noise-level", after=changed_data
    ),
    "a sum not paid for": Leak("once, joint noise", nothing_paid, "paid"),
    "one row unclipped": Leak("noisy, in the clear", one_row_unclipped, "noise-level"),
    "gradients without noise": Leak("noisy", gradients_without_noise, "noise-level"),
    "nothing paid": Leak("noisy", nothing_paid, "paid"),
    "others' releases not paid for": Leak("joint", others_not_paid_for, "paid"),
    "noise after the last hop alone": Leak("once, in every hop", noise_after_the_last_hop_alone, "noise-level"),
    "nor in the first hop": Leak("once, own rows in the clear", noise_after_the_last_hop_alone, "noise-level"),
    "one noise for all hops": Leak("once, in every hop", one_noise_for_all_hops, "noise-level"),
    "degrees not bounded, in every hop": Leak("once, of a node, in every hop", degrees_not_bounded, "reach"),
    "degrees not bounded": Leak("once, of a node", degrees_not_bounded, "reach"),
    "no secret rounding": Leak("three, masked", no_secret_rounding, "low-bits"),
    "a split by classes": Leak("local", split_by_classes, "split"),
    "seeds of the job": Leak("secure-sum", seeds_of_the_job, "known-weights", limits={"known-weights": 0.8}),
    "the order of the table": Leak("tables", order_of_the_table, "row-order"),
}
SLOW = (
    "a mask used again",
    "one holder unmasked",
    "others' releases not paid for",
    "no secret rounding",
    "seeds of the job",
    "the order of the table",
)


def audited(leak: Leak, folder: Path) -> AuditResult:
    train(job_of(leak.job, folder / "data"), folder / "run", record_views=True, private_seeds=True)
    if leak.after is not None:
        leak.after(folder / "run")
    return audit(folder / "run", leak.plan)


def figures(result: AuditResult, attack: str) -> list[str]:
    return [f"{each.value.value:.3g}: {each.note}" for each in result.findings if each.attack == attack]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Leak], AuditResult]:
    """Audits of the runs without leaks, each made once."""
    found: dict[object, AuditResult] = {}

    def made(leak: Leak) -> AuditResult:
        key = leak.job, str(leak.limits), leak.after
        if key not in found:
            found[key] = audited(leak, tmp_path_factory.mktemp("honest"))
        return found[key]

    return made


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", [pytest.param(name, marks=nightly) if name in SLOW else name for name in LEAKS])
def test_a_planted_leak_fails_the_audit_and_its_honest_twin_passes(
    name: str, honest: Callable[[Leak], AuditResult], tmp_path: Path, monkeypatch: Patch
) -> None:
    leak = LEAKS[name]
    twin = honest(leak)
    assert leak.found_by in {each.attack for each in twin.findings}
    assert (twin.failed, twin.untested) == ((), ())
    leak.plant(monkeypatch)
    found = audited(leak, tmp_path)
    assert leak.found_by in {each.attack for each in found.failed}, figures(found, leak.found_by)


def test_a_check_that_fails_has_exit_code_3_and_a_place_on_the_page(tmp_path: Path, monkeypatch: Patch) -> None:
    half_the_noise(monkeypatch)
    run = train(job_of("noisy", tmp_path / "data"), tmp_path / "run", record_views=True).path
    gate = veilgraph("audit", run, "--attack", "noise-level")
    assert gate.exit_code == 3, gate.output
    assert "not as claimed" in gate.stdout
    assert veilgraph("report", run).exit_code == 0
    assert "What the run claims" in (run / "report.html").read_text(encoding="utf-8")
