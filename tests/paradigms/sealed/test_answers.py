"""Jobs that are ``online``: shares of a prediction are kept, and single nodes of it opened later, for those who ask."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml
from torch import Tensor
from typing_extensions import override

from tests.errors import check, refused
from tests.paradigms.apart import apart
from tests.paradigms.cutting import CutError
from tests.paradigms.sealed.programs import TWIN, outcomes, predicting_twin, small_graphs, small_job
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError, LinkTimeout, PeerFailed, ProtocolError, RunError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.party import load_party
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.paradigms.sealed import answers
from veilgraph.paradigms.sealed.named_nodes import NamedNodes
from veilgraph.paradigms.sealed.program import TRIAL, SealedProgram, logits_of
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.judge import Answers
from veilgraph.protocol.messages import revelation_causes
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.runtime.launch.site import why_occupied
from veilgraph.runtime.store.predictions import load_predictions, name_next_nodes
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory, load_tensors
from veilgraph.samples.organisations import export_organisations

MOST, NODES = 5, 30
ONLINE: Settings = {"named_nodes": MOST, "online": True}
WAIT_S = 20.0


class Sites:
    """Runs of A, B and perhaps C whose newest prediction was kept, each in a folder of its own."""

    def __init__(self, folder: Path, holders: int, *changes: Settings) -> None:
        self.folder, usual = folder, small_job(holders, *changes)
        self.files = export_organisations(
            small_graphs(holders, nodes=NODES), folder / "tables", overlap=1, seed=1, job=usual
        )
        content = read_job(folder / "tables" / "network-job.yaml").model_dump(mode="json")
        self.job = sealed(parse_job(merge(content, ONLINE)))
        for party, path in self.files.items():
            limits = {"limits": {"leakage": [*revelation_causes(self.job, party)], "trust": [self.job.trust]}}
            path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | limits))

    def run(self, work: Literal["train", "predict"]) -> None:
        apart(self.folder, self.files, self.job, work)

    def copy(self, folder: Path) -> "Sites":
        """The same again, of which other sessions know nothing."""
        shutil.copytree(self.folder, folder)
        copied = Sites.__new__(Sites)
        copied.folder, copied.job = folder, self.job
        copied.files = {party: folder / path.relative_to(self.folder) for party, path in self.files.items()}
        return copied

    def store(self, party: PartyId) -> PartyStore:
        return PartyStore(self.folder / f"site {party}" / self.job.name / "parties" / party)

    def left(self, party: PartyId = "B") -> int:
        return NamedNodes(self.job, self.store(party).keeper).left("A")

    def kept(self, party: PartyId) -> Mapping[str, Tensor]:
        found = self.store(party).keeper.get("answers")
        assert found is not None
        return found.tensors

    def values(self) -> Tensor:
        """What all holders' kept shares add up to, row by row of the common nodes, in units of the last bit."""
        total = torch.stack([self.kept(party)["share"] for party in self.files]).sum(0)
        rows = torch.empty_like(total)
        rows[self.kept("A")["order"]] = total
        return rows

    def role(self, link: Link) -> Role:
        party, keeper = link.party, FolderKeeper(self.store(link.party).path)
        streams = LearningStreams(1, party)
        context = RoleContext(self.job, link, streams, system_secrets, keeper=keeper, answers=True)
        return paradigm_of(self.job).session.role(context, Aligned())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    made = Sites(tmp_path_factory.mktemp("online") / "sites", 2, {"output": "margins"})
    made.run("train")
    made.run("predict")
    return made


@pytest.fixture
def sites(prepared: Sites, tmp_path: Path) -> Sites:
    return prepared.copy(tmp_path / "sites")


