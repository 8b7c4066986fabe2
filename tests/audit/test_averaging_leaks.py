"""Leaks planted in averaging jobs: the audit finds each of them, and has nothing to say of the same run without it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_averaging import audit_sums as averaging_sums
from veilgraph_averaging.aggregation import keys, rounds, shamir
from veilgraph_averaging.aggregation.keys import Round, Sealing
from veilgraph_averaging.audit import SOURCE as AVERAGING
from veilgraph_averaging.audit import updates_of_sums, updates_of_weights
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.training import EXTRA, UPDATE_BITS

from tests import nightly
from tests.audit.runs import VERDICTS
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.mpc.aggregation.rounds import GivesUp
from tests.paradigms.averaging.jobs import Dropped, graphs
from tests.paradigms.averaging.jobs import job as small_job
from tests.paradigms.averaging.own_graphs import graphs_for, task_job
from tests.roles.federation import Settings
from veilgraph.audit.attack import load_view
from veilgraph.audit.audit import AuditPlan, audit, evidence_for
from veilgraph.audit.finding import AuditResult
from veilgraph.core.errors import DataError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Kind, Link, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.factory import MemoryHub
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.runtime.store.run_directory import RunDirectory

Patch = pytest.MonkeyPatch
Change = Callable[[Tensor, tuple[PartyId, ...]], Tensor]
NAMES = "ABC"
EVERYWHERE = (keys, rounds, averaging_sums)
"""The modules that make masks; an audit by the same program makes them as wrongly."""


def small(holders: int = 3, *changes: Settings) -> AveragingJob:
    base: Settings = {
        "precision": "float32",
        "data": {"holders": holders},
        "model": {"dim": 8, "dropout": 0.0},
        "train": {"epochs": 2},
    }
    return small_job(base, *changes)


# The leaks


def pairwise(change: Change) -> Callable[[Patch], None]:
    """Holders and the server have other pairwise masks, alike."""

    def plant(patch: Patch) -> None:
        made = keys.pairwise_mask

        def mask(round_: Round, one: PartyId, private: object, peer: PartyId, *rest: object) -> Tensor:
            return change(made(round_, one, private, peer, *rest), (one, peer))  # type: ignore[arg-type]

        patch.setattr(rounds, "pairwise_mask", mask)

    return plant


def own(change: Callable[[Tensor], Tensor], modules: Iterable[object] = EVERYWHERE) -> Callable[[Patch], None]:
    """All have other own masks, alike."""

    def plant(patch: Patch) -> None:
        made = keys.own_mask
        for module in modules:
            patch.setattr(module, "own_mask", lambda round_, seed, size: change(made(round_, seed, size)))

    return plant


def first_again() -> Callable[[Tensor, tuple[PartyId, ...]], Tensor]:
    """What a pair had the first time, of each size."""
    kept: dict[object, Tensor] = {}
    return lambda mask, pair: kept.setdefault((pair, len(mask)), mask).clone()


def secrets_of(patch: Patch, party: PartyId) -> set[int]:
    """Filled with what a holder draws: the keys of its masks and the seeds of its own."""
    found, begin = set[int](), rounds.HolderRound.__init__

    def begins(self: rounds.HolderRound, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        if self._party == party:
            found.update((self._secrets.own_mask, self._secrets.mask_key))

    patch.setattr(rounds.HolderRound, "__init__", begins)
    return found


def own_of_one(patch: Patch) -> None:
    """C has no own mask, and the server takes none off."""
    known, made = secrets_of(patch, "C"), keys.own_mask
    patch.setattr(rounds, "own_mask", lambda round_, seed, size: made(round_, seed, size) * (seed not in known))


def not_sealed(patch: Patch) -> None:
    """What B seals is as it is."""
    seal, open_ = Sealing.seal, Sealing.open

    def sealed(self: Sealing, to: PartyId, public: bytes, content: bytes) -> bytes:
        return content + bytes(16) if self._own == "B" else seal(self, to, public, content)

    def opened(self: Sealing, sender: PartyId, public: bytes, content: bytes) -> bytes:
        return content[:-16] if sender == "B" else open_(self, sender, public, content)

    patch.setattr(Sealing, "seal", sealed)
    patch.setattr(Sealing, "open", opened)


def secrets_for_shares(patch: Patch) -> None:
    """B's polynomials are of degree 0: everybody has its secrets."""
    known, split = secrets_of(patch, "B"), shamir.split

    def all_of_it(secret: int, threshold: int, count: int, source: SecretSource) -> list[int]:
        return [secret] * count if secret in known else split(secret, threshold, count, source)

    patch.setattr(shamir, "split", all_of_it)


