"""Canaries in a private training: what weights prove of ε is below the ledger's, and above one that is false."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from veilgraph_averaging.network import AveragedNetwork
from veilgraph_averaging.private import sampled
from veilgraph_averaging.private.canaries import TrainedCanaries
from veilgraph_averaging.private.sampled import SampledPublisher, SampledSum
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.training import Terms

from tests import nightly
from tests.chance import drawing_from
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.cutting import CutError, cut_at
from tests.roles.federation import Settings, merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult, Finding
from veilgraph.core.errors import ConfigError, ProtocolError, RunError
from veilgraph.core.files import private_folder
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.privacy.aggregation import most_neighbours
from veilgraph.privacy.ledger_files import PEOPLE
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.runtime.session import publishers as ledgers
from veilgraph.runtime.store.run_directory import RunDirectory

COUNT, NODES, FEATURES, BOUND, EPSILON = 60, 260, 80, 2, 2.0
NAMES: Final = ("A", "B")


def graph_of(party: str, nodes: int = NODES, *, labelled: bool = True) -> PartyGraph:
    """A ring with random columns."""
    generator = torch.Generator().manual_seed(ord(party))
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    features = torch.randn(nodes, FEATURES, generator=generator)
    drawn = torch.rand(nodes, generator=generator)
    split: dict[str, Any] = {}
    if labelled:
        masks = {"train_mask": drawn < 0.5, "val_mask": (drawn >= 0.5) & (drawn < 0.7), "test_mask": drawn >= 0.7}
        split = {"labels": torch.randint(2, (nodes,), generator=generator), "num_classes": 2, **masks}
    return PartyGraph(party, features, torch.cat([ring, ring.flip(0)], 1), **split)


def job_in(
    folder: Path, *changes: Settings, nodes: int = NODES, unlabelled: str = "", names: tuple[str, ...] = NAMES
) -> AveragingJob:
    folder.mkdir(parents=True)
    for name in names:
        path = folder / f"{name}.safetensors"
        save_party(graph_of(name, nodes, labelled=name != unlabelled), path, [f"{name}{row}" for row in range(nodes)])
        (private_folder(folder / "ledger" / name) / PEOPLE).write_text(str(folder))  # each job's people are its own
    return made({"data": {"graphs": {name: str(folder / f"{name}.safetensors") for name in names}}}, *changes)


def made(*changes: Settings) -> AveragingJob:
    base: dict[str, Any] = {
        "paradigm": "averaging",
        "data": {"dataset": "synthetic", "holders": 2, "split": [0.5, 0.2, 0.3], "stratify": False},
        "model": {"dim": 6, "dropout": 0.0, "local": {"model": "sage-mean", "hops": 1, "normalize": False}},
        "averaging": {
            "rule": {"name": "fedsgd"},
            "local_epochs": 1,
            "privacy": {
                "epsilon_total": EPSILON,
                "degree_bound": BOUND,
                "sampling_rate": 0.3,
                "batch": 40,
                "clip": 0.5,
                "canaries": COUNT,
            },
        },
        "train": {"epochs": 6, "patience": None, "select_by": "last", "learning_rate": 0.5, "checkpoint_every": 2},
    }
    if any("graphs" in change.get("data", {}) for change in changes):
        del base["data"]
    return averaging(parse_job(merge(base, *changes)))


def privacy(**given: object) -> Settings:
    return {"averaging": {"privacy": given}}


FEW: Settings = {"averaging": {"privacy": {"canaries": 20}}}
"""For tests that need no proof of ε, with ``FEW_NODES``."""
FEW_NODES = 100


def audited(folder: Path, *changes: Settings, nodes: int = NODES) -> AuditResult:
    train(job_in(folder / "data", *changes, nodes=nodes), folder / "run", record_views=True)
    return audit(folder / "run", AuditPlan(("B",), ("epsilon", "noise-level")))


def bound(result: AuditResult) -> Finding:
    (found,) = [each for each in result.findings if (each.attack, each.target) == ("epsilon", "A")]
    assert found.value is not None
    return found


def level(result: AuditResult) -> Finding:
    (found,) = [each for each in result.findings if each.attack == "noise-level"]
    return found


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on chance: coins, and every holder's draws and noise, are from fixed secrets."""
    monkeypatch.setattr(ledgers, "system_secrets", lambda length: bytes(range(length)))
    monkeypatch.setattr(SampledPublisher, "__init__", drawing_from(fixed_secrets))


WORLDS: Mapping[str, Settings] = {
    "zero-out": {},
    "replaced": privacy(neighbours="replacement"),
    "momentum": {"averaging": {"rule": {"name": "fedsgd", "momentum": 0.8}}},
    # Without neighbours a canary has one term. At q = 0.3 one in nine is in none of six sums, and no audit can tell it.
    "no edges": {
        "model": {"local": {"hops": 0}},
        "averaging": {"privacy": {"degree_bound": None, "sampling_rate": 0.5}},
    },
}


