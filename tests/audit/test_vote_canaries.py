"""Canaries among edges that vote with noise: predictions prove less than the ledger says, and without noise more.

Coins and noise are from fixed secrets, so that nothing here depends on chance.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.audit.runs import saved
from tests.errors import refused
from tests.paradigms.sealed.private import noise_from
from tests.roles.federation import Settings, merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.epsilon import vote_scores
from veilgraph.audit.finding import AuditResult, Finding
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.core.types import SERVER
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.mpc.sealed.linked import DealerMachine
from veilgraph.mpc.sealed.wire import Summands
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.protocol.canaries import VoteCanaries
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.session import publishers as ledgers
from veilgraph.runtime.store.run_directory import RunDirectory

COUNT, NODES, EPSILON = 150, 700, 2.0
KEY = bytes(range(7, 39))
MARGINS: Settings = {"output": "margins"}


def graphs_of(names: str = "AB") -> list[PartyGraph]:
    """Votes are easily told apart here: each class has a column, all edges are within one, most nodes have labels.

    Which nodes are canaries follows from the job's hash, so a test may not hang on a lucky draw of them.
    """
    data = synthetic_data(NODES, 12, 4, 0)
    data.x += 3 * torch.eye(12)[data.y]
    source, target = data.edge_index
    data.edge_index = data.edge_index[:, data.y[source] == data.y[target]]
    data.train_mask = ~data.val_mask
    data.test_mask = torch.zeros_like(data.val_mask)
    return split_vertically(data, names=list(names), label_holder="A", seed=0, num_classes=4)


def job_in(folder: Path, *changes: Settings, names: str = "AB") -> SealedJob:
    base: Settings = {
        "paradigm": "sealed",
        "data": {"graphs": saved(folder, graphs_of(names)), "label_holder": "A"},
        "model": {"network": "linear", "edge_slots": 8192},
        "train": {"learning_rate": 16, "epochs": 12, "select_by": "last", "patience": None},
        "privacy": {
            "unit": "edge",
            "epsilon_total": EPSILON,
            "canaries": COUNT,
        },
    }
    return sealed(parse_job(merge(base, *changes)))


def audited(folder: Path, *changes: Settings, adversary: str = "A", names: str = "AB") -> AuditResult:
    with noise_from(KEY):
        train(job_in(folder / "data", *changes, names=names), folder / "run", record_views=True)
    return audit(folder / "run", AuditPlan((adversary,), ("epsilon",)))


def proves(result: AuditResult) -> tuple[float, float]:
    (found,) = [each for each in result.findings if each.target == "B"]
    assert isinstance(found, Finding)
    assert found.value is not None
    assert found.limit is not None
    return found.value.low, found.limit


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "system_secrets", lambda length: KEY[:length])


def without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DealerMachine, "noised", lambda self, summands, epsilon: replace(summands, of_holders=False))


def test_predictions_prove_less_than_the_ledger_says_and_more_where_the_dealer_adds_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A network that has learned, so that votes alone decide, whichever nodes the job's hash draws as canaries.
    claimed: Settings = {"privacy": {"epsilon_total": 0.5}, "train": {"epochs": 60, "learning_rate": 1}}
    honest = audited(tmp_path / "honest", MARGINS, claimed)
    proven, claim = proves(honest)
    assert claim == pytest.approx(0.5, rel=1e-6)
    assert proven < claim
    assert not honest.failed
    without_noise(monkeypatch)
    bare = audited(tmp_path / "bare", MARGINS, claimed)
    proven, claim = proves(bare)
    assert proven > claim
    assert {each.attack for each in bare.failed} == {"epsilon"}


def test_where_the_bias_outweighs_a_vote_classes_are_said_to_tell_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes such an audit for one that found all noise; the shares of the votes show that there is none."""
    without_noise(monkeypatch)
    bare = audited(tmp_path)
    assert not bare.findings
    assert ["output: margins" in each.why for each in bare.skipped if each.name == "epsilon"] == [True]
    (found,) = audit(tmp_path / "run", AuditPlan((SERVER,), ("noise-level",))).failed
    assert found.attack == "noise-level"


Noised = Callable[[DealerMachine, Summands, float], Summands]
NOISED: Noised = DealerMachine.noised


