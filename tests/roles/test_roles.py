"""What the roles see of each other, how they refuse together, and the work beside a server's passes."""

import threading
from dataclasses import replace

import pytest
import torch

from tests.errors import refused
from tests.roles.federation import (
    CLASSES,
    DIM,
    NODES,
    Federation,
    build_role,
    federate,
    small_job,
    small_parties,
)
from veilgraph.core.errors import LinkError, ProtocolError, RangeOverflow, RunError
from veilgraph.core.types import SERVER, Kind, Link, Tag
from veilgraph.link.collectives import tensor_text
from veilgraph.paradigms.vertical.roles import Background
from veilgraph.protocol.agreement import Hello, Point, left_behind, newest_common, start_of
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.processes import run_threads


def federation(settings: JobSettings, **changes: object) -> Federation:
    graphs = [replace(graph, **changes) for graph in small_parties(len(settings.data.names))]  # type: ignore[arg-type]
    return federate(settings, graphs, 2)


def test_a_masked_job_sends_the_server_no_single_embedding() -> None:
    masked = federation(small_job(2, {"precision": "float64"}))
    clear = federation(small_job(2, {"precision": "float64", "model": {"combine": {"masked": False}}}))
    embeddings = {
        (message.sender, message.tag.step): message.tensor
        for message in clear.transcripts[SERVER]
        if message.tag.kind is Kind.EMBEDDING
    }
    hidden = [message for message in masked.transcripts[SERVER] if message.tag.kind is Kind.MASKED]
    assert len(hidden) == len(embeddings) == 6
    for message in hidden:
        plain = (embeddings[message.sender, message.tag.step] * 2**32).round().long()
        assert float((message.tensor == plain).double().mean()) < 0.01
        assert float((message.tensor.double().abs() > 2.0**61).double().mean()) > 0.5  # uniform over the ring
    for step in range(3):
        total = sum(message.tensor for message in hidden if message.tag.step == step)
        assert isinstance(total, torch.Tensor)
        plain = embeddings["A", step] + embeddings["B", step]
        assert float((total.double() / 2**32 - plain).abs().max()) < 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        small_job(2),
        small_job(2, {"model": {"initial": {"method": "individual"}, "combine": {"strategy": "concat"}}}),
        small_job(2, {"model": {"rounds": 2, "initial": {"method": "secure-sum"}}}),
    ],
)
def test_labels_and_masks_of_the_label_holder_reach_nobody(settings: JobSettings) -> None:
    run = federation(settings)
    graph = small_parties(2)[0]
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    for party in ("B", SERVER):
        for message in run.transcripts[party]:
            if message.receiver != party or message.sender != "A":
                continue
            assert message.tensor.dtype != torch.bool
            shape = tuple(message.tensor.shape)
            assert CLASSES not in shape[1:], "nothing as wide as the classes leaves the label holder"
            if message.tag.kind is Kind.HELLO:
                hello = Hello.model_validate_json(tensor_text(message.tensor))
                assert hello.model_dump().keys() == {
                    "version", "job", "alignment", "nodes", "features", "feature_bits", "checkpoints", "steps",
                    "release", "classes", "refuses", "restarts", "nonce", "waits", "ids",
                    "edges", "training", "validation",
                }  # fmt: skip
            elif message.tag.kind not in (Kind.KEY, Kind.SEED):
                assert shape[0] in (NODES, graph.num_features, small_parties(2)[1].num_features)


@pytest.mark.parametrize(
    ("initial", "features", "bits"),
    [
        ({"method": "collaborative"}, 6, 12),
        ({"method": "collaborative", "feature_bits": 8}, 6, 8),
        ({"method": "secure-sum"}, 6, 0),
        ({"method": "individual"}, 0, 0),
    ],
)
def test_a_hello_says_no_more_than_the_method_needs(initial: dict[str, object], features: int, bits: int) -> None:
    seen = federation(small_job(2, {"model": {"initial": initial}})).transcripts
    for message in seen[SERVER]:
        if message.tag.kind is Kind.HELLO and message.receiver == SERVER:
            hello = Hello.model_validate_json(tensor_text(message.tensor))
            assert (hello.nodes, hello.features, hello.feature_bits) == (NODES, features, bits)


def test_stated_bits_say_nothing_of_features() -> None:
    """Without them whole numbers are told from others."""

    def told(**initial: object) -> set[int]:
        whole = small_parties(2)
        graphs = [whole[0], replace(whole[1], features=whole[1].features.to_dense().round())]
        seen = federate(small_job(2, {"model": {"initial": initial}}), graphs, 0).transcripts["A"]
        hellos = [Hello.model_validate_json(tensor_text(one.tensor)) for one in seen if one.tag.kind is Kind.HELLO]
        return {hello.feature_bits for hello in hellos if hello.nodes}

    assert told() == {0, 12}
    assert told(feature_bits=12) == {12}