class Session:
    """All parties in threads: ``asked`` is the label holder's role, ``failures`` says why a party ended."""

    def __init__(self, sites: Sites, wrapped: Callable[[Link], Link] = lambda link: link) -> None:
        self.name = load_predictions(sites.store("A")).prepared
        self.hub = MemoryHub([*sites.files, SERVER], WAIT_S)
        self.failures: dict[PartyId, BaseException] = {}
        self.links = {
            party: RecordedLink(wrapped(self.hub.link(party)), keep_transcript=True) for party in (*sites.files, SERVER)
        }
        self.roles = {party: sites.role(link) for party, link in self.links.items()}
        self.threads = [threading.Thread(target=self._run, args=(party,), daemon=True) for party in self.roles]
        for thread in self.threads:
            thread.start()

    @property
    def asked(self) -> Answers:
        role = self.roles["A"]
        assert isinstance(role, Answers)
        return role

    def ask(self, *nodes: int, wait_s: float = WAIT_S) -> Tensor:
        return self.asked.ask(self.name, nodes, wait_s).probabilities

    def positions(self) -> list[list[int]]:
        """What B has been asked for, message by message."""
        entries = self.links["B"].transcript()
        return [each.tensor.tolist() for each in entries if each.tag.kind is Kind.POSITIONS]

    def end(self) -> None:
        for party in self.roles:
            self.hub.fail(party, CutError())
        self.asked.fail(CutError())
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _run(self, party: PartyId) -> None:
        role = self.roles[party]
        try:
            role.setup([])
            while role.trains:
                role.forward(0, None)
        except BaseException as error:  # noqa: BLE001 - of a thread
            self.failures.setdefault(party, error)
            self.hub.fail(party, error)
            if isinstance(role, Answers):
                role.fail(error)


@contextmanager
def session(sites: Sites, wrapped: Callable[[Link], Link] = lambda link: link) -> Iterator[Session]:
    found = Session(sites, wrapped)
    try:
        yield found
    finally:
        found.end()


# What is answered


def test_the_prediction_is_kept_and_nothing_of_it_opened(sites: Sites) -> None:
    found = load_predictions(sites.store("A"))
    assert (len(found.nodes), len(found.askable), sites.left()) == (0, NODES, MOST)
    assert {*sites.kept("A"), *sites.kept("B")} == {"order", "share"}
    assert "order" not in sites.kept("B")
    for party in "AB":
        lines = (sites.store(party).path / "disclosures.jsonl").read_text().splitlines()
        assert {name for line in lines for name in json.loads(line)["reveals"]} == set()
        assert oct((sites.store(party).path / "answers.safetensors").stat().st_mode)[-3:] == "600"
    with refused(ConfigError, key="ask"):
        name_next_nodes(sites.store("A").path.parents[1], [1])


def test_answers_are_what_was_kept_and_what_the_twin_predicts(sites: Sites) -> None:
    margins = sites.values().double() * 2.0**-18
    models = [load_tensors(sites.store(party).model_path)[0] for party in "AB"]
    weights = {name: models[0][name] + models[1][name] for name in models[0] if name.startswith("weight")}
    graphs = [load_party(sites.store(party).graph_path) for party in "AB"]
    twin = predicting_twin(sites.job, graphs, {**weights, TRIAL: models[0][TRIAL]}).predict()
    assert twin is not None
    with session(sites) as running:
        assert torch.equal(running.ask(7), logits_of(margins[[7]]).softmax(1))
        found = running.ask(11, 7, 3, 11)
    assert torch.equal(found, logits_of(margins[[11, 7, 3, 11]]).softmax(1))
    assert float((found - logits_of(twin[[11, 7, 3, 11]]).softmax(1)).abs().max()) < 4e-3
    kept = load_predictions(sites.store("A"))
    assert sorted(kept.nodes.tolist()) == [3, 7, 11]
    ids = {node: text for text, node in kept.askable.items()}
    assert kept.ids == tuple(ids[node] for node in kept.nodes.tolist())


@pytest.mark.parametrize("trust", ["dealer", "majority"])
def test_of_three_holders_and_classes_alone(tmp_path: Path, trust: str) -> None:
    sites = Sites(tmp_path / "sites", 3, {"trust": trust})
    sites.run("train")
    sites.run("predict")
    with session(sites) as running:
        found = running.ask(*range(MOST))
    assert torch.equal(found.argmax(1), sites.values()[:MOST, 0])
    assert float(found.max(1).values.min()) > 0.999
    assert [sites.left(party) for party in "ABC"] == [0, 0, 0]
    assert bool(sites.kept("C")["share"].any()) == (trust == "dealer"), "who deals has no share of it"