def of_noise(change: Callable[[Tensor], Tensor]) -> Noised:
    """A dealer's noise, changed."""

    def noised(self: DealerMachine, summands: Summands, epsilon: float) -> Summands:
        found = NOISED(self, summands, epsilon)
        noise = (found.part - summands.part).double()
        return Summands(summands.part + change(noise).round().to(found.part.dtype), found.bits)

    return noised


def alone(place: slice) -> Callable[[Tensor], Tensor]:
    def kept(noise: Tensor) -> Tensor:
        found = torch.zeros_like(noise)
        found[:, place] = noise[:, place]
        return found

    return kept


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": torch.zeros_like,
    "a quarter": lambda noise: noise / 4,
    "half": lambda noise: noise / 2,
    "four fifths": lambda noise: noise * 0.8,
    "of two nodes, one of them": lambda noise: torch.where(torch.arange(len(noise))[:, None] % 2 == 0, noise, 0.0),
    "of two nodes, the same": lambda noise: noise[torch.arange(len(noise)) // 2 * 2],
    "of a node's classes, the same": lambda noise: noise[:, :1].expand_as(noise),
    "of a node's classes, one": alone(slice(1, 2)),
    "of all classes, on one": lambda noise: 2 * alone(slice(1, 2))(noise),
    "that adds up to nothing": lambda noise: noise - noise.mean(dim=1, keepdim=True),
}


def noise_of_votes(
    folder: Path, patch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor], *more: Settings
) -> Finding:
    """What an audit says of a run whose dealer changes its noise."""
    patch.setattr(DealerMachine, "noised", of_noise(change))
    without: Settings = {"train": {"epochs": 2}, "privacy": {"canaries": 0}}
    with noise_from(KEY):
        train(job_in(folder / "data", without, *more, names="ABC"), folder / "run", record_views=True)
    result = audit(folder / "run", AuditPlan((SERVER,), ("noise-level",)))
    (found,) = result.findings
    assert isinstance(found, Finding)
    assert result.failed == ((found,) if p_value(found) < 1e-6 else ())
    return found


def p_value(found: Finding) -> float:
    assert found.value is not None
    return found.value.low


def share(found: Finding) -> float:
    """Of the noise, that is there."""
    return float(found.note.split()[3])