def test_labels_of_test_nodes_change_nothing() -> None:
    settings = small_job(2)
    graphs = small_parties(2)
    labels, test_mask = graphs[0].labels, graphs[0].test_mask
    assert labels is not None
    assert test_mask is not None
    other = replace(graphs[0], labels=torch.where(test_mask, (labels + 1) % CLASSES, labels))
    one, two = federate(settings, graphs, 4).weights(), federate(settings, [other, graphs[1]], 4).weights()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_features_that_cannot_fit_the_ring_are_refused_at_once() -> None:
    graphs = small_parties(2)
    huge = replace(graphs[1], features=graphs[1].features * 1e6)

    def program(link: Link) -> None:
        build_role(small_job(2), link, {"A": graphs[0], "B": huge}).setup([])

    with refused(RangeOverflow, key="model.initial.feature_bits", value=12, party="B"):
        run_threads(dict.fromkeys(["A", "B", SERVER], program), 5, lambda: None)


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (torch.zeros(NODES, DIM + 1), r"\[60, 9\] torch.float32"),
        (torch.zeros(NODES, DIM, dtype=torch.float64), r"\[60, 8\] torch.float64"),
        (torch.zeros(NODES * DIM), r"\[480\] torch.float32"),
    ],
    ids=["shape", "dtype", "dims"],
)
def test_a_wrong_message_is_refused_by_who_gets_it(wrong: torch.Tensor, got: str) -> None:
    settings = small_job(2, {"model": {"initial": {"method": "individual"}, "combine": {"masked": False}}})
    graphs = {graph.party: graph for graph in small_parties(2)}

    def program(link: Link) -> None:
        role = build_role(settings, link, graphs)
        role.setup([])
        if link.party == "B":
            link.send(SERVER, Tag(Kind.EMBEDDING, 0, 1), wrong)
        else:
            role.forward(0, 1)

    with refused(ProtocolError, code="shape", key="embedding/step 0/round 1", party="B"):
        run_threads(dict.fromkeys(["A", "B", SERVER], program), 5, lambda: None)


def test_who_is_left_behind_is_given_a_newer_checkpoint_and_nobody_goes_back() -> None:
    def at(*epochs: int, session: str = "a", number: int = 1) -> list[Point]:
        return [Point(number, epoch, session) for epoch in epochs]

    ahead = {"A": at(4, 6), "B": at(4, 6), "C": at(4, 6), SERVER: at(4, 6)}
    assert left_behind(ahead | {"D": at(2)}, 3) == ((1, 6, "a"), ("D",))
    assert left_behind(ahead | {"D": at(2)}, 4) is None, "too few have it"
    assert left_behind(ahead | {"D": []}, 3) is None, "its record may be gone"
    assert left_behind(ahead | {"D": at(8)}, 3) is None, "it is ahead"
    assert left_behind(ahead | {"D": at(2), SERVER: at(4)}, 3) == ((1, 4, "a"), ("D",)), "nobody behind is ahead"
    assert left_behind(ahead | {"D": at(5)} | {SERVER: at(4)}, 3) is None, "it would go back"
    assert left_behind(ahead | {"D": at(2)} | {SERVER: at(2)}, 3) is None, "the server has none of theirs"
    assert left_behind(ahead | {"D": at(9), "C": at(6, session="b", number=2)}, 2) is None, "C's session is newer"


def test_where_as_many_agree_with_each_of_two_each_says_that_the_others_lack_what_it_has() -> None:
    ours, theirs = [Point(1, 4, "a")], [Point(1, 4, "b")]
    points = {"A": ours, "B": theirs, "C": theirs, SERVER: ours}
    for party, without in (("A", "B, C"), ("B", "A, server"), (SERVER, "B, C")):
        with refused(RunError, code="restart", party=without):
            start_of(party, points, dict.fromkeys(points, False), [])
    with refused(RunError, code="restart", party="B, C"):
        start_of("B", points | {"D": ours}, dict.fromkeys((*points, "D"), False), [])


def test_newest_common() -> None:
    def at(*epochs: int, session: str = "a", number: int = 1) -> list[Point]:
        return [Point(number, epoch, session) for epoch in epochs]

    assert newest_common({"A": at(2, 4), "B": at(4, 6), SERVER: at(2, 4, 6)}) == (1, 4, "a")
    assert newest_common({"A": at(2, 4), "B": at(6), SERVER: at(2)}) is None
    assert newest_common({"A": [], "B": at(6)}) is None
    assert newest_common({"A": at(2, 4), "B": at(2) + at(4, session="b")}) == (1, 2, "a"), "shares do not fit"
    again = at(2, session="b", number=2)
    assert newest_common({"A": at(4) + again, "B": again + at(4)}) == again[0], "the newer session, not the epoch"


def test_work_is_done_in_order_beside_the_caller_and_close_waits_for_it() -> None:
    background, go = Background(), threading.Event()
    done: list[int] = []
    background.submit(go.wait, 10)
    for number in range(5):
        background.submit(done.append, number)
    background.check()
    assert done == []
    go.set()
    background.close()
    assert done == [0, 1, 2, 3, 4]
    background.check()


def test_an_error_is_raised_once_by_a_check_after_it() -> None:
    def fail() -> None:
        raise LinkError("B is gone")

    background, done = Background(), threading.Event()
    background.submit(fail)
    background.submit(done.set)
    assert done.wait(10)
    with pytest.raises(LinkError, match="B is gone"):
        background.check()
    background.check()
    background.close()
