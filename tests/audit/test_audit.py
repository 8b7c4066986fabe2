"""The audit of whole runs: attacks see a view and nothing else, limits gate, and a planted leak is found."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.audit.runs import NODES, job_in, same_mask
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from veilgraph.audit import reconstruction
from veilgraph.audit.attack import ATTACKS, AuditContext, some_of_each
from veilgraph.audit.audit import AuditPlan, audit, evidence_for
from veilgraph.audit.finding import CLIENT, AuditResult, Finding, Outcome
from veilgraph.audit.labels import few_of_each
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc import ring
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.product import row_blocks
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.job import UNLIMITED, AttackLimit
from veilgraph.report.audit import scope_line
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory

MOUNTED = (
    "uniformity",
    "reconstruction",
    "equation-solving",
    "generative-regression",
    "link-combination",
    "label-gradient",
    "label-blind",
    "membership-gradient",
    "membership-lira-online",
)

ATTACKS_ON_OTHER_JOBS = {"attribute-release", "link-propagation"}
CLAIMED_OF_EVERY_JOB = {"uniformity", "low-bits", "row-order"}
"""Of ``UNLIMITED``; the others are of noise, perturbed labels or sealed jobs."""


@pytest.fixture(scope="module")
def result(run: Path) -> AuditResult:
    """Of the attacks that tests here look at; all of them together are mounted in ``make nightly``."""
    return audit(run, AuditPlan(attacks=MOUNTED, shadows=2))


@nightly
def test_every_attack_is_mounted_or_its_absence_has_a_reason(run: Path) -> None:
    found = audit(run, AuditPlan(shadows=2))
    named = {finding.attack for finding in found.findings} | {each.name for each in found.skipped if each.name}
    assert named == {*ATTACKS} - ATTACKS_ON_OTHER_JOBS | CLAIMED_OF_EVERY_JOB
    assert {*UNLIMITED} >= CLAIMED_OF_EVERY_JOB


def of(result: AuditResult, adversary: str, attack: str, target: str | None = None) -> list[Finding]:
    return [
        each
        for each in result.findings
        if (each.adversary, each.attack) == (adversary, attack) and target in (None, each.target)
    ]


@pytest.mark.parametrize("party", [SERVER, "A", "B"])
def test_what_an_adversary_has_is_in_its_own_part_of_the_run(run: Path, party: str, tmp_path: Path) -> None:
    alone = tmp_path / "run"
    (alone / "parties").mkdir(parents=True)
    shutil.copy(run / "job.yaml", alone)
    shutil.copytree(run / "parties" / party, alone / "parties" / party)
    ours, all_there = (evidence_for(RunDirectory.open(path), party) for path in (alone, run))
    assert ours
    assert [values(each) for each in ours] == [values(each) for each in all_there]


def values(evidence: Evidence) -> tuple[object, ...]:
    rows = None if evidence.rows is None else evidence.rows.tobytes()
    parts = [*evidence.steps, *evidence.updates, *(each.tensor().numpy() for each in evidence.messages)]
    return evidence.sort, evidence.words, evidence.about, rows, [part.tobytes() for part in parts]


def test_h0_and_the_own_updates_are_what_the_holder_computed(run: Path) -> None:
    """h^0 changes by −X·XᵀΣB: with all holders' B, and all features, exactly."""
    found = {
        party: next(each for each in evidence_for(RunDirectory.open(run), party) if each.sort == "initial")
        for party in ("A", "B")
    }
    assert all((each.steps[0] == found["A"].steps[0]).all() for each in found.values())
    total = sum(each.updates[0] for each in found.values())
    graphs = [RunDirectory.open(run).party(party).graph_path for party in found]
    features = torch.cat([_features(path) for path in graphs], dim=1).double().numpy()
    change = found["A"].steps[1] - found["A"].steps[0]
    expected = -features @ (features.T @ total)
    scale = (change * expected).sum() / (expected**2).sum()
    assert scale > 0
    assert abs(change - scale * expected).max() < 1e-4 * abs(change).max()