def nothing(patch: Patch) -> None:
    pairwise(lambda mask, pair: torch.zeros_like(mask))(patch)
    own(torch.zeros_like)(patch)


def halved(graph: PartyGraph) -> PartyGraph:
    """Half of the nodes are trained on."""
    place = torch.arange(graph.num_nodes) % 4
    return replace(graph, train_mask=place < 2, val_mask=place == 2, test_mask=place == 3)


@dataclass(frozen=True)
class Leak:
    """One of them.

    Attributes:
        plant: does it.
        adversary: who finds it.
        evidence: a part of its words.
        late: whose values come too late in the first sum of weights.
    """

    plant: Callable[[Patch], None]
    adversary: str
    evidence: str
    late: str = ""


LEAKS: Mapping[str, Leak] = {
    "no masks at all": Leak(nothing, SERVER, "values under masks from A"),
    "pairwise masks are zero": Leak(pairwise(lambda mask, pair: torch.zeros_like(mask)), SERVER, "without its own"),
    "pairwise masks come again": Leak(pairwise(first_again()), SERVER, "without its own"),
    "pairwise masks are of 32 bits": Leak(pairwise(lambda mask, pair: mask >> 32), SERVER, "without its own"),
    "two have no mask between them": Leak(
        pairwise(lambda mask, pair: mask * (set(pair) != {"A", "B"})), "server+C", "with C and its own"
    ),
    "own masks are zero": Leak(own(torch.zeros_like), SERVER, "sums with no own mask but"),
    "own masks are zero, which the audit does not know": Leak(
        own(torch.zeros_like, (rounds,)), SERVER, "all own masks"
    ),
    "one has no own mask": Leak(own_of_one, SERVER, "sums with no own mask but C's"),
    "one has no own mask, and the others know theirs": Leak(own_of_one, "server+A+B", "from C, without those with A+B"),
    "one has no own mask, and its values come too late": Leak(own_of_one, SERVER, "from C that came too late", "C"),
    "shares are not sealed": Leak(not_sealed, SERVER, "shares that B sealed"),
    "shares are the secret": Leak(secrets_for_shares, "A+C", "shares that B gave it"),
}
SLOW = (
    "shares are not sealed",  # of so few words the audit finds it in most runs, not in all
    "pairwise masks are of 32 bits",
    "own masks are zero, which the audit does not know",
    "one has no own mask, and the others know theirs",
    "no masks at all",
)


def made(folder: Path, settings: AveragingJob, late: str = "") -> Path:
    """A run on graphs of one's own, with half of their nodes to train on, so that there are members to tell."""
    own_graphs = [halved(graph) for graph in graphs(settings)]
    ids = {graph.party: [str(row) for row in range(graph.num_nodes)] for graph in own_graphs}
    link = MemoryHub.link
    dropped: Dropped = {late: {1: 3}} if late else {}
    if late:
        settings = small(len(NAMES), {"averaging": {"threshold": 2}})

    def gives_up(self: MemoryHub, party: PartyId) -> Link:
        return GivesUp(link(self, party), dropped) if party == SERVER else link(self, party)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryHub, "link", gives_up)
        train(settings, folder, parties=own_graphs, ids=ids, record_views=True)
    return folder


def audited(run: Path, *adversaries: str) -> AuditResult:
    return audit(run, AuditPlan(adversaries=adversaries, attacks=VERDICTS))