def test_what_is_kept_is_what_would_be_opened() -> None:
    job = small_job(2, {"output": "margins"})

    def program(party: SealedProgram) -> tuple[Tensor, int]:
        party.enter(trains=True)
        party.begin()
        party.step(0)
        return party.kept_output()

    found = outcomes(job, small_graphs(), program)
    total = (found["A"][0] + found["B"][0]).double() * 2.0 ** -found["A"][1]
    assert float((total - found[TWIN][0] * 2.0 ** -found[TWIN][1]).abs().max()) < 4e-3
    assert not found[SERVER][0].any()


# What the others learn


def test_a_share_by_itself_is_uniform_and_another_in_every_prediction(sites: Sites) -> None:
    seen = [sites.kept("B")["share"].clone(), sites.kept("A")["share"].clone()]
    sites.run("predict")
    seen += [sites.kept("B")["share"], sites.kept("A")["share"]]
    for share in seen:
        ones = torch.stack([share >> bit & 1 for bit in range(64)]).double().mean(0)  # of each number
        assert abs(float(ones.mean()) - 0.5) < 0.05
        assert float(ones.std()) < 0.1
    assert len({int(number) for share in seen for number in share.reshape(-1)}) == sum(map(Tensor.numel, seen))


def test_positions_say_nothing_of_nodes_and_of_no_order_in_which_they_are_asked_for(sites: Sites) -> None:
    orders = [sites.kept("A")["order"].clone()]
    asked = [9, 2, 21]
    with session(sites) as running:
        running.ask(*asked)
        first = running.positions()
    sites.run("predict")
    orders.append(sites.kept("A")["order"])
    for order in orders:
        assert sorted(order.tolist()) == list(range(NODES))
        assert int((order == torch.arange(NODES)).sum()) < NODES // 3
    assert not torch.equal(*orders)
    assert first == [sorted(orders[0].tolist().index(node) for node in asked)]
    with session(sites) as running:
        running.ask(*asked[:2])
        assert running.positions() == [sorted(orders[1].tolist().index(node) for node in asked[:2])]


def test_what_was_opened_is_not_asked_for_again(sites: Sites) -> None:
    with session(sites) as running:
        before = running.ask(4, 5)
        assert torch.equal(running.ask(5, 4), before.flip(0))
        assert len(running.positions()) == 1
    with session(sites) as running:
        assert torch.equal(running.ask(4, 5), before)
        assert running.positions() == []
        running.ask(4, 6)
        assert [len(each) for each in running.positions()] == [1]
    assert sites.left() == MOST - 3


def test_who_sends_what_is_disclosed_by_name(sites: Sites) -> None:
    assert set(revelation_causes(sites.job, "A")) == {"answer-times"}
    assert set(revelation_causes(sites.job, "B")) == {"named-classes", "named-margins"}


# How many may be opened


def test_no_more_nodes_are_opened_than_the_job_says(sites: Sites) -> None:
    """The label holder refuses by its own count, before it asks for any of them."""
    with session(sites) as running:
        running.ask(0, 1, 2)
        for nodes in ((3, 4, 5), (0, 3, 4, 5)):
            with refused(RunError, code="used-up", key="named_nodes", value=3):
                running.ask(*nodes)
        assert sites.left() == MOST - 3
        running.ask(0, 3, 4)
        assert running.ask(0, 1, 2, 3, 4).shape == (5, 3)
        with refused(RunError, code="used-up", key="named_nodes", value=1):
            running.ask(5)
    assert (sites.left("A"), sites.left("B")) == (0, 0)