def _features(path: Path) -> Tensor:
    from veilgraph.graph.party import load_party  # noqa: PLC0415

    return load_party(path).features.to_dense()


def test_pairs_are_compared_whatever_the_number_of_nodes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "MAX_NODES", NODES - 1)
    (found,) = audit(run, AuditPlan(adversaries=("A",), attacks=("feature-similarity",))).findings
    assert found.note.endswith("from the first h0 alone.")
    assert found.targets == (200, 3800)
    assert found.value.low > 0.5


def test_nodes_are_sampled_class_by_class() -> None:
    labels = (np.arange(1000) % 50 == 0).astype(np.int64)
    some = some_of_each(np.arange(1000), labels, 100, 0)
    assert len(set(some)) == 100
    assert labels[some].sum() == 20  # all there are
    assert (np.bincount(labels[some_of_each(np.arange(1000), labels, 20, 0)]) == 10).all()
    assert (some_of_each(np.arange(9), labels, 9, 0) == np.arange(9)).all()


def test_of_a_rare_class_all_but_one_are_known() -> None:
    sizes = [20, 2, 3, 4, 5]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    assert np.bincount(labels[few_of_each(labels, np.arange(sum(sizes)), len(sizes), 0)]).tolist() == [3, 1, 2, 3, 3]
    with refused(DataError, key="labels"):
        few_of_each(labels, np.arange(21), 2, 0)


def test_nobody_attacks_what_is_its_own(result: AuditResult) -> None:
    assert {finding.adversary for finding in result.findings} >= {SERVER, "A", "B"}
    assert not [finding for finding in result.findings if finding.adversary == finding.target]


def test_masked_messages_say_nothing_and_what_is_disclosed_says_something(result: AuditResult) -> None:
    hidden = [finding for finding in result.findings if not finding.permitted]
    kinds = {(finding.adversary, finding.target) for finding in hidden}
    assert {(SERVER, "A"), (SERVER, "B"), ("A", "B"), ("B", "A")} == kinds
    assert all(finding.passed for finding in hidden)
    assert all(abs(finding.value.value - 0.5) < 0.03 for finding in hidden if finding.measure == "auc")
    (members,) = of(result, SERVER, "membership-gradient")
    assert members.value.value == 1
    assert members.verdict is not None
    assert members.verdict.found
    (labels,) = of(result, "B", "label-gradient")
    assert labels.value.value > 0.9
    (at_holder,), (blind,) = of(result, "B", "label-blind", "A"), of(result, SERVER, "label-blind", "A")
    assert at_holder.value.value > 0.8
    assert blind.accuracy == 1
    assert "3 groups were found where there are 3 classes" in blind.note
    reconstructed = of(result, "B", "reconstruction", "A")[0]
    assert reconstructed.without is not None
    assert reconstructed.value.value > reconstructed.without.value + 0.1


def test_a_client_tells_what_a_model_was_trained_on_by_models_with_and_without_it(result: AuditResult) -> None:
    (found,) = of(result, CLIENT, "membership-lira-online", "A")
    assert found.figures is not None
    assert {"tpr_at_1_percent", "tpr_at_0_1_percent", "advantage"} <= set(found.figures)
    assert "4 plaintext networks, half of them trained with each of these nodes" in found.note


def test_models_of_an_adversarys_own_learn_from_the_nodes_that_are_said(run: Path) -> None:
    """By a network that knows by heart what it was trained on, and guesses the rest."""

    def by_heart(job: object, graph: PartyGraph, epochs: int) -> Tensor:
        assert graph.train_mask is not None
        assert graph.labels is not None
        return torch.where(graph.train_mask[:, None], torch.nn.functional.one_hot(graph.labels, 3).double(), 1 / 3)

    case = AuditContext(RunDirectory.open(run), seed=0, shadows=2)
    case.source = SimpleNamespace(posteriors=by_heart)  # type: ignore[assignment]
    labels, training, test, _ = case.labels("A")
    targets = np.concatenate([training, test])
    paired, shadows = case.paired_models("A", targets), case.shadow_models("A")
    assert (paired[0].sum(axis=0) == 2).all()
    assert not (shadows[0] & ~case.free_nodes("A")).any()
    for (members, posteriors), nodes in ((paired, targets), (shadows, np.arange(NODES))):
        sure = posteriors[:, np.arange(len(nodes)), labels[nodes]]
        assert (sure == np.where(members, 1, 1 / 3)).all()


