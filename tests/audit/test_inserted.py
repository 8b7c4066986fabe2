"""Canaries in the data: what an audit proves of the whole pipeline, and not of the last door alone."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from tests import nightly
from tests.audit.runs import divided
from tests.cli.commands import veilgraph
from tests.errors import refused
from tests.paradigms.cutting import CutError, cut_at
from veilgraph.audit.attack import load_view
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.canaries import Released, inserted_scores
from veilgraph.audit.epsilon import inserted_releases
from veilgraph.audit.finding import AuditResult
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.core.types import MASKS, SERVER, PartyId
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation
from veilgraph.paradigms.vertical import paradigm
from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.privacy.mechanism import Gaussian, Mechanism
from veilgraph.privacy.plan import Plan as Releases
from veilgraph.privacy.publisher import NoisedPublisher
from veilgraph.protocol.canaries import Inserted
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.runtime.store.run_directory import RunDirectory

EVERY_STEP = {"initial": {"method": "individual"}, "local": {"model": "sage-mean", "hops": 1, "normalize": True}}
ONCE = {"initial": {"method": "individual"}, "local": {"model": "appnp", "hops": 1, "normalize": True}}
COIN_TYPES = (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)
UNITS: Mapping[str, Mapping[str, Any]] = {
    "row": {"unit": "row"},
    "row, replaced": {"unit": "row", "neighbours": "replacement"},
    "edge": {"unit": "edge", "degree_bound": 4},
    "node": {"unit": "node", "degree_bound": 2},
}


def graphs_of(names: list[str], nodes: int) -> list[PartyGraph]:
    return split_vertically(synthetic_data(nodes, 8 * len(names), 3, 0), names=names, label_holder="A", seed=0)


def job_in(folder: Path, holders: int, nodes: int, model: Mapping[str, Any], **privacy: Any) -> JobSettings:
    return parse_job(
        {
            "data": divided(folder, "ABCDEFGH"[:holders], nodes, 8 * holders),
            "model": {"dim": 8, "server": {"layers": 0}, "combine": {"masked": False}, **model},
            "train": {"epochs": 3, "patience": None, "select_by": "last", "checkpoint_every": 1},
            "privacy": {"unit": "row", "epsilon_total": 2.0, "delta": 1e-5, "canaries_in": "data", **privacy},
        }
    )


def bounds(run: Path) -> AuditResult:
    found = audit(run, AuditPlan((SERVER,), ("epsilon",)))
    assert found.findings, [each.why for each in found.skipped]
    return found


# Where they are


def inserted(unit: str, party: PartyId, count: int = 20, nodes: int = 300) -> tuple[Inserted, PartyGraph]:
    model = EVERY_STEP if unit == "row" else ONCE
    privacy = {**UNITS[unit], "epsilon_total": 4.0, "canaries": count, "canaries_in": "data"}
    schedule = "every-step" if unit == "row" else "once"
    job = parse_job(
        {
            "data": {"holders": 3, "label_holder": "A"},
            "model": model,
            "train": {"select_by": "last", "patience": None},
            "privacy": {"unit": "row", "schedule": schedule, **privacy},
        }
    )
    graph = next(graph for graph in graphs_of(["A", "B", "C"], nodes) if graph.party == party)
    return Inserted.of(job, party, nodes, system_secrets(SEED_BYTES)), graph


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("sparse", [False, True])
def test_canaries_touch_nobody_and_differ_by_their_coin_alone(unit: str, sparse: bool) -> None:
    canaries, graph = inserted(unit, "B")
    if sparse:
        graph = replace(graph, features=graph.features.to_sparse_csr())
    planted = canaries.into(graph)
    planted.validate()
    mine = canaries.places("B")
    everywhere = {int(node) for owner in canaries.owners for node in canaries.places(owner).flatten()}
    assert len(everywhere) == 20 * canaries.size * len(canaries.owners), "all different"
    assert everywhere == set(canaries.everywhere.tolist())
    own = {frozenset((int(row[0]), int(leaf))) for row in mine for leaf in row[1:]}
    edges = {frozenset(pair) for pair in planted.edge_index.T.tolist() if everywhere & set(pair)}
    assert edges <= own
    features = planted.features.to_dense()
    centres = features[mine[:, 0]]
    largest = float(graph.features.to_dense().abs().max())
    others = torch.tensor(sorted(everywhere - set(mine[:, 0].tolist())))
    assert not features[others].any()
    if unit == "edge":
        assert (centres == largest).all()
        assert edges == {frozenset(row.tolist()) for row in mine[canaries.coins]}
    else:
        out = 0.0 if unit == "row" else -largest
        assert (centres[canaries.coins] == largest).all()
        assert (centres[~canaries.coins] == out).all()
        assert edges == own
    rest = torch.tensor(sorted(set(range(300)) - everywhere))
    assert torch.equal(features[rest], graph.features.to_dense()[rest])


def test_edges_keep_their_relations_and_a_canarys_are_of_the_first() -> None:
    canaries, graph = inserted("edge", "B")
    places = graph.edge_index.sum(dim=0) % 2
    told = canaries.into(replace(graph, relations=(Relation("calls"), Relation("pays")), edge_relation=places))
    told.validate()
    plain = canaries.into(graph)
    assert torch.equal(told.edge_index, plain.edge_index)
    assert told.edge_relation is not None
    kept = ~torch.isin(told.edge_index, canaries.everywhere).any(dim=0)
    assert torch.equal(told.edge_relation[kept], told.edge_index.sum(dim=0)[kept] % 2)
    assert not told.edge_relation[~kept].any()


def test_others_keep_them_apart_and_have_coins_of_their_own() -> None:
    ours, _ = inserted("node", "B")
    theirs, other = inserted("node", "C")
    assert torch.equal(ours.everywhere, theirs.everywhere)
    assert torch.equal(ours.places("C"), theirs.places("C"))
    assert not torch.equal(ours.coins, theirs.coins)
    planted = theirs.into(other)
    assert not planted.features[ours.places("B").flatten()].any()
    inside = torch.isin(planted.edge_index, ours.places("B").flatten()).any(dim=0)
    assert not inside.any()
    learner, _ = inserted("node", "A")
    assert learner.owners == ("B", "C"), "the label holder publishes nothing"
    once, again = (inserted("row", "B", count=90)[0].coins for _ in range(2))
    assert not torch.equal(once, again), "they follow from the job"


@pytest.mark.parametrize("unit", ["row", "node"])
def test_no_canary_is_learned_from_or_scored(unit: str) -> None:
    """With unit row the label holder has canaries of its own as well."""
    canaries, graph = inserted(unit, "A")
    planted = canaries.into(graph)
    rest = torch.ones(graph.num_nodes, dtype=torch.bool)
    rest[canaries.everywhere] = False
    for name in MASKS:
        before, after = getattr(graph, name), getattr(planted, name)
        assert torch.equal(after, before & rest), name
        assert after.any()


def test_too_many_or_other_nodes_are_one_clear_error(tmp_path: Path) -> None:
    with refused(ConfigError, key="privacy.canaries", value=200):
        inserted("node", "B", count=200)
    canaries, graph = inserted("row", "B")
    with refused(RunError, key="canaries"):
        canaries.into(graphs_of(["A", "B", "C"], 299)[1])
    with refused(ConfigError, key="canaries_in", value="data"):
        job_in(tmp_path / "none", 2, 50, ONCE)
    with refused(ConfigError, key="canaries", value=5):
        job_in(tmp_path / "rows", 2, 50, ONCE, canaries=5, canaries_in="rows", **UNITS["node"])
    assert graph.num_nodes == 300


def test_they_are_the_same_in_all_sessions(tmp_path: Path) -> None:
    job = job_in(tmp_path / "data", 2, 300, EVERY_STEP, schedule="every-step", canaries=60)
    with cut_at(2), pytest.raises(CutError):
        train(job, tmp_path / "run", record_views=True)
    store = RunDirectory.open(tmp_path / "run").party("B")
    content = store.canaries_path.read_bytes()
    kept = store.canaries()
    assert kept is not None
    coins = Inserted.of(job, "B", 300, kept.key).coins
    lost = shutil.copytree(tmp_path / "run", tmp_path / "lost")
    resume(tmp_path / "run")
    assert store.canaries_path.read_bytes() == content
    assert {f.target for f in bounds(tmp_path / "run").findings} == {"A", "B"}
    secrets = [kept.key, kept.key.hex().encode(), *(coins.to(kind).numpy().tobytes() for kind in COIN_TYPES)]
    secrets += [json.dumps(values).encode() for values in (coins.tolist(), coins.int().tolist())]
    others = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and "B" not in path.parts]
    assert any(path.parent.name == "A" for path in others)
    for path in others:
        assert not any(secret in path.read_bytes() for secret in secrets), f"{path} tells B's coins"
    RunDirectory.open(lost).party("B").canaries_path.unlink()
    with refused(RunError, key=tmp_path / "lost" / "parties" / "B" / "canaries.safetensors"):
        resume(lost)


# What they prove


def test_scores_find_a_signal_and_no_more_than_there_is() -> None:
    random = np.random.default_rng(0)
    coins = random.random(400) < 0.5
    direction = random.normal(size=12)
    clean = coins[:, None] * direction
    releases = [Released(clean + 8 * random.normal(size=clean.shape), clean) for _ in range(20)]
    scores, judged = inserted_scores(releases, coins, seed=0)
    assert np.count_nonzero(~judged) == 16
    right = (scores > np.median(scores)) == coins[judged]
    assert right.mean() > 0.75
    nothing = [Released(8 * random.normal(size=clean.shape), clean) for _ in range(20)]
    scores, judged = inserted_scores(nothing, coins, seed=0)
    assert 0.4 < ((scores > np.median(scores)) == coins[judged]).mean() < 0.6
    with refused(DataError, key="canaries"):
        inserted_scores([Released(clean[:16], clean[:16])], coins[:16], seed=0)


@pytest.mark.parametrize("relation", ["zero-out", "replacement"])
def test_a_canary_with_its_edges_is_there_with_all_of_them_or_not_at_all(relation: str) -> None:
    job = in_every_hop(unit="node-edges", degree_bound=3, neighbours=relation, canaries=20)
    canaries = Inserted.of(job, "B", 300, system_secrets(SEED_BYTES))
    graph = graphs_of(["A", "B", "C"], 300)[1]
    planted, mine = canaries.into(graph), canaries.places("B")
    assert canaries.leaves == 3, "a node of more neighbours would break the rule"
    edges = {frozenset(pair) for pair in planted.edge_index.T.tolist() if set(pair) & set(mine.flatten().tolist())}
    there = mine[canaries.coins] if relation == "zero-out" else mine
    assert edges == {frozenset((int(row[0]), int(leaf))) for row in there for leaf in row[1:]}
    centres, largest = planted.features.to_dense()[mine[:, 0]], float(graph.features.to_dense().abs().max())
    assert (centres[canaries.coins] == largest).all()
    assert (centres[~canaries.coins] == (0.0 if relation == "zero-out" else -largest)).all()


def in_every_hop(**privacy: Any) -> JobSettings:
    return parse_job(
        {
            "data": {"holders": 3, "label_holder": "A"},
            "model": ONCE,
            "privacy": {"epsilon_total": 4.0, "canaries_in": "data", "aggregation": {"hops": 2, "dim": 8}, **privacy},
        }
    )


HOPS: Mapping[str, Mapping[str, Any]] = {
    "edge": {"unit": "edge"},
    "node": {"unit": "node", "degree_bound": 2},
    "node-edges": {"unit": "node-edges", "degree_bound": 8, "aggregation": {"hops": 2, "dim": 8, "sum_clip": 1.0}},
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("unit", HOPS)
def test_too_little_noise_in_every_hop_is_found(tmp_path: Path, unit: str) -> None:
    canaries = 300 if unit == "edge" else 100
    privacy = {"aggregation": {"hops": 2, "dim": 8}, **HOPS[unit], "canaries": canaries, "epsilon_total": 1.0}
    job = job_in(tmp_path / "data", 2, 1000, ONCE, **privacy)
    honest = bounds(without_hubs(job, tmp_path / "honest"))
    assert [f.passed for f in honest.findings] == [True]
    assert "3 releases" not in honest.findings[0].evidence
    with less_noise(0.05):
        run = without_hubs(job, tmp_path / "mutant")
    assert [f.passed for f in bounds(run).findings] == [False]


def without_hubs(job: JobSettings, run: Path) -> Path:
    """Trains on graphs in which no node has more than eight neighbours."""
    graphs = graphs_of(["A", "B"], 1000)
    kept = [graph.edge_index[:, bound_degrees(graph.edge_index, graph.num_nodes, 8)] for graph in graphs]
    parties = {graph.party: replace(graph, edge_index=edges) for graph, edges in zip(graphs, kept, strict=True)}
    return train(job, run, parties=parties, record_views=True).path


def test_later_hops_say_of_a_canary_what_its_own_rows_are(tmp_path: Path) -> None:
    """Where the first sums are of rows of zeros and say nothing, a pair is told by rows of noise alone."""
    job = job_in(
        tmp_path / "data", 2, 600, ONCE, canaries=200, unit="edge", epsilon_total=6.0,
        aggregation={"hops": 6, "dim": 8},
    )  # fmt: skip
    run = train(job, tmp_path / "run", record_views=True).path
    found = bounds(run).findings[0]
    views = {name: load_view(RunDirectory.open(run), name) for name in (SERVER, "B")}
    kept = RunDirectory.open(run).party("B").canaries()
    assert kept is not None
    canaries = Inserted.of(job, "B", 600, kept.key)
    places = canaries.places("B").numpy()
    at = np.searchsorted(canaries.everywhere.numpy(), places)
    releases = list(inserted_releases(views, [], places, at))
    assert [each.rows.shape[1] for each in releases] == [2 * 16, 1, 1, 1, 1, 1]
    scores, judged = inserted_scores(releases[1:], canaries.coins.numpy(), seed=0)
    right = ((scores > np.median(scores)) == canaries.coins.numpy()[judged]).mean()
    assert right > 0.6
    assert found.passed


@contextmanager
def less_noise(share: float) -> Iterator[None]:
    draw = Gaussian.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gaussian, "draw", lambda self, shape, source: share * draw(self, shape, source))
        yield


@pytest.mark.cases(1)
@pytest.mark.parametrize(("unit", "share"), [("row, replaced", 0.3), ("edge", 0.05), ("node", 0.05)])
def test_too_little_noise_is_found_for_every_unit(tmp_path: Path, unit: str, share: float) -> None:
    """An edge or a node reaches fewer rows here than it might at worst, so that more has to be missing."""
    job = job_in(tmp_path / "data", 2, 1500 if unit == "node" else 1200, ONCE, canaries=300, **UNITS[unit])
    assert [f.passed for f in bounds(train(job, tmp_path / "honest", record_views=True).path).findings] == [True]
    with less_noise(share):
        run = train(job, tmp_path / "mutant", record_views=True).path
    assert [f.passed for f in bounds(run).findings] == [False]
    assert veilgraph("audit", run, "--adversary", SERVER, "--attack", "epsilon").exit_code == 3


def test_a_friend_takes_its_noise_off_and_finds_what_another_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C adds no noise. In sums the others' hides that from the server; with them it sees C's rows as they are."""
    masked = {**EVERY_STEP, "combine": {"masked": True}}
    job = job_in(tmp_path / "data", 3, 1200, masked, schedule="every-step", canaries=300, **UNITS["row, replaced"])
    draw = NoisedPublisher.draw_release

    def silent(self: NoisedPublisher, mechanism: Mechanism, shape: tuple[int, ...]) -> Any:
        drawn = draw(self, mechanism, shape)
        if self.plan.party == "C":
            drawn.result().zero_()
        return drawn

    monkeypatch.setattr(NoisedPublisher, "draw_release", silent)
    run = train(job, tmp_path / "run", record_views=True).path
    found = audit(run, AuditPlan((SERVER, "server+A+B"), ("epsilon",)))
    failed = {(each.adversary, each.target) for each in found.findings if not each.passed}
    assert failed == {("server+A+B", "C")}
    assert len(found.findings) == 4


