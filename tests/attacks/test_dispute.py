"""Parties that deviate from a sealed training, or lie to the auditor who runs it again: who is named, and who is not.

Without disputes nobody notices most of this: the job ends with other predictions.
"""

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.paradigms.cutting import CutError, cut, cut_at
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.programs import saved, small_graphs, small_job
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError, ProtocolError, RunError, VeilgraphError
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.link.identity import Trust
from veilgraph.link.signed import SIGNATURE_BYTES, Signed, SignedLink, signature_tag
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.sealed.linked import HolderMachine
from veilgraph.mpc.sealed.wire import Bilinear, Summands, Wire
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.protocol.agreement import Point, Start
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.session.dispute import Verdict, dispute
from veilgraph.runtime.session.witness import COMMITTED, Evidence, Recorder
from veilgraph.runtime.store.checkpoints import Checkpoints

JUDGED = {"disputes": True, "train": {"select_by": "accuracy", "evaluate_every": 2}}
JOBS = {
    "two": small_job(2, JUDGED),
    "three": small_job(3, JUDGED),
    "holder deals": small_job(3, JUDGED, {"trust": "majority"}),
    "nobody deals": small_job(2, JUDGED, {"trust": "nobody", "timeout_s": 120, "train": {"epochs": 2}}),
    "checked dealer": small_job(2, {"disputes": True, "dealer_checks": 0.5}),
    "trees, margins": small_job(
        2,
        merge(STANDARD, {"model": {"blocks": ["own", "boosting", "neighbours", "pooled.1"]}}),
        {"disputes": True, "output": "margins", "train": {"learning_rate": 0.125}},
    ),
    "released": small_job(3, {"disputes": True, "release": "holders", "model": {"blocks": ["own", "each.2"]}}),
    "votes": small_job(
        2,
        {
            "disputes": True,
            "privacy": {"unit": "edge", "epsilon_total": 2},
            "model": {"edge_slots": 200, "max_degree": 63},
        },
    ),
}
Found = Mapping[PartyId, Evidence]
Folders = Callable[[str], Path]
"""Name of a job → where one honest session of it was, which the tests share."""
Change = Callable[[PartyId, PartyId, Tag, Tensor], Tensor]
"""(sender, receiver, tag, message) → what is signed and sent in its place."""


def other(tensor: Tensor) -> Tensor:
    """A message that differs in its first entry."""
    changed = tensor.clone().reshape(-1)
    changed[0] = ~changed[0] if tensor.dtype == torch.bool else changed[0] ^ 1
    return changed.reshape(tensor.shape)


@contextmanager
def sending(change: Change | None) -> Iterator[None]:
    """Every message is signed and sent as ``change`` has it."""
    send = SignedLink.send

    def sends(self: SignedLink, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        send(self, to, tag, tensor if change is None else change(self.party, to, tag, tensor))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SignedLink, "send", sends)
        yield


def session(job: SealedJob, folder: Path, change: Change | None = None) -> dict[PartyId, Evidence]:
    """Train, with every message as ``change`` has it, and return what each party has to hand over."""
    with sending(change):
        try:
            train(saved(folder / "data", job, small_graphs(len(job.data.names))), folder / "run")
        except (VeilgraphError, RuntimeError):  # of a party that computed on what is wrong
            assert change is not None
    return evidence(folder / "run")


def evidence(run: Path) -> dict[PartyId, Evidence]:
    return {party: sessions[-1] for party, sessions in all_evidence(run).items()}


def all_evidence(run: Path) -> dict[PartyId, list[Evidence]]:
    read = [Evidence.read(folder / "dispute") for folder in (run / "parties").iterdir()]
    return {sessions[0].party: sessions for sessions in read}


def judged(found: Found) -> Verdict:
    return dispute([[each] for each in found.values()], Trust())


