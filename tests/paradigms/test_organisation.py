"""From tables to predictions in one process: alignment, what is kept, what is refused, and tables that have grown."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import about, nightly
from tests.errors import refused
from tests.paradigms.exported import found_in, plain_hashes
from tests.paradigms.local_tables import party_file, tables
from tests.paradigms.organisations import exported, job
from tests.roles.local_parties import local_job
from veilgraph.core.chain import digest
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.types import SERVER, Kind, Tag
from veilgraph.graph.party import unpack_ids
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink, read_view
from veilgraph.privacy.publisher import Spent
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import DisclosureRecord
from veilgraph.runtime.launch.jobs import align, predict, resume, train
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory, load_tensors
from veilgraph.runtime.store.session_log import TrafficLog


@pytest.fixture
def parties(tmp_path: Path) -> dict[str, Path]:
    return exported(tmp_path)


def change(party_file: Path, **keys) -> None:
    content = yaml.safe_load(party_file.read_text(encoding="utf-8"))
    party_file.write_text(yaml.safe_dump(content | keys), encoding="utf-8")


def rows(run: Path, party: str) -> list[str]:
    return unpack_ids(load_tensors(run / "parties" / party / "nodes.safetensors")[0]) or []


def alignment(run: Path, party: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((run / "parties" / party / "alignment.json").read_text())
    return facts


def test_no_id_no_hash_of_one_and_no_name_of_a_column_leaves_a_holder(parties: dict[str, Path], tmp_path: Path) -> None:
    """In all that is sent, byte by byte: aligned, trained and predicted."""
    for file in parties.values():
        nodes = file.parent / "nodes.csv"
        header, rest = nodes.read_text("utf-8").split("\n", 1)
        nodes.write_text(header.replace("x0", "x_income0") + "\n" + rest, "utf-8")
    run = train(job(parties, train={"epochs": 1}), tmp_path / "run", record_views=True)
    needles = plain_hashes({name for party in parties for name in rows(run.path, party)})
    words, kinds = re.compile(rb"C\d{6}|x_income0|\.csv|party\.yaml"), set()
    assert words.search(b"xyzC000123?")
    for party in (*parties, SERVER):
        (path,) = RunDirectory.open(run.path).party(party).views()
        for message in read_view(path):
            if message.sender == party:
                content = message.tensor().contiguous().numpy().tobytes()
                kinds.add(message.tag.kind)
                assert not words.search(content), message.tag
                assert not found_in(content, needles), message.tag
    assert {Kind.HELLO, Kind.BLINDED_IDS, Kind.ID_TOKENS, Kind.COMMON_IDS, Kind.MASKED, Kind.SHARE} <= kinds


@nightly
def test_nodes_added_after_training_are_predicted_as_trained(parties: dict[str, Path], tmp_path: Path) -> None:
    """A new node that copies an old one, edges and all, gets the old one's prediction: same weights, same scaling."""
    run = train(job(parties, model={"dim": 4, "local": {"hops": 1}}), tmp_path / "run")
    assert len({str(alignment(run.path, party)) for party in (*parties, SERVER)}) == 1
    common, own = rows(run.path, "A")[:300], rows(run.path, "A")[300:]
    assert common == rows(run.path, "B")[:300]
    assert not set(own) & set(rows(run.path, "B")[300:])
    some = predict(run.path, ids=[common[5], common[2]])
    assert some.ids == (common[5], common[2])
    assert some.csv().splitlines()[0].startswith("id,class,p_")
    with refused(ConfigError, key="ids"):
        predict(run.path, ids=[own[-1]])
    before = predict(run.path)
    assert before.ids == tuple(common)
    old = before.ids[7]
    for file in parties.values():
        nodes, edges = file.parent / "nodes.csv", file.parent / "edges.csv"
        header, *lines = nodes.read_text(encoding="utf-8").splitlines()
        copied = next(line for line in lines if f'"{old}"' in line or line.split(",")[0] == old)
        far = copied.replace(old, "far")  # other values: the means and deviations of the grown column are others
        values = far.split(",")
        values[1] = "40"
        nodes.write_text("\n".join([header, *lines, copied.replace(old, "new"), ",".join(values)]) + "\n", "utf-8")
        header, *lines = edges.read_text(encoding="utf-8").splitlines()
        again = [line.replace(old, "new") for line in lines if old in line]
        edges.write_text("\n".join([header, *lines, *again]) + "\n", "utf-8")
    after = predict(run.path)
    assert set(after.ids or ()) == {*before.ids, "new", "far"}
    new = after.of_ids(["new"]).probabilities
    # The copies are neighbours of the same nodes, whose own neighbourhood has grown by the copy: with one hop the
    # embeddings of old and new are made from the same values.
    assert torch.allclose(new, after.of_ids([old]).probabilities, atol=1e-5)
    assert torch.allclose(new, before.of_ids([old]).probabilities, atol=1e-5)
    assert [file.name for file in (run.path / "parties" / "B").glob("predictions*")] == []
    assert rows(run.path, "A")[:300] != list(after.ids or ())[:300], "the training's own rows were overwritten"