@pytest.mark.parametrize(("training", "free"), [(9, 100), (10, 19)])
def test_shadow_models_need_training_nodes_and_as_many_others_twice(run: Path, training: int, free: int) -> None:
    case = AuditContext(RunDirectory.open(run), seed=0, shadows=2)
    rest = np.arange(training + free, NODES)
    case.labels = lambda holder: (np.zeros(NODES, np.int64), np.arange(training), rest, 1)  # type: ignore[method-assign]
    assert case.free_nodes("A").sum() == free
    with refused(DataError, party="A") as caught:
        case.shadow_models("A")
    assert [int(number) for number in re.findall(r"\d+", str(caught.value))] == [training, free, 10, 20]


def test_outputs_are_solved_for_features_and_rows_for_neighbours(result: AuditResult) -> None:
    linear = next(each for each in of(result, "B", "equation-solving", "A") if "initial" in each.evidence)
    assert linear.gain is not None
    assert linear.gain.low > 0.1
    for adversary in (SERVER, "A", CLIENT):
        for attack in ("equation-solving", "generative-regression"):
            assert of(result, adversary, attack, "B")
    (combined,) = of(result, SERVER, "link-combination", "B")
    assert combined.value.low > 0.6


def test_an_audit_without_limits_passes_and_is_written(run: Path, result: AuditResult) -> None:
    assert not result.failed
    assert json.loads((run / "audit.json").read_text())["findings"]
    assert result.record()["version"] == 2


def test_a_holder_finds_the_edges_that_rounds_of_propagation_use(tmp_path: Path) -> None:
    model = {"dim": 8, "rounds": 4, "local": {"model": "appnp", "hops": 1}, "server": {"layers": 0}}
    train(
        job_in(tmp_path / "data", model=model, train={"epochs": 12, "patience": None}),
        tmp_path / "run",
        record_views=True,
    )
    found = audit(tmp_path / "run", AuditPlan(adversaries=(SERVER, "A", "B"), attacks=("link-propagation",)))
    assert {finding.adversary for finding in found.findings} == {SERVER, "A", "B"}
    assert all(finding.value.value > 0.85 for finding in found.findings)  # twelve columns give few equations
    gains = [finding.gain.low for finding in found.findings if finding.gain is not None]
    assert len(gains) == 2
    assert min(gains) > 0.1
    assert not audit(tmp_path / "run", AuditPlan(adversaries=(CLIENT,), attacks=("link-propagation",))).findings


def test_the_same_seed_gives_the_same_audit(run: Path) -> None:
    plan = AuditPlan(adversaries=(CLIENT,), attacks=("link-similarity", "membership-lira"), seed=3, shadows=2)
    assert audit(run, plan).record() == audit(run, plan).record()


