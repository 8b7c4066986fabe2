"""Leaks planted in sealed jobs: the audit finds each of them, and has nothing to say of the same run without it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.audit.runs import VERDICTS
from tests.mpc.sealed.faults import (
    Forms,
    Patch,
    compared,
    cuts_alike,
    left_out,
    pair_unmasked,
    repeated,
    unshuffled,
    weights_unmasked,
)
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import saved, small_graphs, small_job
from tests.paradigms.sealed.two_sessions import cut_and_resumed, draws_of_the_place
from tests.roles.federation import Settings, merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.errors import RangeOverflow
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast
from veilgraph.mpc.sealed import hidden_graph, machine
from veilgraph.mpc.sealed.linked import DealerMachine
from veilgraph.mpc.sealed.row_keys import expand_rows
from veilgraph.mpc.sealed.wire import Wire
from veilgraph.paradigms.sealed import roles
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.privacy.publisher import CountPublisher
from veilgraph.runtime.launch.jobs import predict, train

N, TRAINING, HIDDEN = 60, 20, 6
MLP: Settings = {"model": {"hidden": HIDDEN, "blocks": ["pooled.1"]}, "train": {"epochs": 3}}
EACH: Settings = {"model": {"blocks": ["each.2"], "directed": True}, "train": {"epochs": 2}}
WEIGHTED: Settings = {
    "model": {"network": "linear", "blocks": ["pooled.1"], "edge_weights": True},
    "train": {"epochs": 1, "batch_size": 8},
}
JUDGED: Settings = {
    "model": {"network": "linear", "blocks": ["pooled.1"]},
    "train": {"select_by": "accuracy", "epochs": 4, "evaluate_every": 1},
}
VOTES = merge(voting(epsilon_total=4), {"model": {"blocks": ["pooled.1"]}, "train": {"epochs": 2}})
JOBS: Mapping[str, tuple[int, Settings, Mapping[str, bool]]] = {
    "mlp": (2, MLP, {}),
    "each": (2, EACH, {"directed": True}),
    "weighted": (2, WEIGHTED, {"weighted": True}),
    "votes": (2, VOTES, {}),
    "three": (3, {**MLP, "train": {"epochs": 1, "select_by": "accuracy"}}, {}),
    "judged": (3, JUDGED, {}),
    "dealt by C": (3, {**EACH, "train": {"epochs": 3}, "trust": "majority"}, {"directed": True}),
}


def is_put(forms: Forms) -> bool:
    return [(shape[0], len(shape), dtype) for shape, dtype in forms] == [(N, 2, torch.int64)]


def is_rows(forms: Forms) -> bool:
    return [(len(shape), shape[0] > N, dtype) for shape, dtype in forms] == [(2, True, torch.int32)]


def is_orders(forms: Forms) -> bool:
    return [(len(shape), shape[0] > N, dtype) for shape, dtype in forms] == [(1, True, torch.int64)]


def is_step(forms: Forms) -> bool:
    return bool(forms) and forms[-1][0] == (TRAINING, HIDDEN)


def is_gate(forms: Forms) -> bool:
    return list(forms) == [((TRAINING, HIDDEN), torch.int64)]


def is_output(forms: Forms) -> bool:
    """Of the larger logits and their classes, side by side."""
    return bool(forms) and forms[-1][0] == (2, N, 1)


def rows_unmasked(patch: Patch) -> None:
    """Rows of a hop have a mask that is drawn, and one that is expanded from their keys."""
    left_out(is_rows)(patch)
    patch.setattr(hidden_graph, "expand_rows", lambda keys, _, like: like.new_zeros((len(keys), like.shape[1])))


def hops_alike(patch: Patch) -> None:
    """Both masks are the same in every hop."""
    repeated(is_rows)(patch)
    patch.setattr(hidden_graph, "expand_rows", lambda keys, _, like: expand_rows(keys, 0, like))


def told_otherwise(patch: Patch) -> None:
    """What should be the same for all is one more for the next of them."""

    def otherwise(link: Any, others: list[PartyId], tag: Any, tensor: Tensor) -> None:
        for place, other in enumerate(others):
            broadcast(link, [other], tag, tensor + place * (tag.kind is Kind.MASKED_WIRE))

    patch.setattr(machine, "broadcast", otherwise)


def dealer_told(patch: Patch) -> None:
    """With a checkpoint a holder says how many edges it has."""

    def told(self: roles.SealedHolder, epoch: int | None) -> None:
        if epoch is not None and self.follows_checkpoint(epoch):
            edges = torch.full((1,), self.graph.num_edges % 251, dtype=torch.uint8)
            self.session.link.send(SERVER, Tag(Kind.READY, epoch, 1), edges)

    patch.setattr(roles.SealedHolder, "catch_up", told)


def dealing_holder_told(patch: Patch) -> None:
    """The same, to all who hear of a checkpoint."""
    tell = roles.SealedRole.tell_checkpoint

    def told(self: roles.SealedRole, epoch: int | None, others: Sequence[PartyId]) -> None:
        tell(self, epoch, ())
        if epoch is not None and self.follows_checkpoint(epoch):
            edges = self.graph.num_edges % 251 if isinstance(self, roles.SealedHolder) else 1
            broadcast(self.session.link, sorted(others), Tag(Kind.READY, epoch, 1), torch.tensor([edges]).byte())

    patch.setattr(roles.SealedRole, "tell_checkpoint", told)


def seeds_again(patch: Patch) -> None:
    """Every session of the dealer has the seeds of the first."""
    init = DealerMachine.__init__

    def same(self: DealerMachine, link: Link, holders: Sequence[PartyId], secrets: object) -> None:
        numbers = iter(range(99))
        init(self, link, holders, lambda size: bytes([next(numbers)]) * size)

    patch.setattr(DealerMachine, "__init__", same)


def nothing_paid(patch: Patch) -> None:
    """Holders open what has noise in it, and their ledgers say nothing of it."""
    patch.setattr(CountPublisher, "pay", lambda self, content: None)


@dataclass(frozen=True)
class Leak:
    """One of them.

    Attributes:
        job: that it is planted in.
        plant: does it.
        adversary: who finds it.
        found_by: the attack that the audit fails by.
        evidence: a part of its words.
        predicts: whether the run predicts once more.
        resumes: whether it is cut and resumed.
    """

    job: str
    plant: Callable[[Patch], None]
    adversary: str
    evidence: str
    found_by: str = "uniformity"
    predicts: bool = False
    resumes: bool = False


LEAKS: Mapping[str, Leak] = {
    "what is put in has no mask": Leak("mlp", left_out(is_put), "B", "secrets"),
    "and attacks find what it is": Leak("mlp", left_out(is_put), "B", "what A puts in", "attribute"),
    "steps open under the same masks": Leak("mlp", repeated(is_step), "A", "secrets"),
    "comparisons open without masks": Leak("mlp", compared((TRAINING, HIDDEN)), "B", "bits"),
    "the output's mask is known": Leak("mlp", left_out(is_output), "A", "shares of the mask"),
    "rows of a hop have no masks": Leak("mlp", rows_unmasked, "A", "shares of masks under"),
    "hops have the same masks": Leak("each", hops_alike, "A", "shares of masks under"),
    "edge weights have no mask": Leak("weighted", weights_unmasked, "B", "edge weights"),
    "edges have no random order": Leak("mlp", left_out(is_orders), "A", "orders", "orders"),
    "two graphs have the same random orders": Leak("each", repeated(is_orders), "A", "orders", "orders"),
    "training rows are picked in the clear": Leak("each", unshuffled(N), "B", "orders", "orders"),
    "what is dealt is not hidden": Leak("mlp", left_out(is_gate), "B", "what the dealer corrects"),
    "the dealer is told": Leak("mlp", dealer_told, SERVER, "messages from", "one-byte"),
    "two sessions cut alike": Leak("three", cuts_alike, "A", "what all holders open", predicts=True),
    "a resumed session cuts as the place says": Leak(
        "judged", draws_of_the_place, "B", "what all holders open", resumes=True
    ),
    "two sessions have the same seeds": Leak("mlp", seeds_again, "B", "secrets", predicts=True),
    "noise is not paid for": Leak("votes", nothing_paid, "A", "ledger", "paid"),
    "two are not told the same": Leak("three", told_otherwise, "A+B", "secrets"),
    "of three one has no mask": Leak("three", left_out(is_put), "A+B", "secrets"),
    "a holder that deals is told": Leak("dealt by C", dealing_holder_told, "C", "messages from", "one-byte"),
    "what a holder deals is not hidden": Leak("dealt by C", left_out(is_gate), "B", "what the dealer corrects"),
    "two others open steps under the same masks": Leak(
        "dealt by C", repeated(is_step), "A", "what all holders open under masks, added up"
    ),
    "a holder that deals puts in without a mask": Leak("dealt by C", left_out(is_put), "B", "secrets"),
    "and is sent rows without one": Leak("dealt by C", pair_unmasked, "C", "masked values"),
    "and its edges have no random order": Leak("dealt by C", left_out(is_orders), "B", "orders", "orders"),
}
SLOW = (
    "steps open under the same masks",
    "comparisons open without masks",
    "the output's mask is known",
    "edge weights have no mask",
    "two are not told the same",
    "hops have the same masks",
    "edges have no random order",
    "what is dealt is not hidden",
    "two sessions have the same seeds",
    "of three one has no mask",
)


def made(leak: Leak, folder: Path) -> Path:
    holders, changes, kind = JOBS[leak.job]
    graphs = small_graphs(holders, nodes=N, training=TRAINING, **kind)
    job = saved(folder / "data", small_job(holders, changes), graphs)
    if leak.resumes:
        return cut_and_resumed(job, folder / "run")
    train(job, folder / "run", record_views=True)
    if leak.predicts:
        predict(folder / "run")
    return folder / "run"


def audited(run: Path, *adversaries: str, attacks: Sequence[str] = VERDICTS) -> AuditResult:
    return audit(run, AuditPlan(adversaries=adversaries, attacks=tuple(attacks)))


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", [pytest.param(name, marks=nightly) if name in SLOW else name for name in LEAKS])
def test_a_planted_leak_fails_the_audit(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    leak, check = LEAKS[name], SealedProgram.check_range

    def lenient(program: SealedProgram, outside: Wire) -> None:
        with suppress(RangeOverflow):  # a plant that spoils all numbers is audited all the same
            check(program, outside)

    monkeypatch.setattr(SealedProgram, "check_range", lenient)
    leak.plant(monkeypatch)
    failed = audited(made(leak, tmp_path), leak.adversary, attacks=[leak.found_by]).failed
    assert (leak.found_by, True) in {(each.attack, leak.evidence in each.evidence) for each in failed}, failed


OF_A_DAY = ("mlp", "dealt by C")


@pytest.mark.cases(3)
@pytest.mark.parametrize("job", [job if job in OF_A_DAY else pytest.param(job, marks=nightly) for job in JOBS])
def test_without_a_leak_all_that_is_claimed_is_tested_and_holds(job: str, tmp_path: Path) -> None:
    honest = Leak(job, print, "", "", predicts=job == "mlp", resumes=job == "judged")
    asked = [SERVER, *"ABC"[: JOBS[job][0]], *(["A+B", "B+C"] if job == "three" else [])]
    result = audited(made(honest, tmp_path), *asked)
    assert (result.failed, result.untested) == ((), ())
    listed = [each.attack for each in result.skipped if each.adversary == "A" and "sealed-scores" in each.attack]
    assert len(listed) == (job in ("three", "judged"))
    for leak in LEAKS.values():
        if leak.job == job and leak.found_by in VERDICTS:
            tested = {(each.adversary, each.attack, leak.evidence in each.evidence) for each in result.findings}
            assert (leak.adversary, leak.found_by, True) in tested


def test_the_dealer_and_a_holder_together_are_not_said_to_find_nothing(tmp_path: Path) -> None:
    run = made(Leak("weighted", print, "", ""), tmp_path)
    result = audited(run, "server+B", attacks=["uniformity"])
    assert ("know every mask" in result.skipped[0].why, result.skipped[0].limited, result.findings) == (True, False, ())
    limited = audit(run, AuditPlan(("server+B",), limits={"link-similarity": 0.9}))
    assert [each.attack for each in limited.untested] == ["any attack", "link-similarity"]


def test_of_a_holder_that_deals_it_is_said_with_whom_it_reads_and_the_server_finds_nothing(tmp_path: Path) -> None:
    run = made(Leak("dealt by C", print, "", ""), tmp_path)
    for together in ("B+C", "A+B"):
        result = audited(run, together, attacks=["uniformity"])
        assert ("know every mask" in result.skipped[0].why, result.findings) == (True, ())
    result = audited(run, "server+B", attacks=["uniformity"])
    assert (result.failed, result.untested) == ((), ())
    assert result.findings