def test_a_party_refuses_what_its_limits_do_not_accept(parties: dict[str, Path], tmp_path: Path) -> None:
    with refused(ConfigError, code="refused", key="limits.max_rounds", value=1, party="A"):
        train(job(parties, model={"dim": 4, "rounds": 2}), tmp_path / "deep")
    assert not (tmp_path / "deep").exists()
    change(parties["B"], limits={"min_common_nodes": 301})
    with refused(ConfigError, code="refused", key="limits.min_common_nodes", value=301, party="B"):
        train(job(parties), tmp_path / "few")
    change(parties["B"], limits={**about.NODES, "max_epsilon": 8})
    with refused(ConfigError, code="refused", key="limits.max_epsilon", value=8, party="B"):
        train(job(parties), tmp_path / "private")


def test_a_party_bounds_epsilon_and_then_accepts_what_it_bounds(tmp_path: Path) -> None:
    settings = tables(tmp_path)
    path = party_file(settings, "B")
    limits = {"leakage": [], **about.NODES}
    change(path, limits={**limits, "max_epsilon": 3.5})
    with refused(ConfigError, code="refused", key="limits.max_epsilon", value=3.5, party="B"):
        train(settings, tmp_path / "loud")
    change(path, limits={**limits, "max_epsilon": 4.5})
    run = train(settings, tmp_path / "run")
    store = run.path / "parties" / "B"
    spent = json.loads((store / "ledger.json").read_text())
    assert spent["releases"] == {"features": 1}
    assert spent["epsilon_total"] == 4.0
    predict(run.path)
    lines = (store / "disclosures.jsonl").read_text().splitlines()
    records = [DisclosureRecord.model_validate_json(line) for line in lines]
    (published,) = (one for one in records if one.epsilon_total is not None)
    assert (published.kind, published.work) == ("perturbed_features", "train"), "a prediction is no release more"
    assert (published.epsilon_release, published.epsilon_total) == (4.0, 4.0)


def test_tables_without_a_common_node_are_refused(parties: dict[str, Path], tmp_path: Path) -> None:
    for name in ("nodes.csv", "edges.csv"):
        table = parties["B"].parent / name
        table.write_text(table.read_text(encoding="utf-8").replace('"C', '"K').replace(",C", ",K"), encoding="utf-8")
        text = table.read_text(encoding="utf-8")
        table.write_text(
            "\n".join("K" + line[1:] if line.startswith("C") else line for line in text.splitlines()) + "\n"
        )
    with refused(DataError, code="no-common-id", key="nodes.id", value=["A", "B"]):
        train(job(parties), tmp_path / "run")


