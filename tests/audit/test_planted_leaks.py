"""Leaks planted one by one: the audit finds each of them, and has nothing to say of the same run without it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from torch import Tensor

from tests import nightly
from tests.audit.runs import VERDICTS, divided, same_mask
from tests.cli.commands import veilgraph
from tests.roles.federation import merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph import dataset as random_split
from veilgraph.mpc.mask import PairwiseMasks, SecretRounding
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.organisations import export_parts
from veilgraph.tables.nodes import draw_splits

Patch = pytest.MonkeyPatch
Content = Mapping[str, Any]

NODES, SEED = 320, 3
JOBS: Mapping[str, tuple[int, Content]] = {
    "collaborative": (2, {"train": {"epochs": 4}}),
    "secure-sum": (2, {"model": {"initial": {"method": "secure-sum"}}}),
    "three, masked": (3, {"model": {"initial": {"method": "individual"}}}),
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


@dataclass(frozen=True)
class Leak:
    """One of them.

    Attributes:
        job: that it is planted in.
        plant: does it.
        found_by: the attack that the audit fails by.
        limits: of the audit; most need none.
    """

    job: str
    plant: Callable[[Patch], None]
    found_by: str
    limits: Mapping[str, float] | None = None

    @property
    def plan(self) -> AuditPlan:
        """Everything that fails by itself, and what is limited."""
        return AuditPlan(attacks=(*VERDICTS, *(self.limits or ())), limits=cast(Any, self.limits))


LEAKS: Mapping[str, Leak] = {
    "a mask used again": Leak("collaborative", mask_used_again, "uniformity"),
    "one holder unmasked": Leak("three, masked", one_holder_unmasked, "uniformity"),
    "no secret rounding": Leak("three, masked", no_secret_rounding, "low-bits"),
    "a split by classes": Leak("local", split_by_classes, "split"),
    "seeds of the job": Leak("secure-sum", seeds_of_the_job, "known-weights", limits={"known-weights": 0.8}),
    "the order of the table": Leak("tables", order_of_the_table, "row-order"),
}
SLOW = ("a mask used again", "seeds of the job", "the order of the table")


def audited(leak: Leak, folder: Path) -> AuditResult:
    train(job_of(leak.job, folder / "data"), folder / "run", record_views=True, private_seeds=True)
    return audit(folder / "run", leak.plan)


def figures(result: AuditResult, attack: str) -> list[str]:
    return [f"{each.value.value:.3g}: {each.note}" for each in result.findings if each.attack == attack]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Leak], AuditResult]:
    """Audits of the runs without leaks, each made once."""
    found: dict[object, AuditResult] = {}

    def made(leak: Leak) -> AuditResult:
        key = leak.job, str(leak.limits)
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
    split_by_classes(monkeypatch)
    run = train(job_of("local", tmp_path / "data"), tmp_path / "run", record_views=True).path
    gate = veilgraph("audit", run, "--attack", "split")
    assert gate.exit_code == 3, gate.output
    assert "not as claimed" in gate.stdout
    assert veilgraph("report", run).exit_code == 0
    assert "What the run claims" in (run / "report.html").read_text(encoding="utf-8")
