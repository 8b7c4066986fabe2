"""Who is in a holder's sums, by its own notes: a training that draws otherwise than its ledger counts is found."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from veilgraph_averaging.audit import DRAWN
from veilgraph_averaging.private.plan import SampledPlan
from veilgraph_averaging.private.sampled import SampledSum
from veilgraph_averaging.settings import AveragingJob

from tests.paradigms.averaging.private_jobs import job
from veilgraph.audit.attack import load_view
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult, Finding
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Tag
from veilgraph.link.view import RecordedLink
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory

RATE, ROUNDS = 0.3, 12
_DRAWN = SampledSum.drawn


def settings(**changes: Any) -> AveragingJob:
    """Without hops, whose gradients are quickest."""
    own = {"sampling_rate": RATE, "batch": 15, "degree_bound": None, **changes}
    return job(
        {"timeout_s": 360, "data": {"holders": 2}, "model": {"local": {"hops": 0}}},
        {"averaging": {"patience_s": 60, "privacy": own}, "train": {"epochs": ROUNDS, "checkpoint_every": ROUNDS}},
    )


def audited(folder: Path) -> AuditResult:
    train(settings(), folder, record_views=True)
    return audit(folder, AuditPlan((SERVER,), ("sampling-rate",)))


def rates(result: AuditResult) -> list[Finding]:
    return [each for each in result.findings if each.attack == "sampling-rate"]


def p_value(found: Finding) -> float:
    assert found.verdict is not None
    return found.verdict.p_value


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(settings(), tmp_path_factory.mktemp("honest") / "run", record_views=True).path


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def test_an_honest_training_draws_as_its_ledger_counts(honest: Path) -> None:
    result = audit(honest, AuditPlan((SERVER,), ("sampling-rate",)))
    assert [(each.adversary, each.target) for each in rates(result)] == [(SERVER, name) for name in "AB"]
    assert not result.failed
    assert all("its ledger counts with 0.3" in each.note for each in rates(result))


def twice(self: SampledSum, count: int, source: SecretSource) -> list[int]:
    return _DRAWN(SampledSum(self.clip, self.noise_multiplier, 2 * self.rate), count, source)


def half(self: SampledSum, count: int, source: SecretSource) -> list[int]:
    return _DRAWN(SampledSum(self.clip, self.noise_multiplier, self.rate / 2), count, source)


def fixed_size(self: SampledSum, count: int, source: SecretSource) -> list[int]:
    size = round(self.rate * count)
    return sorted(torch.randperm(count, generator=torch.Generator().manual_seed(source(1)[0]))[:size].tolist())


def the_same(self: SampledSum, count: int, source: SecretSource) -> list[int]:
    return _DRAWN(self, count, lambda length: bytes(range(length)))


FAULTS: Mapping[str, Callable[[SampledSum, int, SecretSource], list[int]]] = {
    "twice": twice,
    "half": half,
    "fixed size": fixed_size,
    "the same sample": the_same,
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_draws_that_are_not_what_is_accounted_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(SampledSum, "drawn", FAULTS[fault])
    result = audited(tmp_path / "run")
    assert {each.attack for each in result.failed} == {"sampling-rate"}
    assert all(p_value(each) < 1e-3 for each in rates(result))


def test_a_ledger_that_counts_with_another_rate_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn is what the job says; what is paid for is not."""
    event = SampledPlan.event.fget  # type: ignore[attr-defined]

    def cheaper(self: SampledPlan) -> Any:
        whole = event(self)
        return type(whole)(whole.noise_multiplier, whole.sampling_rate / 2, whole.terms, whole.neighbours)

    monkeypatch.setattr(SampledPlan, "event", property(cheaper))
    found = rates(audited(tmp_path / "run"))
    assert all(p_value(each) < 1e-6 for each in found)
    assert all("its ledger counts with 0.15; more or fewer" in each.note for each in found)


def test_notes_are_the_holder_s_own_and_are_kept_in_recorded_views_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = list[object]()
    note = RecordedLink.note

    def counted(self: RecordedLink, tag: Tag, make: Callable[[], torch.Tensor]) -> None:
        noted.extend([tag] * ((tag.kind, tag.round) == DRAWN))
        note(self, tag, make)

    monkeypatch.setattr(RecordedLink, "note", counted)
    run = train(settings(), tmp_path / "run", record_views=True).path
    directory = RunDirectory.open(run)
    for name in "AB":
        view = load_view(directory, name)
        assert len(list(view.noted(*DRAWN))) == ROUNDS
        assert not [seen for seen in view.messages if (seen.tag.kind, seen.tag.round) == DRAWN]
    assert not load_view(directory, SERVER).own
    assert len(noted) == 2 * ROUNDS
    bare = train(settings(), tmp_path / "bare").path
    assert not [path for path in bare.rglob("*") if path.suffix == ".view"]


def not_audited(run: Path) -> list[str]:
    result = audit(run, AuditPlan((SERVER,), ("sampling-rate",)))
    return [each.attack for each in result.skipped if each.name == "sampling-rate"]


def test_what_is_not_there_is_said(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of other releases, and none at all, give no rate; nor does a view without notes."""
    path = copy / "parties" / "A" / "ledger.jsonl"
    first, *entries = path.read_text(encoding="utf-8").splitlines()
    others = [{**json.loads(each), "event": {"kind": "gaussian", "noise_multiplier": 1.0}} for each in entries]
    path.write_text("\n".join([first, *map(json.dumps, others)]) + "\n", encoding="utf-8")
    assert not_audited(copy) == ["sampling-rate of A"]
    shutil.move(path, tmp_path / "elsewhere")
    assert not_audited(copy) == ["sampling-rate of A"]
    monkeypatch.setattr(RecordedLink, "note", lambda *about: None)
    bare = train(settings(), tmp_path / "bare", record_views=True).path
    assert not_audited(bare) == ["sampling-rate of A", "sampling-rate of B"]