def proves(result: AuditResult) -> tuple[float, float]:
    """The bound, and what the ledger says."""
    found = bound(result)
    assert found.value is not None
    assert found.limit is not None
    return found.value.low, found.limit


@pytest.mark.cases(2)
@pytest.mark.parametrize("world", ["zero-out", *(pytest.param(each, marks=nightly) for each in list(WORLDS)[1:])])
def test_an_honest_run_proves_less_than_its_ledger_says_and_one_without_noise_more(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = audited(tmp_path / "honest", WORLDS[world])
    proven, claim = proves(honest)
    assert claim == pytest.approx(EPSILON, rel=1e-3)
    assert proven < claim
    assert not honest.failed, [each.attack for each in honest.failed]
    with monkeypatch.context() as patch:
        patch.setattr(SampledSum, "noise", lambda self, size, source: torch.zeros(size, dtype=torch.float64))
        bare = audited(tmp_path / "bare", WORLDS[world])
    proven, claim = proves(bare)
    assert proven > claim
    assert {each.attack for each in bare.failed} == {"epsilon", "noise-level"}


@nightly
def test_noise_made_jointly_is_held_to_what_all_others_add_and_epsilon_to_as_many_as_it_withstands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint: Settings = {"averaging": {"threshold": 3, "privacy": {"joint_noise": {"colluding": 1}}}}
    for name in ("honest", "bare"):
        with monkeypatch.context() as patch:
            if name == "bare":
                patch.setattr(SampledSum, "noise", lambda self, size, source: torch.zeros(size, dtype=torch.float64))
            train(job_in(tmp_path / f"{name}-data", joint, names=("A", "B", "C")), tmp_path / name, record_views=True)
        alone = audit(tmp_path / name, AuditPlan(("B",), ("epsilon", "noise-level")))
        assert {each.attack for each in alone.failed} == (set() if name == "honest" else {"epsilon", "noise-level"})
        assert bound(alone).limit == pytest.approx(EPSILON, rel=1e-3)
    both = audit(tmp_path / "honest", AuditPlan(("B+C",), ("epsilon",)))
    assert bound(both).limit is None, "two that collude are more than this noise withstands"


def half(self: SampledSum, size: int, source: SecretSource) -> torch.Tensor:
    return NOISE(self, size, source) / 2


def the_same(self: SampledSum, size: int, source: SecretSource) -> torch.Tensor:
    return NOISE(self, size, fixed_secrets("again", size))


NOISE = SampledSum.noise


@pytest.mark.cases(1)
@pytest.mark.parametrize("fault", [half, the_same])
def test_noise_that_is_too_little_or_comes_again_is_found_whatever_canaries_prove(
    fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SampledSum, "noise", fault)
    train(job_in(tmp_path / "data", FEW, nodes=FEW_NODES), tmp_path / "run", record_views=True)
    assert level(audit(tmp_path / "run", AuditPlan(("B",), ("noise-level",)))).passed is False


@nightly
def test_terms_that_are_not_clipped_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "clip_to_grid", lambda rows, clip, order, step: (rows.double() / step).trunc() * step)
    assert "epsilon" in {each.attack for each in audited(tmp_path, privacy(clip=0.1)).failed}


@pytest.mark.cases(1)
@pytest.mark.parametrize("asked", [("A",), pytest.param((SERVER, "A", "server+B", "client"), marks=nightly)])
def test_who_has_the_weights_is_an_adversary_and_is_held_against_the_ledger(
    asked: tuple[str, ...], tmp_path: Path
) -> None:
    louder = privacy(epsilon_total=None, noise_multiplier=0.1)
    train(
        job_in(tmp_path / "data", louder, FEW, {"train": {"epochs": 2}}, nodes=FEW_NODES),
        tmp_path / "run",
        record_views=True,
    )
    result = audit(tmp_path / "run", AuditPlan(asked, ("epsilon",)))
    targets = {SERVER: "AB", "A": "B", "server+B": "A", "client": ""}
    assert {(each.adversary, each.target) for each in result.findings} == {
        (adversary, target) for adversary in asked for target in targets[adversary]
    }
    assert not result.failed
    path = tmp_path / "run" / "parties" / "A" / "ledger.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**facts, "epsilon_total": 0.0}), encoding="utf-8")
    after = audit(tmp_path / "run", AuditPlan(("B",), ("epsilon",)))
    assert bound(after) in after.failed


def test_without_canaries_it_says_so(tmp_path: Path) -> None:
    result = audited(tmp_path, privacy(canaries=0), {"train": {"epochs": 1}}, nodes=FEW_NODES)
    assert not result.findings
    assert {each.name for each in result.skipped if "averaging.privacy.canaries" in each.why} == {
        "epsilon",
        "noise-level",
    }
    assert not RunDirectory.open(tmp_path / "run").party("A").canaries_path.exists()


# What they are


def drawn_in(graph: PartyGraph, settings: AveragingJob, key: bytes) -> TrainedCanaries:
    plan = settings.training_plan
    assert plan is not None
    return plan.canaries_in(graph, key, settings.hash())