def old_plan(real: Callable[..., Releases | None]) -> Callable[..., Releases | None]:
    """A holder's own releases alone, as they were counted before what others publish was."""

    def planned(*arguments: Any) -> Releases | None:
        found = real(*arguments)
        if found is None or not found.others:
            return found
        own = MappingProxyType({**found.step, "others": 0})
        return replace(found, others=0, step=own, inference=found.inference // (1 + found.others))

    return planned


@nightly
def test_what_others_publish_of_a_holders_data_is_found_where_it_is_not_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h0 has every holder's features in it: canaries in rows, planted after it, cannot see that."""
    joint = {**EVERY_STEP, "initial": {"method": "collaborative", "learning_rate": 0.01}}
    job = job_in(tmp_path / "data", 8, 3600, joint, schedule="every-step", canaries=300)
    honest = bounds(train(job, tmp_path / "honest", record_views=True).path)
    assert [finding.passed for finding in honest.findings] == [True] * 8
    friends = audit(tmp_path / "honest", AuditPlan(("server+A+B+C+D+E+F",), ("epsilon",))).findings
    assert {(each.target, each.limit) for each in friends} == {("G", None), ("H", None)}, "h0 is not noised to them"
    monkeypatch.setattr(paradigm, "plan", old_plan(plan))
    found = bounds(train(job, tmp_path / "old", record_views=True).path)
    assert sum(not finding.passed for finding in found.findings) >= 5


def test_a_model_whose_empty_rows_are_not_zero_is_not_held_to_zero_out(tmp_path: Path) -> None:
    model = {
        **EVERY_STEP,
        "local": {"model": "gcn", "hops": 1},
        "initial": {"method": "individual", "activation": "sigmoid"},
    }
    job = job_in(tmp_path / "data", 2, 300, model, schedule="every-step", canaries=60)
    found = audit(train(job, tmp_path / "run", record_views=True).path, AuditPlan((SERVER,), ("epsilon",)))
    assert not found.findings
    assert all("audit it with privacy.neighbours=replacement" in each.why for each in found.skipped)