def test_links_that_the_adversary_has_itself_are_not_asked_about(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As linked ones they would be given away, and as unlinked ones false: B's 1-4, 2-5, 3-6 among all that A lacks."""
    case = AuditContext(RunDirectory.open(run), seed=0, shadows=1)
    target, own = {(1, 4), (2, 5), (3, 6), (0, 1)}, {(0, 1), (0, 7), (5, 7)}
    unlinked = {(1, 2), (3, 7), (0, 6)}
    everything = {(one, other) for other in range(8) for one in range(other)}

    def graph(name: str, pairs: set[tuple[int, int]]) -> PartyGraph:
        both = [pair for one, other in sorted(pairs) for pair in ((one, other), (other, one))]
        return PartyGraph(name, torch.ones(8, 1), torch.tensor(both).T)

    graphs = {"A": graph("A", own | (everything - target - unlinked)), "B": graph("B", target)}
    monkeypatch.setattr("veilgraph.audit.attack.load_party", lambda path: graphs[path.parent.name])
    asked = case.links("B", "A")
    found = {truth: {tuple(pair) for pair in asked.pairs[asked.truth == truth].tolist()} for truth in (True, False)}
    assert found == {True: target - own, False: unlinked}
    from_outside = case.links("B", SERVER)
    assert {tuple(pair) for pair in from_outside.pairs[from_outside.truth].tolist()} == target


@nightly
def test_limits_of_the_job_and_of_the_plan_gate(tmp_path: Path) -> None:
    settings = job_in(tmp_path / "data", audit_limits={"membership-gradient": 0.9, "label-gradient": 1.0})
    train(settings, tmp_path / "run", record_views=True)
    plan = AuditPlan(adversaries=(SERVER,), attacks=("membership-gradient", "label-gradient"))
    assert [finding.attack for finding in audit(tmp_path / "run", plan).failed] == ["membership-gradient"]
    looser = AuditPlan(plan.adversaries, plan.attacks, limits={"membership-gradient": 1.0})
    assert not audit(tmp_path / "run", looser).failed
    assert not audit(tmp_path / "run", looser).untested
    rate = AuditPlan(plan.adversaries, plan.attacks, limits={"label-gradient": AttackLimit(tpr_at_1_percent=0.001)})
    failed = {finding.attack: finding for finding in audit(tmp_path / "run", rate).failed}
    assert failed["label-gradient"].exceeded == ("tpr_at_1_percent",)
    assert failed["label-gradient"].limit == 1.0, "the job's limit on another figure is gone"


def without_mask(
    self: PairwiseMasks, values: Tensor, bits: int, purpose: str, step: int, remedy: str, **how: bool
) -> Tensor:
    return ring.encode(values, bits, purpose, remedy)


_MUTANTS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "no mask": ("hide", without_mask),
    "one mask for all steps": ("mask", same_mask),
}


@pytest.mark.parametrize("mutant", _MUTANTS)
def test_a_planted_leak_is_found(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairwiseMasks, *_MUTANTS[mutant])
    train(job_in(tmp_path / "data"), tmp_path / "run", record_views=True)
    found = audit(tmp_path / "run", AuditPlan(adversaries=(SERVER,), attacks=("uniformity",)))
    assert {finding.target for finding in found.failed} == {"A", "B"}


@nightly
def test_twenty_runs_without_a_leak_raise_no_alarm(tmp_path: Path) -> None:
    """At a rate of 1 % an audit, more than two alarms in twenty have a probability of 0.001."""
    alarms = 0
    for seed in range(20):
        path = tmp_path / str(seed)
        settings = job_in(path / "data", seed=seed, train={"epochs": 2, "patience": None})
        train(settings, path / "run", record_views=True)
        alarms += bool(audit(path / "run", AuditPlan(attacks=("uniformity",), seed=seed)).failed)
        shutil.rmtree(path)
    assert alarms <= 2


def test_a_view_that_was_not_recorded_is_asked_for(tmp_path: Path) -> None:
    train(job_in(tmp_path / "data"), tmp_path / "run")
    assert "--record-views" in one_error(veilgraph("audit", tmp_path / "run", "--adversary", "server"))
    assert veilgraph("audit", tmp_path / "run", "--adversary", "client", "--attack", "attribute").exit_code == 0


def test_the_command_fails_with_3_and_says_what_failed(run: Path) -> None:
    arguments = ("audit", run, "--adversary", "server", "--attack", "membership-gradient")
    passed = veilgraph(*arguments)
    assert passed.exit_code == 0
    failed = veilgraph(*arguments, "--limit", "membership-gradient=0.9")
    assert failed.exit_code == 3
    assert "1 of 1 findings do not pass" in failed.stderr
    assert "This does not pass." in failed.stdout