def planted(*changes: Settings) -> tuple[TrainedCanaries, PartyGraph, PartyGraph]:
    graph = graph_of("A")
    canaries = drawn_in(graph, made(*changes), fixed_secrets("planted")(SEED_BYTES))
    return canaries, graph, canaries.into(graph)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sparse", [False, True])
def test_canaries_touch_nobody_keep_the_rule_and_differ_by_their_coin_alone(world: str, sparse: bool) -> None:
    canaries, graph, _ = planted(WORLDS[world])
    if sparse:
        graph = replace(graph, features=graph.features.to_sparse_csr())
    there = canaries.into(graph)
    there.validate()
    places, everywhere = canaries.places, set(canaries.places.flatten().tolist())
    assert len(everywhere) == COUNT * (1 + canaries.leaves)
    assert canaries.leaves == (0 if world == "no edges" else BOUND)
    own = {frozenset((int(row[0]), int(leaf))) for row in places for leaf in row[1:]}
    edges = {frozenset(pair) for pair in there.edge_index.T.tolist() if everywhere & set(pair)}
    is_in = canaries.coins if canaries.relation == "zero-out" else torch.ones(COUNT, dtype=torch.bool)
    assert edges == {pair for pair in own if min(pair) in everywhere and pair & set(places[is_in, 0].tolist())}
    assert most_neighbours(there.edge_index, there.num_nodes) <= BOUND
    assert there.train_mask is not None
    assert there.labels is not None
    assert graph.labels is not None
    assert bool(there.train_mask[places[:, 1:]].all())
    assert torch.equal(there.train_mask[places[:, 0]], is_in)
    features, before = there.features.to_dense(), graph.features.to_dense()
    largest = float(before.abs().max())
    centres = features[places[:, 0]]
    assert torch.equal(centres[is_in].abs(), torch.full_like(centres[is_in], largest))
    assert not centres[~is_in].any()
    rest = torch.tensor(sorted(set(range(NODES)) - everywhere))
    assert torch.equal(features[rest], before[rest])
    assert torch.equal(there.labels[rest], graph.labels[rest])
    flipped = canaries.world(graph, ~canaries.coins)
    changed = (flipped.features.to_dense() != features).any(1).nonzero().flatten()
    assert set(changed.tolist()) == set(places[:, 0].tolist()), "a coin is about one node"
    assert 0.3 < float(canaries.coins.double().mean()) < 0.7


def gradients(terms: Terms, network: AveragedNetwork, node: int) -> list[torch.Tensor]:
    """Of a node's term, where it has one."""
    try:
        numbers = terms.numbers(torch.tensor([node]))
    except KeyError:
        return []
    return [terms.gradient(network, number) for number in numbers]


@pytest.mark.cases(1)
@pytest.mark.parametrize("world", WORLDS)
def test_no_term_but_a_canarys_hangs_on_a_coin_and_a_canary_is_in_no_more_terms_than_are_counted(world: str) -> None:
    settings = made(WORLDS[world])
    plan = settings.training_plan
    assert plan is not None
    canaries, graph, _ = planted(WORLDS[world])
    network = AveragedNetwork(settings.model, FEATURES, 2, LearningStreams(0, SERVER), torch.float32)
    one, other = (
        Terms(canaries.world(graph, canaries.coins ^ turned), plan.hops, torch.float32)
        for turned in (torch.zeros(COUNT, dtype=torch.bool), torch.arange(COUNT) == 3)
    )
    mine = canaries.places[3].tolist()
    differ = 0
    for node in range(NODES):
        found = [gradients(terms, network, node) for terms in (one, other)]
        same = len(found[0]) == len(found[1]) and all(map(torch.equal, *found))
        differ += not same
        assert same or node in mine
    assert differ == 1 + canaries.leaves <= plan.terms


@nightly
def test_they_are_the_same_in_all_sessions_and_a_run_without_its_own_does_not_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with cut_at(3), pytest.raises((CutError, ProtocolError)):
        train(job_in(tmp_path / "data", FEW, nodes=FEW_NODES), path, record_views=True)
    store = RunDirectory.open(path).party("A")
    kept = store.canaries_path.read_bytes()
    moved = store.canaries_path.rename(tmp_path / "elsewhere")
    with refused(RunError, key=store.canaries_path):
        resume(path)
    moved.rename(store.canaries_path)
    resume(path)
    assert store.canaries_path.read_bytes() == kept
    result = audit(path, AuditPlan(("B",), ("epsilon",)))  # fixed secrets begin anew: noise-level would find that
    assert bound(result).passed


def test_more_than_a_holder_has_nodes_for_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, key="averaging.privacy.canaries", value=100):
        train(job_in(tmp_path / "data", privacy(canaries=100)), tmp_path / "run")
    with refused(ConfigError, key="averaging.privacy.canaries"):
        drawn_in(graph_of("A"), made(privacy(canaries=0)), fixed_secrets("none")(SEED_BYTES))
