"""What another bank, which has all messages of one job or of two, finds out of a label, and of who is trained on.

Customers draw apart, so each of a bank's accounts is a trial. The bank at the other end knows everything else.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.symbols.exchange import NONE
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests.mpc.sessions import fixed_secrets
from tests.paradigms.averaging.symbol_jobs import ALL, session, symbol_job, symbols_sent
from tests.paradigms.union.banks import Banks
from tests.roles.federation import Settings
from veilgraph.core.types import Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Account, Budget, Lifetime
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import LifetimeCache
from veilgraph.protocol.releases import labels_perturbed

ACCOUNTS, EDGES, EPSILON, SURE, JOBS = 3000, 3, 1.0, 0.99, 41
World = tuple[int | None, ...]
"""The label of each account in the first job, in the second, …; None: it is not trained on."""


def job_of(answers: str, epsilon: float = EPSILON) -> AveragingJob:
    changes: list[Settings] = [{"label_privacy": {"epsilon": epsilon}}, *([ALL] if answers == "all" else [])]
    return symbol_job(*changes, holders=("A", "B"))


def graph_of(party: str, labels: Tensor, trained: Tensor, edges: Tensor, others: int) -> PartyGraph:
    nowhere = torch.zeros(others, dtype=torch.bool)
    masks = (trained, ~trained, torch.zeros_like(trained))
    return PartyGraph(
        party,
        torch.zeros(len(labels) + others, 1),
        edges,
        labels=torch.cat([labels, torch.full((others,), -1)]),
        num_classes=2,
        num_common=len(labels),
        **{
            f"{name}_mask": torch.cat([mask, nowhere])
            for name, mask in zip(("train", "val", "test"), masks, strict=True)
        },  # type: ignore[arg-type]
    )


def banks_of(label: int | None) -> Banks:
    """A, whose accounts have a label or are not trained on, but for one of each kind; B has three payees of each."""
    labels, trained = torch.full((ACCOUNTS + 2,), label or 0), torch.full((ACCOUNTS + 2,), label is not None)
    trained[-2], trained[-1] = True, False
    payees = EDGES * ACCOUNTS
    own, far = torch.arange(ACCOUNTS).repeat_interleave(EDGES), torch.arange(payees)
    first = graph_of("A", labels, trained, torch.stack([own, len(labels) + far]), payees)
    half = torch.arange(payees) % 2
    second = graph_of("B", half, half < 1, torch.stack([payees + own, far]), ACCOUNTS)
    names = [[f"{row}" for row in range(count)] for count in (len(labels), payees)]
    ids = {
        "A": [*names[0], *(f"B/{name}" for name in names[1])],
        "B": [*names[1], *(f"A/{name}" for name in names[0][:ACCOUNTS])],
    }
    return [first, second], ids


def door(job: AveragingJob, found: Banks, seed: object, lifetime: Lifetime | None, snapshot: str) -> LabelPublisher:
    """A's publisher, with what it kept for life; without a ledger it draws anew."""
    graph, names = found[0][0].common_part(), found[1]["A"]
    nodes, labels = labels_perturbed(job, graph)
    assert job.label_privacy is not None
    response, others, source = LabelResponse(job.label_privacy.epsilon, 2), job.noise.others_label, fixed_secrets(seed)
    if lifetime is None:
        return LabelPublisher(response, labels, None, source, None, others)
    ids = [names[node] for node in nodes.tolist()]
    account = Account(lifetime, lifetime.keys(ids), None, "ab" * 32, "job")
    kept = LifetimeCache(account, lifetime.each_key(ids), snapshot=snapshot)
    return LabelPublisher(response, labels, None, source, kept, others)


def told(job: AveragingJob, label: int | None, publisher: LabelPublisher) -> Tensor:
    """What B reads of each of A's accounts in all that A sends: uint8 [ACCOUNTS], the same at each of its edges."""
    found = banks_of(label)
    counts, messages = session(job, found, {"A": publisher})
    assert {one.tag.kind for one in messages if one.sender == "A"} == {
        Kind.HELLO,
        Kind.NODE_LIST,
        Kind.PERTURBED_LABELS,
    }
    each = counts["B"].reshape(ACCOUNTS, EDGES, 2)
    assert bool((each == each[:, :1]).all())
    read = torch.where(each[:, 0].sum(1) > 0, each[:, 0].argmax(1), NONE).to(torch.uint8)
    assert torch.equal(symbols_sent(messages, "A", "B").bincount(minlength=256), EDGES * read.bincount(minlength=256))
    return read