def coalitions(names: Iterable[PartyId]) -> list[str]:
    """All that leave somebody out."""
    parties = (SERVER, *names)
    some = chain.from_iterable(combinations(parties, count) for count in range(1, len(parties)))
    return ["+".join(each) for each in some if not set(names) <= set(each)]


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", [pytest.param(name, marks=nightly) if name in SLOW else name for name in LEAKS])
def test_a_planted_leak_fails_the_audit(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    leak = LEAKS[name]
    leak.plant(monkeypatch)
    failed = audited(made(tmp_path / "run", small(), leak.late), leak.adversary).failed
    assert any(leak.evidence in each.evidence for each in failed), [each.evidence for each in failed]


@pytest.mark.parametrize("late", ["", pytest.param("C", marks=nightly)])
def test_without_a_leak_all_that_is_claimed_is_tested_and_holds(late: str, tmp_path: Path) -> None:
    asked = coalitions(NAMES) if late else sorted({leak.adversary for leak in LEAKS.values()})
    result = audited(made(tmp_path / "run", small(), late), *asked)
    assert (result.failed, result.untested) == ((), ())
    assert all("shares that" in each.attack for each in result.skipped if each.name == "uniformity")
    tested = {(each.adversary, each.evidence) for each in result.findings}
    for leak in LEAKS.values():
        if leak.late in ("", late) and (not late or leak.adversary == SERVER):
            assert any(who == leak.adversary and leak.evidence in words for who, words in tested), leak


# What opens


def truth(run: RunDirectory, names: Iterable[PartyId], number: int) -> Tensor:
    """What holders noted of a sum of weights: their mean change, by their training nodes."""
    notes = [
        each.tensor().double() * 2.0**-UPDATE_BITS
        for name in names
        for each in load_view(run, name).own
        if (each.tag.kind, each.tag.step) == (Kind.MASKED, number)
    ]
    whole = torch.stack(notes).sum(dim=0)
    return whole[:-EXTRA] / whole[-1].round()


def told(run: RunDirectory, number: int) -> Tensor:
    (found,) = (
        each.tensor()
        for each in load_view(run, "A").messages
        if (each.tag.kind, each.tag.step) == (Kind.AVERAGED, number)
    )
    return found.double()


@pytest.mark.cases(1)
@pytest.mark.parametrize(("holders", "threshold"), [(2, 2), (3, 3), (5, 3)])
def test_an_update_opens_to_as_many_as_the_page_says_and_to_no_fewer(
    holders: int, threshold: int, tmp_path: Path
) -> None:
    settings = small(holders, {"averaging": {"threshold": threshold, "rule": {"server_rate": 0.5}}})
    run = RunDirectory.open(made(tmp_path / "run", settings))
    names, newest = settings.data.names, 2 * settings.train.epochs - 1
    before = told(run, newest - 2)[:-EXTRA]
    server = load_view(run, SERVER).of_training
    for count in range(1, holders):
        friends, outside = names[:count], names[count:]
        views = [load_view(run, name).of_training for name in friends]
        opened = {each.about: each.weights - before for each in updates_of_sums(server, views, outside)}
        alone = count >= threshold or count == holders - 1
        assert set(opened) == ({(name,) for name in outside} if alone else {outside})
        for about, change in opened.items():
            assert torch.allclose(change, truth(run, about, newest), rtol=0, atol=1e-9)
        (found,) = updates_of_weights(views, outside)
        assert found.about == outside
        assert torch.allclose(found.weights - before, truth(run, outside, newest), rtol=0, atol=1e-5)
        words = [each.words for each in evidence_for(run, "+".join([SERVER, *friends])) if not each.permitted]
        assert any(" and its own" in each for each in words) == (not alone)


def test_attacks_have_the_model_that_a_holder_was_told_and_the_one_that_it_works_out(tmp_path: Path) -> None:
    run = made(tmp_path / "run", small(2, {"train": {"epochs": 6, "select_by": "last"}}))
    result = audit(
        run, AuditPlan(("A", "client", SERVER), ("membership-confidence",), limits={"membership-confidence": 0.99})
    )
    found = {(each.adversary, each.target, each.evidence): each.value.value for each in result.findings}
    model = "the averaged weights after the newest round"
    assert (
        found["A", "B", model]
        == found[SERVER, "B", model]
        == pytest.approx(found["client", "B", "predicted probabilities at B"])
    )
    assert ("A", "B", "weights that B alone made in a round, worked out of averaged weights") in found
    assert not [key for key in found if key[0] == key[1]]
    listed = {(each.adversary, each.attack) for each in result.skipped}
    assert {(who, "any attack on score-tallies") for who in ("A", SERVER)} <= listed
    assert ("A", "any attack on single-updates") not in listed


# What is refused, and what is listed


def test_without_views_there_is_one_clear_refusal(tmp_path: Path) -> None:
    train(small(), tmp_path / "run")
    assert "no recorded view of" in one_error(veilgraph("audit", tmp_path / "run"))


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("who", "changes", "why"),
    [
        ("A", {"averaging": {"personal": ["input"]}}, "averaging.personal=input"),
        ("A", {"averaging": {"rule": {"name": "fedadam"}}}, "any attack on single-updates"),
        ("A+B", {"data": {"holders": 3}, "averaging": {"rule": {"name": "fedadam"}}}, "any attack on C: the catalogue"),
    ],
)
def test_what_cannot_be_worked_out_is_listed(who: str, changes: Settings, why: str, tmp_path: Path) -> None:
    result = audit(made(tmp_path / "run", small(2, changes)), AuditPlan((who,), ("membership-confidence",)))
    assert any(why in f"{each.attack}: {each.why}" for each in result.skipped)