@pytest.fixture(scope="module")
def honest_folder(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    @cache
    def folder(name: str) -> Path:
        found = tmp_path_factory.mktemp("honest")
        session(JOBS[name], found)
        return found

    return folder


@pytest.fixture(params=JOBS)
def honest(request: pytest.FixtureRequest, honest_folder: Folders) -> dict[PartyId, Evidence]:
    return evidence(honest_folder(request.param) / "run")


@pytest.fixture
def two(honest_folder: Folders) -> dict[PartyId, Evidence]:
    return evidence(honest_folder("two") / "run")


@pytest.fixture(scope="module")
def two_again(tmp_path_factory: pytest.TempPathFactory) -> dict[PartyId, Evidence]:
    """Of another session of the same job."""
    return session(JOBS["two"], tmp_path_factory.mktemp("again"))


def test_nobody_can_test_a_guess_of_what_a_party_put_in(two: Found, two_again: Found) -> None:
    """A commitment is another one in each session, though the same is put in: by the dealer, nothing."""
    key = SERVER, COMMITTED
    assert not two_again[SERVER].put_in
    assert not two[SERVER].put_in
    assert two_again["A"].received[key].digest != two["A"].received[key].digest


def taken(found: Found) -> list[tuple[PartyId, PartyId, Tag]]:
    """Sender, receiver and tag of all messages that were taken."""
    return [(sender, receiver, tag) for receiver, each in found.items() for sender, tag in each.received]


def test_an_honest_session_names_nobody_and_every_message_is_compared(honest: Found) -> None:
    found = judged(honest)
    assert (found.named, found.unjudged, found.stopped, found.unseen) == ({}, {}, {}, {})
    assert found.compared == {party: sum(each[0] == party for each in taken(honest)) for party in honest}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("case", range(6))
def test_whatever_one_party_sends_wrong_it_alone_is_named(
    name: str, case: int, honest_folder: Folders, tmp_path: Path
) -> None:
    chance = random.Random(f"{name} {case}")
    kinds = sorted({(sender, tag.kind) for sender, _, tag in taken(evidence(honest_folder(name) / "run"))})
    liar, kind = chance.choice([each for each in kinds if each[1] != Kind.HELLO])
    nth, seen = chance.choice([0, 0, 1]), list[Tag]()

    def change(sender: PartyId, to: PartyId, tag: Tag, tensor: Tensor) -> Tensor:
        if (sender, tag.kind) != (liar, kind):
            return tensor
        seen.append(tag)
        return other(tensor) if len(seen) == nth + 1 else tensor

    found = session(JOBS[name], tmp_path, change)
    wrong = [(sender, tag) for sender, _, tag in taken(found) if (sender, tag.kind) == (liar, kind)]
    verdict = judged(found)
    assert set(verdict.named) == ({liar} if len(seen) > nth and (liar, seen[nth]) in wrong else set())


def sends_wrong(liar: PartyId, kind: Kind, steps: Callable[[int], bool] = lambda step: step > 2) -> Change:
    """One party sends every message of a kind wrong, from a step on."""

    def change(sender: PartyId, to: PartyId, tag: Tag, tensor: Tensor) -> Tensor:
        return other(tensor) if (sender, tag.kind) == (liar, kind) and steps(tag.step) else tensor

    return change


@pytest.mark.parametrize(
    ("liar", "kind"), [("B", Kind.MASKED_WIRE), (SERVER, Kind.CORRELATION), ("B", Kind.MASK_SHARE)]
)
def test_an_opening_plus_one_a_wrong_triple_and_a_wrong_share(liar: PartyId, kind: Kind, tmp_path: Path) -> None:
    """Who took a wrong message is not judged from then on, and is not named for what follows from it."""
    found = judged(session(JOBS["three"], tmp_path, sends_wrong(liar, kind)))
    assert set(found.named) == {liar}
    assert kind.name.lower() in found.named[liar]
    assert found.unjudged


def test_without_disputes_the_same_deviation_goes_unnoticed(tmp_path: Path) -> None:
    """The job ends, with other predictions, and nothing is left that would say why."""
    job, share = small_job(2, {"train": JUDGED["train"]}), HolderMachine.product

    def plus_one(self: HolderMachine, function: Bilinear, left: Wire, right: Wire) -> Summands:
        found = share(self, function, left, right)
        return replace(found, part=found.part + (1 << found.bits) // 64) if self.party == "B" else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HolderMachine, "product", plus_one)
        run = train(saved(tmp_path / "data", job, small_graphs()), tmp_path / "run")
    assert run.predictions is not None
    assert not list(run.path.rglob("dispute"))


@pytest.mark.parametrize("shown", ["what it committed to", "what it used"])
def test_a_holder_that_swaps_its_table_after_the_commitment(shown: str, tmp_path: Path) -> None:
    """Whichever of the two it hands over."""
    put_in, used = Recorder.put_in, dict[str, Tensor]()

    def swaps(
        self: Recorder, tensors: Mapping[str, Tensor], held: Sequence[Point], start: Start
    ) -> Mapping[str, Tensor]:
        committed = put_in(self, tensors, held, start)
        if "labels" in tensors or not tensors:
            return committed
        used.update({name: part.flip(0) if name == "columns/own" else part for name, part in committed.items()})
        return used

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "put_in", swaps)
        found = session(small_job(2, JUDGED, {"model": {"blocks": ["own", "pooled.2"]}}), tmp_path)
    assert used
    if shown == "what it used":
        found["B"] = replace(found["B"], put_in=used)
    assert set(judged(found).named) == {"B"}


@dataclass
class Lie:
    """What a party hands over in place of its evidence, and who is then named."""

    party: PartyId
    change: Callable[[Evidence], Evidence]
    named: set[PartyId]


def of_server(own: Evidence) -> tuple[tuple[PartyId, Tag], Signed]:
    return next(each for each in own.received.items() if each[0][0] == SERVER and each[0][1].kind is Kind.CORRELATION)


def claims(own: Evidence) -> Evidence:
    """A message that it never got, under the signature of the one that it got."""
    key, message = of_server(own)
    return replace(own, received={**own.received, key: message._replace(digest=bytes(32))})


def moves(own: Evidence) -> Evidence:
    """A message under another tag than it had, to which the sender never sent one."""
    (sender, tag), message = of_server(own)
    return replace(own, received={**own.received, (sender, Tag(tag.kind, tag.step + 1000)): message})


def exchanges(own: Evidence) -> Evidence:
    """Each of the dealer's messages in the place of another one."""
    keys = [key for key in own.received if key[0] == SERVER]
    found = [own.received[key] for key in keys]
    return replace(own, received={**own.received, **dict(zip(keys, found[1:] + found[:1], strict=True))})


def denies(own: Evidence) -> Evidence:
    """It never got a thing."""
    return replace(own, received={})


def another_key(own: Evidence) -> Evidence:
    return replace(own, key=bytes(32))


def another_table(own: Evidence) -> Evidence:
    return replace(own, put_in={name: part.flip(0) for name, part in own.put_in.items()})


def another_shape(own: Evidence) -> Evidence:
    return replace(own, put_in={name: part.unsqueeze(0) for name, part in own.put_in.items()})


def another_graph(own: Evidence) -> Evidence:
    return replace(own, graph_digest=bytes(32))


LIES = {
    "claims": Lie("B", claims, {"B"}),
    "moves": Lie("B", moves, {"B"}),
    "exchanges": Lie("B", exchanges, {"B"}),
    "denies": Lie("B", denies, set()),
    "another key": Lie(SERVER, another_key, {SERVER}),
    "another table": Lie("B", another_table, {"B"}),
    "another shape": Lie("B", another_shape, {"B"}),
    "another graph": Lie("B", another_graph, {"B"}),
}


@pytest.mark.parametrize("name", LIES)
def test_who_lies_to_the_auditor_of_an_honest_session_frames_nobody(name: str, two: Found) -> None:
    lie = LIES[name]
    found = judged({**two, lie.party: lie.change(two[lie.party])})
    assert set(found.named) == lie.named
    if name in ("another table", "another shape", "another graph"):
        assert "another commitment to what it put in" in found.named["B"]


def test_a_party_cannot_deny_what_it_sent_and_who_hides_what_it_took_is_named_itself(tmp_path: Path) -> None:
    wrong = sends_wrong(SERVER, Kind.CORRELATION)

    def to_b(sender: PartyId, to: PartyId, tag: Tag, tensor: Tensor) -> Tensor:
        return wrong(sender, to, tag, tensor) if to == "B" else tensor

    found = session(JOBS["two"], tmp_path, to_b)
    assert set(judged({**found, SERVER: denies(found[SERVER])}).named) == {SERVER}
    assert set(judged({**found, "B": denies(found["B"])}).named) == {"B"}, "nobody else has the dealer's signature"


def test_of_two_that_deviate_one_cannot_hide_behind_the_other(tmp_path: Path) -> None:
    first, second = sends_wrong("B", Kind.MASKED_WIRE), sends_wrong("C", Kind.MASKED_WIRE, lambda step: step > 20)

    def both(sender: PartyId, to: PartyId, tag: Tag, tensor: Tensor) -> Tensor:
        return second(sender, to, tag, first(sender, to, tag, tensor))

    found = judged(session(JOBS["three"], tmp_path, both))
    assert set(found.named) == {"B"}, "C had taken a wrong message before"
    assert {"A", "C"} <= set(found.unjudged)


def test_a_table_out_of_range_does_not_frame_who_went_on(two: Found) -> None:
    """With what A hands over B's part would have ended before its last message: but A had put in something else."""
    big = {name: part * 2.0**16 if name.startswith("columns/") else part for name, part in two["A"].put_in.items()}
    found = judged({**two, "A": replace(two["A"], put_in=big)})
    assert set(found.named) == {"A"}
    assert "left the range" in found.stopped["B"]


def test_a_party_that_goes_on_after_its_part_must_have_ended_is_named(two: Found) -> None:
    """An honest party whose table leaves the range says so and sends nothing more."""
    big = {name: part * 2.0**60 if name.startswith("columns/") else part for name, part in two["B"].put_in.items()}
    own = replace(two["B"], put_in=big)
    commitments = {key: message for key, message in two["A"].received.items() if key == ("B", COMMITTED)}
    assert commitments
    hidden = {
        party: replace(each, received={key: of for key, of in each.received.items() if key != ("B", COMMITTED)})
        for party, each in two.items()
    }
    found = judged({**hidden, "B": replace(own, received=two["B"].received)})
    assert set(found.named) == {"B"}
    assert "had ended" in found.named["B"]
    assert "RangeOverflow" in found.stopped["B"]


def test_a_message_without_the_senders_signature_ends_the_session(tmp_path: Path) -> None:
    """So an honest party has the signature of all that it computed from."""
    send = SignedLink.send

    def unsigned(self: SignedLink, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if self.party != "B":
            return send(self, to, tag, tensor)
        Wrapper.send(self, to, tag, tensor)
        return Wrapper.send(self, to, signature_tag(tag), torch.zeros(SIGNATURE_BYTES, dtype=torch.uint8))

    with pytest.MonkeyPatch.context() as patch, refused(ProtocolError, code="signature", party="B"):
        patch.setattr(SignedLink, "send", unsigned)
        train(saved(tmp_path / "data", JOBS["two"], small_graphs()), tmp_path / "run")


def test_evidence_of_all_parties_and_of_one_session(two: Found, two_again: Found) -> None:
    with refused(ConfigError, code="parties"):
        dispute([[two["A"]], [two["B"]]], Trust())
    with refused(ConfigError, code="parties"):
        dispute([[two["A"]], [two["B"]], [two["B"]]], Trust())
    with refused(ConfigError, code="session"):
        judged({**two, "B": two_again["B"]})
    facts = two["B"].facts
    other = facts.model_copy(update={"software": {**facts.software, "scipy": "1.0"}})
    with refused(ConfigError, code="software", party="B"):
        judged({**two, "B": replace(two["B"], facts=other)})


def test_what_asks_a_dealer_for_more_than_it_has_is_nothing_that_was_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilgraph.mpc.sealed.correlations.STRIDE_BYTES", 1 << 11)
    found = session(JOBS["two"], tmp_path)
    asked = sum(tag.kind == Kind.READY for _, _, tag in taken(found))
    assert asked > 9
    assert judged(found).unseen == {}


EVERY = {"train": {"epochs": 5, "checkpoint_every": 1, "evaluate_every": 1}}
LONG = small_job(2, JUDGED, EVERY)
FOUR = {"train": {"epochs": 4}}
LONGER = {
    "two": small_job(2, JUDGED, EVERY, FOUR),
    "holder deals": small_job(3, JUDGED, EVERY, FOUR, {"trust": "majority"}),
    "nobody deals": small_job(2, JUDGED, EVERY, FOUR, {"trust": "nobody", "timeout_s": 120}),
}
OWN = small_job(2, JUDGED, EVERY, {"model": {"blocks": ["own", "pooled.2"]}})
"""Trainings of several sessions, each of which leaves checkpoints."""


@contextmanager
def killed() -> Iterator[None]:
    """A session that an error ends leaves what a killed one does: nothing after its last checkpoint."""
    keep = Recorder.keep

    def keeps(self: Recorder) -> None:
        if sys.exc_info()[0] is None:
            keep(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "keep", keeps)
        yield


def cut_off(job: SealedJob, folder: Path, epochs: Sequence[int] = (3,)) -> Path:
    """Train, and go on from the last checkpoint, cut off once after each of ``epochs``."""
    run, settings = folder / "run", saved(folder / "data", job, small_graphs(len(job.data.names)))
    for number, epoch in enumerate(epochs):
        with cut_at(epoch), pytest.raises(CutError):
            resume(run) if number else train(settings, run)
    return run


@pytest.fixture(scope="module")
def cut_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_off(LONG, tmp_path_factory.mktemp("cut"))


@pytest.fixture
def cut_run(cut_once: Path, tmp_path: Path) -> Path:
    """Of ``LONG``, cut off after its third epoch; each test has its own copy."""
    return Path(shutil.copytree(cut_once, tmp_path / "run"))


def judged_all(run: Path) -> Verdict:
    return dispute(list(all_evidence(run).values()), Trust())


@pytest.mark.parametrize("name", LONGER)
def test_sessions_that_go_on_are_run_again_one_after_another(name: str, tmp_path: Path) -> None:
    run = cut_off(LONGER[name], tmp_path, (2, 3))
    resume(run)
    found = all_evidence(run)
    assert {party: len(each) for party, each in found.items()} == dict.fromkeys(found, 3)
    verdict = judged_all(run)
    assert (verdict.named, verdict.unjudged, verdict.stopped, verdict.unseen, verdict.lacking) == ({}, {}, {}, {}, {})
    last = taken(evidence(run))
    assert all(count > sum(sender == party for sender, _, _ in last) for party, count in verdict.compared.items())
    with refused(ConfigError, code="session"):
        judged(evidence(run))


@pytest.mark.parametrize(("liar", "kind"), [("B", Kind.MASKED_WIRE), (SERVER, Kind.CORRELATION)])
def test_a_party_that_deviates_and_is_killed_is_named_by_what_the_training_goes_on_from(
    liar: PartyId, kind: Kind, tmp_path: Path
) -> None:
    """In the first session or in the second, where all evidence after the last checkpoint is lost."""
    for name, changes in {"first": (sends_wrong(liar, kind), None), "second": (None, sends_wrong(liar, kind))}.items():
        with killed(), sending(changes[0]):
            run = cut_off(LONG, tmp_path / name)
        with sending(changes[1]), suppress(VeilgraphError):  # of weights that have left the range
            resume(run)
        assert set(judged_all(run).named) == {liar}


def test_a_party_that_goes_on_from_another_checkpoint_than_it_saved(cut_run: Path) -> None:
    for path in (cut_run / "parties" / "B" / "checkpoints").glob("epoch-*.safetensors"):
        tensors, facts = load_tensors(path)
        changed = {name: part + 1 if "state/weight" in name else part for name, part in tensors.items()}
        save_tensors(path, changed, facts)
    with suppress(VeilgraphError):  # of weights that have left the range
        resume(cut_run)
    assert set(judged_all(cut_run).named) == {"B"}


def test_a_party_that_goes_on_with_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which its own part would refuse, by a digest in the checkpoint."""
    run, put_in = cut_off(OWN, tmp_path), Recorder.put_in

    def swaps(self: Recorder, tensors: Mapping[str, Tensor], *others: Any) -> Mapping[str, Tensor]:
        swapped = {name: part.flip(0) if name == "columns/own" else part for name, part in tensors.items()}
        return put_in(self, tensors if "labels" in tensors or not tensors else swapped, *others)

    monkeypatch.setattr(Recorder, "put_in", swaps)
    resume(run)
    assert set(judged_all(run).named) == {"B"}


def test_a_training_that_is_killed_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session after it goes on from the final checkpoint, which no other is as new as."""
    job = saved(tmp_path / "data", small_job(2, JUDGED, EVERY, {"train": {"checkpoint_every": 2}}), small_graphs())
    end = Checkpoints.end
    monkeypatch.setattr(Checkpoints, "end", cut)
    with killed(), pytest.raises(CutError):
        train(job, tmp_path / "run")
    monkeypatch.setattr(Checkpoints, "end", end)
    resume(tmp_path / "run")
    verdict = judged_all(tmp_path / "run")
    assert (verdict.named, verdict.stopped, verdict.unseen) == ({}, {}, {})


def test_a_session_of_which_nothing_was_kept_frames_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed once it has a new key, where an earlier one had the same number, and left evidence."""
    run, put_in = cut_off(LONG, tmp_path, (3, 3)), Recorder.put_in

    def dies(self: Recorder, *arguments: Any) -> None:
        put_in(self, *arguments)
        raise CutError

    monkeypatch.setattr(Recorder, "put_in", dies)
    with killed(), pytest.raises(CutError):
        resume(run)
    verdict = judged_all(run)
    assert (verdict.named, verdict.lacking) == ({}, {})


def test_a_party_that_hides_a_session(cut_run: Path) -> None:
    resume(cut_run)
    found = all_evidence(cut_run)
    verdict = dispute([*({**found, "B": found["B"][:1]}).values()], Trust())
    assert (verdict.named, verdict.lacking) == ({}, {"B": 1})
    with refused(ConfigError, code="session", party="B"):
        dispute([*({**found, "B": found["B"][1:]}).values()], Trust())
    facts = found["B"][0].facts.model_copy(update={"software": {}})
    with refused(ConfigError, code="software", party="B"):
        dispute([*({**found, "B": [replace(found["B"][0], facts=facts), found["B"][1]]}).values()], Trust())


def test_a_party_that_renames_its_evidence_does_not_hide_the_newest_session(cut_run: Path) -> None:
    """Else the session before it would be run again alone, and nothing would be said of this one."""
    with sending(sends_wrong("A", Kind.MASKED_WIRE)), suppress(VeilgraphError):
        resume(cut_run)
    honest = all_evidence(cut_run)
    assert set(dispute([honest[party] for party in sorted(honest)], Trust()).named) == {"A"}
    for name in ("inputs", "evidence"):
        folder = cut_run / "parties" / "A" / "dispute"
        (folder / f"{name}-1.safetensors").rename(folder / f"{name}-3.safetensors")
    found = all_evidence(cut_run)
    for order in (sorted(found), sorted(found, reverse=True)):
        with refused(ConfigError, code="session"):
            dispute([found[party] for party in order], Trust())


def test_a_party_that_hands_over_a_session_under_anothers_name(cut_run: Path) -> None:
    """Else its part would stop at its checkpoint, before anything of that session is compared."""
    with sending(sends_wrong("A", Kind.MASKED_WIRE)), suppress(VeilgraphError):
        resume(cut_run)
    found = all_evidence(cut_run)
    first, last = found["A"]
    renamed = replace(last, facts=last.facts.model_copy(update={"party": "B"}))
    with refused(ConfigError, code="parties"):
        dispute([*({**found, "A": [first, renamed]}).values()], Trust())


def test_a_party_that_stated_checkpoints_of_which_the_job_could_not_go_on_is_not_framed(tmp_path: Path) -> None:
    """It began again, as another had lost its own."""
    job = saved(tmp_path / "data", JOBS["two"], small_graphs())
    with cut_at(3), pytest.raises(CutError):
        train(job, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "parties" / "A" / "checkpoints")
    resume(tmp_path / "run", restart=True)
    found = evidence(tmp_path / "run")
    assert {party for party, each in found.items() if each.facts.held} == {"B", SERVER}
    assert judged(found).named == {}
    lies = replace(found["B"], facts=found["B"].facts.model_copy(update={"held": []}))
    assert set(judged({**found, "B": lies}).named) == {"B"}


def test_an_error_of_the_auditors_machine_frames_nobody(two: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: Checkpoints, *_: object) -> None:
        raise RunError("no space is left")

    monkeypatch.setattr(Checkpoints, "save", no_space)
    found = judged(two)
    assert found.named == {}
    assert found.stopped


def test_a_prediction_is_not_signed_and_leaves_the_evidence_of_the_training(two: Found, honest_folder: Folders) -> None:
    run = honest_folder("two") / "run"
    predict(run)
    assert evidence(run)["B"].received == two["B"].received
    traffic = json.loads((run / "parties" / "B" / "prediction_traffic.json").read_text())
    assert traffic
    assert "signature" not in {each["kind"] for each in traffic}


@pytest.mark.parametrize(
    "job",
    [
        {"paradigm": "union", "disputes": True},
        {
            "paradigm": "sealed",
            "disputes": True,
            "data": {"feature_scaling": "none"},
            "privacy": {"unit": "training-record", "epsilon_total": 2},
            "output": "margins",
            "train": {"select_by": "last", "epochs": 1, "checkpoint_every": 1},
        },
    ],
)
def test_jobs_that_cannot_be_run_again_to_the_last_bit_are_refused(job: Settings) -> None:
    with refused(ConfigError, key="disputes"):
        parse_job(job)
    assert parse_job({**job, "disputes": False})