def test_an_attack_that_raises_costs_its_own_finding_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Outcome:
        raise ValueError("no\nroot\x1b[2J " + 400 * "x")

    altered = replace(ATTACKS["membership-gradient"], mount=broken)
    monkeypatch.setattr("veilgraph.audit.audit.ATTACKS", {**ATTACKS, "membership-gradient": altered})
    chosen = ("--attack", "membership-gradient", "--attack", "label-blind", "--attack", "link-similarity")
    done = veilgraph("audit", run, "--adversary", "server", *chosen)
    assert done.exit_code == 3
    assert "Traceback" not in done.output
    (line,) = [each for each in done.stderr.splitlines() if "ended with an error" in each]
    assert line.removeprefix("veilgraph: ").startswith(
        "the audit failed: server: membership-gradient on A ended with an error: ValueError: no root"
    )
    assert line.isprintable()
    content = json.loads((run / "audit.json").read_text())
    assert {each["attack"] for each in content["findings"]} == {"label-blind", "link-similarity"}
    raised = [each for each in content["skipped"] if each["raised"]]
    assert [(each["name"], len(each["why"])) for each in raised] == [("membership-gradient", 300)]
    limited = audit(run, AuditPlan((SERVER,), ("membership-gradient",), limits={"membership-gradient": 1.0}))
    assert [each.name for each in limited.untested] == ["membership-gradient"]
    assert not limited.passed


def test_checks_masks_canaries_and_views_that_raise_leave_the_other_findings(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Finding]:
        raise np.linalg.LinAlgError("singular")
        yield

    def at_once(*_: object) -> None:
        raise np.linalg.LinAlgError("singular")

    plan = AuditPlan((SERVER,), ("uniformity", "row-order", "epsilon", "membership-gradient"))
    for name, place in {
        "uniformity": "veilgraph.audit.audit.uniformity_test",
        "row-order": "veilgraph.audit.audit.run_check",
        "epsilon": "veilgraph.audit.audit.empirical_epsilon",
        None: "veilgraph.audit.audit.unused_messages",
    }.items():
        with monkeypatch.context() as patched:
            patched.setattr(place, broken)
            found = audit(run, plan)
        assert [(each.name, each.why) for each in found.broken][:1] == [(name, "LinAlgError: singular")]
        assert "membership-gradient" in {each.attack for each in found.findings}
        assert not found.passed


def test_an_audit_of_a_part_says_so(run: Path) -> None:
    part = audit(run, AuditPlan((SERVER,), ("row-order",)))
    assert (part.adversaries, part.attacks) == ((SERVER,), ("row-order",))
    assert scope_line(part).startswith("Only a part was asked for: attacks row-order; adversaries server.")
    assert scope_line(replace(part, adversaries=None, attacks=None)) == ""
    done = veilgraph("audit", run, "--adversary", "server", "--attack", "row-order")
    assert scope_line(part) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--limit", "membership=0.9"), "link-similarity"),
        (("--limit", "attribute=0.3"), "from 0.5 to 1"),
        (("--limit", "attribute"), "ATTACK=AUC"),
    ],
)
def test_a_malformed_limit_is_a_usage_error(run: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in usage_error(veilgraph("audit", run, *arguments))


@pytest.mark.parametrize("arguments", [("--adversary", "Z"), ("--attack", "guessing")])
def test_unknown_adversaries_and_attacks_are_refused(run: Path, arguments: tuple[str, ...]) -> None:
    assert "is not one of" in one_error(veilgraph("audit", run, *arguments))


def test_runs_in_batches_or_in_blocks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = job_in(tmp_path / "data", train={"epochs": 1, "patience": None, "batch_size": NODES // 2})
    train(settings, tmp_path / "batches", record_views=True)
    with refused(RunError, key=tmp_path / "batches"):
        audit(tmp_path / "batches")
    train(job_in(tmp_path / "more", train={"epochs": 1, "patience": None}), tmp_path / "blocks", record_views=True)
    monkeypatch.setattr(
        "veilgraph.paradigms.vertical.audit.row_blocks", lambda n, f, d: row_blocks(n, f, d, 8 * 8 * 10)
    )
    with refused(RunError, key=tmp_path / "blocks"):
        audit(tmp_path / "blocks")