LITTLE: Settings = {"privacy": {"epsilon_total": 4.0}}
HONEST: dict[str, tuple[Settings, ...]] = {
    "noise": (),
    "little noise": (LITTLE,),
    "among canaries": (LITTLE, {"privacy": {"canaries": 60}}),
    "edges that go one way": (LITTLE, {"model": {"directed": True}}),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", HONEST)
def test_all_of_the_noise_is_found_to_be_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "one way" in name:
        given = graphs_of

        def one_way(names: str) -> list[PartyGraph]:
            return [graph.with_edges(graph.edge_index[0] < graph.edge_index[1]) for graph in given(names)]

        monkeypatch.setitem(globals(), "graphs_of", one_way)
    found = noise_of_votes(tmp_path, monkeypatch, lambda noise: noise, *HONEST[name])
    assert p_value(found) > 0.05
    assert 0.85 < share(found) < 1, "the least of all estimates is below all of it"


@pytest.mark.cases(1)
@pytest.mark.parametrize("lost", ["file", "share"])
def test_votes_whose_shares_are_not_all_here_are_said_to_be_untested(lost: str, tmp_path: Path) -> None:
    train(job_in(tmp_path / "data", {"train": {"epochs": 2}}), tmp_path / "run", record_views=True)
    path = RunDirectory.open(tmp_path / "run").party("B").model_path
    if lost == "file":
        path.unlink()
    else:
        tensors, facts = load_tensors(path)
        save_tensors(path, {name: tensor for name, tensor in tensors.items() if "votes" not in name}, facts)
    result = audit(tmp_path / "run", AuditPlan((SERVER,), ("noise-level",)))
    assert not result.findings
    named = str(path) if lost == "file" else "B"
    assert [named in each.why for each in result.skipped if each.attack == "noise-level"] == [True]


SOON = ("half", "of all classes, on one", "that adds up to nothing", "of a node's classes, the same")


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", [name if name in SOON else pytest.param(name, marks=nightly) for name in FAULTS])
def test_too_little_noise_on_votes_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four fifths where noise is large: of small whole numbers these are the same ones."""
    much: Settings = {"privacy": {"epsilon_total": 0.2}}
    more = (much,) if name == "four fifths" else ()
    assert p_value(noise_of_votes(tmp_path, monkeypatch, FAULTS[name], *more)) < 1e-6


def test_the_label_holder_alone_or_with_others_is_the_adversary(tmp_path: Path) -> None:
    with noise_from(KEY):
        few: Settings = {"train": {"epochs": 2}, "privacy": {"canaries": 60}}
        job = job_in(tmp_path / "data", few, MARGINS, names="ABC")
        train(job, tmp_path / "run", record_views=True)
    result = audit(tmp_path / "run", AuditPlan(("A", "B", "A+B", SERVER), ("epsilon",)))
    assert {(each.adversary, each.target) for each in result.findings} == {("A", "B"), ("A", "C"), ("A+B", "C")}
    assert not result.failed
    kept = {name for name in "ABC" if (found := RunDirectory.open(tmp_path / "run").party(name).canaries())}
    assert kept == set("ABC"), "all keep each other's apart"
    assert found


@nightly
def test_without_canaries_it_says_so(tmp_path: Path) -> None:
    result = audited(tmp_path, {"train": {"epochs": 2}, "privacy": {"canaries": 0}})
    assert not result.findings
    assert any("privacy.canaries" in each.why for each in result.skipped)


def inserted(folder: Path, party: str, *, sparse: bool = False) -> tuple[VoteCanaries, PartyGraph, PartyGraph]:
    settings = job_in(folder, {"privacy": {"canaries": 30}}, names="ABC")
    graph = load_party(folder / f"{party}.safetensors")
    canaries = VoteCanaries.of(settings, party, NODES, KEY)
    return canaries, graph, canaries.into(graph)


def test_a_first_end_has_nothing_and_the_other_end_a_node_of_elsewhere_at_every_holder(tmp_path: Path) -> None:
    copied = {}
    for party in "ABC":
        canaries, graph, there = inserted(tmp_path / party, party)
        there.validate()
        features, before = there.features.to_dense(), graph.features.to_dense()
        assert canaries.owners == ("B", "C")
        for owner in canaries.owners:
            first, other = canaries.places(owner).T
            assert not features[first].any()
            copied[party, owner] = [
                set((before == row).all(1).nonzero().flatten().tolist()) - set(canaries.everywhere.tolist())
                for row in features[other]
            ]
        edges = {frozenset(pair) for pair in there.edge_index.T.tolist()}
        touched = {pair for pair in edges if pair & set(canaries.everywhere.tolist())}
        own = [] if party == "A" else canaries.places(party)[canaries.coins].tolist()
        assert touched == {frozenset(pair) for pair in own}
        rest = np.setdiff1d(np.arange(NODES), canaries.everywhere.numpy())
        assert torch.equal(features[rest], before[rest])
    for owner in "BC":
        alike = [set.intersection(*each) for each in zip(*(copied[party, owner] for party in "ABC"), strict=True)]
        assert all(alike), "the row of one node, side by side"


@pytest.mark.parametrize("sparse", [False, True])
def test_sparse_rows_are_copied_as_dense_ones_are(sparse: bool, tmp_path: Path) -> None:
    canaries, graph, there = inserted(tmp_path / "data", "B")
    layout = graph.features.to_dense()
    given = PartyGraph("B", layout.to_sparse_csr() if sparse else layout, graph.edge_index)
    assert torch.equal(canaries.into(given).features.to_dense(), there.features.to_dense())


def test_scores_of_classes_and_of_probabilities() -> None:
    places = torch.tensor([[0, 4], [1, 4], [2, 4], [3, 5]])
    classes = torch.eye(3)[torch.tensor([1, 0, 2, 0, 1, 0])]
    assert vote_scores(classes, places, classes=True).tolist() == [3, 0, 1, 2]
    softened = classes * 0.8 + 0.2 / 3
    scores = vote_scores(softened, places, classes=False)
    assert scores[0] > 0 > max(scores[1], scores[2])
    assert scores[3] == pytest.approx(scores[0])
    with refused(DataError, key="output", value="classes"):
        vote_scores(classes[:2], torch.tensor([[0, 1], [0, 1]]), classes=True)


def test_so_many_that_no_node_is_left_to_copy_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, key="privacy.canaries", value=NODES // 2):
        audited(tmp_path, {"privacy": {"canaries": NODES // 2}})