def test_a_new_prediction_has_other_positions_and_the_same_count(sites: Sites) -> None:
    with session(sites) as running:
        running.ask(0, 1, 2)
        old, opened = running.name, running.positions()[0]
    sites.run("predict")
    assert sites.left() == MOST - 3
    check(cheated(sites, torch.tensor(opened)), code="used-up", value=3)  # the same positions are of other nodes now
    with session(sites) as running:
        with refused(RunError, code="other-prediction", value=old):
            running.asked.ask(old, [0], WAIT_S)
        running.ask(0)
        with refused(RunError, code="used-up"):
            running.ask(1, 2)
        assert running.ask(29).shape == (1, 3)
    assert sites.left() == 0


def cheated(sites: Sites, *messages: Tensor) -> BaseException:
    """How B's part ends when A sends these in place of what it was asked for."""
    hub = MemoryHub(["A", "B", SERVER], 5)
    links = {party: hub.link(party) for party in ("A", "B", SERVER)}
    roles = {party: sites.role(link) for party, link in links.items()}
    threads = [threading.Thread(target=roles[party].setup, args=([],)) for party in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    for number, message in enumerate(messages, 1):
        links["A"].send("B", Tag(Kind.POSITIONS, number), message)
    with pytest.raises(ProtocolError) as caught:  # noqa: PT012 - the last is refused
        for _ in messages:
            roles["B"].forward(0, None)
    assert links["A"].comes("B", Tag(Kind.SHARE, len(messages)), 0.1) is False
    return caught.value


@pytest.mark.parametrize(
    ("code", "message"),
    {
        "none": ("positions", torch.empty(0, dtype=torch.int64)),
        "one twice": ("positions", torch.tensor([3, 3])),
        "below": ("positions", torch.tensor([-1])),
        "beyond": ("positions", torch.tensor([0, NODES])),
        "more than the job says": ("used-up", torch.arange(MOST + 1)),
        "another type": ("shape", torch.zeros(1, dtype=torch.int32)),
        "another shape": ("shape", torch.zeros((1, 1), dtype=torch.int64)),
    }.values(),
)
def test_a_label_holder_that_cheats_is_refused_and_named(sites: Sites, code: str, message: Tensor) -> None:
    check(cheated(sites, message), code=code, party="A")
    assert sites.left() == MOST


def test_a_message_has_so_many_positions_and_more_are_asked_for_in_several(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_POSITIONS", 2)
    check(cheated(sites, torch.arange(3)), code="positions", party="A")
    with session(sites) as running:
        assert running.ask(*range(MOST)).shape == (MOST, 3)
        assert [len(each) for each in running.positions()] == [2, 2, 1]


def test_a_label_holder_that_counts_nothing_is_refused_over_all_sessions(sites: Sites) -> None:
    """The attack: it forgets its own count and what it was told, and asks anew."""
    kept = {path: path.read_bytes() for path in sites.store("A").path.glob("*.safetensors")}
    with session(sites) as running:
        running.ask(0, 1, 2)
    for path in sites.store("A").path.glob("*.safetensors"):
        path.unlink() if path not in kept else path.write_bytes(kept[path])
    assert (sites.left("A"), sites.left("B")) == (MOST, MOST - 3)
    with session(sites) as running:
        with refused(RunError, code="ended"):
            running.ask(5, 6, 7)
        check(running.failures["B"], code="used-up", key="named_nodes", value=3, party="A")
    opened = [sites.kept("A")["order"].tolist().index(node) for node in (0, 1, 2)]
    check(cheated(sites, torch.tensor(opened), torch.tensor([p for p in range(8) if p not in opened])), code="used-up")
    assert sites.left() == MOST - 3


class Dies(Wrapper):
    """Ends where it would send a share."""

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if tag.kind is Kind.SHARE:
            raise CutError
        super().send(to, tag, tensor)


def test_what_was_counted_and_not_answered_is_answered_later_at_no_count(sites: Sites) -> None:
    """B is killed between the count and the answer, and then A, before it has the answer on its disk."""
    with session(sites, Dies) as running:
        with refused(RunError, code="ended"):
            running.ask(0, 1)
        assert isinstance(running.failures["B"], CutError)
    assert (sites.left("A"), sites.left("B")) == (MOST - 2, MOST - 2)
    with session(sites) as running:
        running.ask(*range(MOST))
        with refused(RunError, code="used-up"):
            running.ask(MOST)
    (sites.store("A").path / "answered.safetensors").unlink()
    with session(sites) as running:
        running.ask(*range(MOST))
    assert sites.left() == 0


# Who is there


class Waits(Wrapper):
    """Sends shares once it may."""

    may = threading.Event()

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if tag.kind is Kind.SHARE:
            assert self.may.wait(WAIT_S)
        super().send(to, tag, tensor)


def test_who_asks_does_not_wait_for_ever_and_finds_the_answer_later(sites: Sites) -> None:
    Waits.may.clear()
    with session(sites, Waits) as running:
        for nodes in ((0,), (1, 2, 3)):
            with pytest.raises(LinkTimeout):
                running.ask(*nodes, wait_s=0.2)
        with refused(RunError, code="used-up", value=5):  # those that wait count as well
            running.ask(4, 5)
        Waits.may.set()
        assert running.ask(0, 1, 2, 3).shape == (4, 3)
        assert sites.left() == MOST - 4
        with refused(ConfigError, key="nodes", value=NODES):
            running.ask(NODES)
    with refused(RunError, code="ended"):
        running.ask(1)


def test_a_session_without_questions_lasts_until_a_holder_is_gone(sites: Sites) -> None:
    with session(sites) as running:
        running.ask(0)
        running.threads[0].join(1.5)
        assert not running.failures
        running.hub.fail("B", CutError())
        running.threads[0].join(WAIT_S)
        assert not running.threads[0].is_alive()
        with refused(RunError, code="ended"):
            running.ask(1)


@pytest.mark.parametrize("lacks", ["another's", "none"])
def test_shares_of_different_predictions_are_not_put_together(sites: Sites, lacks: str) -> None:
    before = (sites.store("B").path / "answers.safetensors").read_bytes()
    sites.run("predict")
    path = sites.store("B").path / "answers.safetensors"
    path.unlink() if lacks == "none" else path.write_bytes(before)
    with session(sites) as running, refused(RunError, code="ended"):
        running.ask(0)
    # Of two parties that refuse alike, the first to end may leave another with nobody to send to.
    cause = min(running.failures.values(), key=lambda error: isinstance(error, PeerFailed))
    check(cause, code="refused" if lacks == "none" else "not-prepared")
    assert sites.left() == MOST


REFUSED: dict[str, dict[str, Any]] = {
    "every node is predicted": {"named_nodes": None},
    "one machine": {"data": {"dataset": "synthetic", "holders": 2}},
    "noise": {"privacy": {"unit": "edge", "epsilon_total": 1}, "model": {"edge_slots": 100}},
    "rows of their own": {"paradigm": "union"},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_a_job_that_cannot_be_online_is_refused(changes: Settings) -> None:
    base: Settings = {"paradigm": "sealed", "train": {"select_by": "last"}, "data": {"holders": ["A", "B"]}, **ONLINE}
    assert sealed(parse_job(base)).outcome.keeps_shares
    with refused(ConfigError, key="online"):
        parse_job({**base, **changes})


def test_a_job_that_is_not_online_has_no_such_session(tmp_path: Path) -> None:
    for paradigm in ("sealed", "vertical"):
        job = parse_job({"paradigm": paradigm, "data": {"holders": ["A", "B"]}})
        assert why_occupied(tmp_path, job, "answer", resume=False).startswith("online=false")


def test_a_run_of_other_settings_is_not_taken_for_none(tmp_path: Path) -> None:
    here, other = (parse_job({"seed": seed, "data": {"holders": ["A", "B"]}}) for seed in (0, 1))
    assert "other settings" not in why_occupied(tmp_path / "run", other, "predict", resume=False)
    RunDirectory.create(tmp_path / "run", here)
    assert "other settings" in why_occupied(tmp_path / "run", other, "predict", resume=False)
    assert "other settings" not in why_occupied(tmp_path / "run", here, "predict", resume=False), "not trained yet"