@cache
def history(answers: str, world: World, snapshots: tuple[str, ...]) -> Tensor:
    """What B reads in jobs one after another: uint8 [jobs, ACCOUNTS]."""
    job, found = job_of(answers), list[Tensor]()
    with TemporaryDirectory() as folder:
        lifetime = Lifetime(Path(folder) / "ledger", "A", Budget(1000.0, 1e-5), Marks(Path(folder) / "marks"))
        for number, (label, snapshot) in enumerate(zip(world, snapshots, strict=True)):
            publisher = door(job, banks_of(label), (answers, world, number), lifetime, snapshot)
            found.append(told(job, label, publisher))
    return torch.stack(found)


def proven(here: Tensor, gone: Tensor) -> float:
    """The ε that the test of the most telling outcomes proves, of what was read in two worlds."""
    hits, alarms = (int((read == 1).all(0).sum()) for read in (here, gone))
    return epsilon_lower_bound(hits, alarms, ACCOUNTS, 0.0, SURE)


@pytest.mark.parametrize(
    ("answers", "world", "other"),
    [("trained", (1,), (0,)), ("all", (1,), (0,)), ("all", (1,), (None,))],
    ids=["a label", "a label, where all answer", "being trained on"],
)
def test_one_job_proves_less_than_its_epsilon_and_more_than_half(answers: str, world: World, other: World) -> None:
    found = proven(history(answers, world, ("",)), history(answers, other, ("",)))
    assert EPSILON / 2 < found < EPSILON


@pytest.mark.parametrize(("answers", "world", "other"), [("trained", (1, 1), (0, 0)), ("all", (1, 1), (None, None))])
def test_a_second_job_tells_nothing_more(answers: str, world: World, other: World) -> None:
    here, gone = (history(answers, each, ("", "")) for each in (world, other))
    assert torch.equal(here[0], here[1])
    assert EPSILON / 2 < proven(here, gone) < EPSILON


@pytest.mark.parametrize("answers", ["trained", "all"])
def test_a_second_snapshot_costs_its_epsilon_again_and_no_more(answers: str) -> None:
    here, gone = (history(answers, each, ("", "later")) for each in ((1, 1), (0, 0)))
    assert not torch.equal(here[0], here[1])
    assert EPSILON < proven(here, gone) < 2 * EPSILON


@pytest.mark.parametrize(
    "changed", [(0, 1), (None, 1)], ids=["a label that changed", "an account that is trained on later"]
)
def test_a_change_between_two_jobs_does_not_show(changed: World) -> None:
    """Of the same snapshot; else bytes that differ would name whoever changed."""
    read = history("all", changed, ("", ""))
    assert torch.equal(read[0], read[1])


def test_fresh_draws_average_out_and_kept_draws_do_not(tmp_path: Path) -> None:
    """The attack: the majority of what was read in many jobs."""
    job, truth = job_of("trained"), banks_of(1)
    lifetime = Lifetime(tmp_path / "ledger", "A", Budget(1000.0, 1e-5), Marks(tmp_path / "marks"))

    def right(kept: Lifetime | None) -> float:
        reads = [door(job, truth, number, kept, "").perturbed() for number in range(JOBS)]
        return float((torch.stack(reads).double().mean(0) > 0.5).double().mean())

    bound = LabelResponse(EPSILON, 2).keep_probability
    assert right(None) > 0.99
    assert right(lifetime) == pytest.approx(bound, abs=0.04)


def test_who_is_trained_on_shows_with_trained_alone() -> None:
    """The leak that a job names: exact there, and within ε where all answer."""
    assert bool((history("trained", (None,), ("",)) == NONE).all())
    assert not bool((history("trained", (1,), ("",)) == NONE).any())
    assert not bool((history("all", (None,), ("",)) == NONE).any())


def test_nothing_else_that_is_sent_hangs_on_labels_or_on_who_is_trained_on() -> None:
    """With the same randomness all other messages are the same to the bit."""
    job, sent = job_of("all"), list[list[tuple[object, bytes]]]()
    for label in (1, 0, None):
        found = banks_of(label)
        _, messages = session(job, found, {"A": door(job, found, label, None, "")})
        mine = [one for one in messages if one.sender == "A" and one.tag.kind is not Kind.PERTURBED_LABELS]
        sent.append(sorted((str(one.tag), one.tensor.numpy().tobytes()) for one in mine))
    assert sent[0] == sent[1] == sent[2]