def test_another_partys_file_and_names_alone_are_refused(parties: dict[str, Path], tmp_path: Path) -> None:
    with refused(ConfigError, key="party", value="B"):
        train(job({"A": parties["B"], "B": parties["A"]}), tmp_path / "run")
    names = parse_job({"data": {"holders": ["A", "B"]}})
    with refused(ConfigError, key="data.holders"):
        train(names, tmp_path / "run")
    with refused(ConfigError, key="data.parties"):
        align(parse_job({}), tmp_path / "run")


def test_what_a_killed_session_sent_is_recorded_by_the_next(parties: dict[str, Path], tmp_path: Path) -> None:
    align(job(parties), tmp_path / "run")
    store = RunDirectory(tmp_path / "run").party("B")
    row = {"party": "B", "peer": "A", "direction": "sent", "kind": "share", "messages": 3, "bytes": 99}
    note = {"time": "2026-01-02T03:04:05+00:00", "phase": "train", "traffic": [row]}
    (store.path / "sending.json").write_text(json.dumps(note))
    resume(tmp_path / "run")
    assert not (store.path / "sending.json").exists()
    lines = (store.path / "disclosures.jsonl").read_text().splitlines()
    records = [DisclosureRecord.model_validate_json(line) for line in lines]
    assert [(one.kind, one.messages, one.bytes) for one in records if not one.whole] == [("share", 3, 99)]
    (store.path / "sending.json").write_text("{")
    (tmp_path / "run" / "summary.json").unlink()
    with refused(RunError, key=tmp_path / "run" / "parties" / "B" / "sending.json"):
        resume(tmp_path / "run")


def test_a_session_that_is_killed_after_its_first_block_says_that_hellos_may_have_gone(tmp_path: Path) -> None:
    settings, store = parse_job({"data": {"dataset": "synthetic"}}), PartyStore(tmp_path)
    recorder = RecordedLink(MemoryHub(["B", SERVER], timeout_s=20).link("B"))
    killed = TrafficLog(settings, store, "train", recorder)
    killed.note()
    recorder.send(SERVER, Tag(Kind.HELLO, 0, 1), torch.zeros(2))
    recorder.send(SERVER, Tag(Kind.MASKED, 0, 1), torch.zeros(2, 2, dtype=torch.int64))
    killed.end_block()
    TrafficLog(settings, store, "train", recorder)
    lines = (tmp_path / "disclosures.jsonl").read_bytes().splitlines()
    records = [DisclosureRecord.model_validate_json(line) for line in lines]
    assert [(one.kind, one.messages, one.whole) for one in records] == [
        ("hello", 1, True),
        ("masked", 1, True),
        ("hello", 0, False),
    ]
    assert [one.previous for one in records] == ["", digest(lines[0]), digest(lines[1])]


def test_a_killed_session_has_noted_what_it_spent(tmp_path: Path) -> None:
    settings, store = local_job(3), PartyStore(tmp_path)
    recorder = RecordedLink(MemoryHub(["A", "B"], timeout_s=20).link("B"))
    killed = TrafficLog(settings, store, "train", recorder)
    recorder.send("A", Tag(Kind.PERTURBED_FEATURES), torch.zeros(2, 2, dtype=torch.int64))
    killed.note(Spent(Counter({"features": 1}), 1.5, 2.5))
    TrafficLog(settings, store, "train", recorder)
    (line,) = (tmp_path / "disclosures.jsonl").read_text().splitlines()
    record = DisclosureRecord.model_validate_json(line)
    assert (record.whole, record.kind) == (False, "perturbed_features")
    assert (record.epsilon_release, record.epsilon_total) == (4.0, 2.5), "of a release what the job says"


def test_the_run_is_held_by_one_process(parties: dict[str, Path], tmp_path: Path) -> None:
    align(job(parties), tmp_path / "run")
    with (
        RunDirectory.open(tmp_path / "run").lock(),
        refused(RunError, key=tmp_path / "run"),
    ):
        resume(tmp_path / "run")