def test_shadow_models_are_the_jobs_own_network_trained_as_long() -> None:
    job = small(2, {"model": {"dim": 16}, "averaging": {"local_epochs": 5}})
    graph = halved(graphs(job)[0])
    assert graph.labels is not None
    assert graph.train_mask is not None
    few, many = (AVERAGING.posteriors(job, graph, epochs)[graph.train_mask] for epochs in (1, 30))
    right = graph.labels[graph.train_mask][:, None]
    assert many.gather(1, right).mean() > 0.9 > 0.7 > few.gather(1, right).mean()
    with refused(DataError, key="averaging.task", value="links"):
        AVERAGING.posteriors(task_job("links"), graph, 1)


@pytest.mark.parametrize("task", ["links", *(pytest.param(task, marks=nightly) for task in ("values", "graphs"))])
def test_tasks_without_classes_of_nodes_have_their_masks_tested_and_the_rest_listed(task: str, tmp_path: Path) -> None:
    given = graphs_for(task)
    ids = {graph.party: [str(row) for row in range(graph.num_nodes)] for graph in given}
    settings = task_job(task, {"train": {"epochs": 2}})
    plan = AuditPlan(("A", "server+A", "client"), ("uniformity", "membership-confidence"))
    train(settings, tmp_path / "run", parties=given, ids=ids, record_views=True)
    result = audit(tmp_path / "run", plan)
    assert (result.failed, {each.attack for each in result.findings}) == ((), {"uniformity"})
    listed = "\n".join(f"{each.adversary}: {each.attack}: {each.why}" for each in result.skipped)
    assert "A: any attack on averaged-weights, task-tallies" in listed
    assert "server+A: any attack on B+C+D" in listed
    assert "client: any attack: the predictions are no probabilities of nodes' classes" in listed


@nightly
def test_a_run_of_processes_is_audited_as_one_in_memory(tmp_path: Path) -> None:
    train(small(2), tmp_path / "run", record_views=True, options=RunOptions(processes=True))
    gate = veilgraph(
        "audit", tmp_path / "run", "--attack", "uniformity", "--adversary", "server", "--adversary", "server+A"
    )
    assert gate.exit_code == 0, gate.output
    assert "sums with all own masks" in (tmp_path / "run" / "audit.json").read_text(encoding="utf-8")
