"""An audit across organisations: every site attacks with its own view, and the truth stays with whom it is about."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from tests import nightly
from tests.cli.commands import one_error, veilgraph
from tests.link.altered import AlteredLink
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.apart import apart
from veilgraph.audit import across
from veilgraph.audit.across import audit_across
from veilgraph.audit.attack import ATTACKS, AuditContext
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult, Finding, Outcome
from veilgraph.core.errors import ConfigError, ProtocolError, VeilgraphError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.party import load_party, save_party
from veilgraph.graph.settings import DataSettings
from veilgraph.link.collectives import text_tensor
from veilgraph.link.view import Message, RecordedLink
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import DisclosureRecord, all_revelations
from veilgraph.report.audit import read_audit
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_dataset

NAMES = ("A", "B", "C")
PARTIES = (*NAMES, SERVER)
JOB = {
    "name": "across",
    "data": {"holders": list(NAMES), "label_holder": "A"},
    "model": {"dim": 32, "rounds": 2, "local": {"model": "gcn", "hops": 3}},
    "train": {"epochs": 3, "patience": None},
    "timeout_s": 120,
}
QUICK: tuple[str, ...] = ("link-similarity", "feature-similarity", "membership-gradient", "attribute")
WHOLE: tuple[str, ...] = (
    "link-similarity",
    "link-propagation",
    "feature-similarity",
    "membership-gradient",
    "label-blind",
)
Sent = dict[PartyId, list[Message]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sites that allow audits, with a job that they have trained."""
    folder = tmp_path_factory.mktemp("sites")
    data = DataSettings(dataset="synthetic", holders=3)
    for file in export_dataset(data, folder / "tables", overlap=1.0, seed=1).values():
        change(file, allow_audit=True, max_rounds=2, leakage=list(all_revelations()))
    apart(folder, files(folder), parse_job(JOB), audited=True)
    return folder


@pytest.fixture
def sites(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "sites"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs, and attacks that take no time, one of them not blind."""
    monkeypatch.setattr(across, "MOST_PAIRS", 10_000)
    monkeypatch.setattr(across, "EVERYBODYS", QUICK)


def files(folder: Path) -> dict[PartyId, Path]:
    return {name: folder / "tables" / name / "party.yaml" for name in NAMES}


def change(file: Path, **limits: object) -> None:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["limits"] = content.get("limits", {}) | limits
    file.write_text(yaml.safe_dump(content), encoding="utf-8")


def part(folder: Path, party: PartyId) -> RunDirectory:
    return RunDirectory.open(folder / f"site {party}" / "across")


def audited(
    folder: Path, secrets: SecretSource | None = None, alter: Callable[[PartyId, Link], Link] = lambda party, link: link
) -> tuple[dict[PartyId, AuditResult], Sent]:
    """What every holder finds, and what every party sent."""
    sent: Sent = {}

    def program(party: PartyId) -> Callable[[Link], None]:
        def take(link: Link) -> None:
            recorded = RecordedLink(link, keep_transcript=True)
            try:
                draws = secrets or fixed_secrets("across", party)
                audit_across(part(folder, party), party, alter(party, recorded), draws)
            finally:
                sent[party] = [message for message in recorded.transcript() if message.sender == party]

        return take

    run_threads({party: program(party) for party in PARTIES}, 60, lambda: None)
    found = {name: read_audit(part(folder, name).path) for name in NAMES}
    return {name: result for name, result in found.items() if result is not None}, sent


def figure(findings: Sequence[Finding], *of: str) -> float:
    """Value of the finding with this adversary, target, attack and words of evidence."""
    adversary, target, attack, words = of
    (found,) = [
        each
        for each in findings
        if (each.adversary, each.target, each.attack) == (adversary, target, attack) and words in each.evidence
    ]
    return found.value.value


@nightly
def test_what_is_found_is_what_one_place_with_everything_would_find(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(across, "EVERYBODYS", WHOLE)
    monkeypatch.setattr(across, "MOST_PAIRS", 100_000)
    apart(sites, files(sites), parse_job(JOB), "audit", audited=True, auditor=audit_across)
    found = [each for name in NAMES for each in (read_audit(part(sites, name).path) or pytest.fail(name)).findings]

    whole = tmp_path / "whole"
    shutil.copytree(part(sites, "A").path, whole)
    for party in ("B", "C", SERVER):
        shutil.copytree(part(sites, party).path / "parties" / party, whole / "parties" / party, dirs_exist_ok=True)
    here = audit(whole, AuditPlan(adversaries=(SERVER, "B"), attacks=WHOLE)).findings

    last = "the sum of all embeddings of round 2"
    for of, within in (
        ((SERVER, "B", "link-similarity", last), 0.09),
        ((SERVER, "B", "link-propagation", ""), 0.09),
        (("B", "C", "link-similarity", "the combined embedding of round 1"), 0.09),
        (("B", "A", "feature-similarity", ""), 0.09),
        ((SERVER, "A", "membership-gradient", "z_L"), 0.0),
        ((SERVER, "A", "label-blind", "z_L"), 0.09),
    ):
        assert figure(found, *of) == pytest.approx(figure(here, *of), abs=max(within, 1e-9)), of
    assert figure(found, SERVER, "A", "membership-gradient", "z_L") == 1
    assert figure(found, SERVER, "B", "link-similarity", last) > 0.65

    assert {each.target for each in read_audit(part(sites, "C").path).findings} == {"C"}  # type: ignore[union-attr]
    assert read_audit(part(sites, SERVER).path) is None
    assert all(len(part(sites, party).party(party).views()) == 1 for party in PARTIES), "of the training alone"
    lines = (part(sites, "B").path / "parties" / "B" / "disclosures.jsonl").read_text().splitlines()
    records = [DisclosureRecord.model_validate_json(line) for line in lines]
    assert {(one.kind, one.to) for one in records if one.work == "audit" and one.kind.startswith("audit")} == {
        ("audit_question", SERVER), ("audit_question", "A"), ("audit_question", "C"),
        ("audit_answer", "A"), ("audit_answer", "C"),
    }  # fmt: skip
    shown = veilgraph("audit", part(sites, "A").path)
    assert "label-blind" in shown.stdout
    assert "across organisations has the job's limits" in one_error(
        veilgraph("audit", part(sites, "A").path, "--seed", "1")
    )


def test_nothing_of_the_truth_leaves_and_nothing_of_an_adversarys_own_data(sites: Path) -> None:
    """Other data of everybody under the same messages: every byte that is sent stays what it is."""
    draws: list[int] = []

    def secrets(size: int) -> bytes:
        draws.append(size)
        return b"\7" * size

    before, sent = audited(sites, secrets)
    assert draws == [32, 32, 32]
    assert not [
        each.note for each in before["A"].findings if each.attack == "membership-gradient" and "way round" in each.note
    ]
    check_ranks_and_facts(sent)
    for name in NAMES:
        path = part(sites, name).party(name).graph_path
        graph = load_party(path)
        random = torch.Generator().manual_seed(3)
        order = torch.randperm(graph.num_nodes, generator=random)
        rows = {
            name: each[order]
            for name in ("labels", "train_mask", "val_mask", "test_mask")
            if (each := getattr(graph, name)) is not None
        }
        features = graph.features.to_dense()[order]
        save_party(replace(graph, edge_index=order[graph.edge_index], features=features, **rows), path)
    after, again = audited(sites, secrets)
    assert {party: messages(each) for party, each in sent.items()} == {
        party: messages(each) for party, each in again.items()
    }
    assert figure(before[NAMES[0]].findings, SERVER, "A", "membership-gradient", "z_L") == 1
    assert figure(after[NAMES[0]].findings, SERVER, "A", "membership-gradient", "z_L") < 0.7


def messages(sent: Sequence[Message]) -> list[tuple[PartyId, str, bytes]]:
    return sorted((each.receiver, str(each.tag), each.tensor.numpy().tobytes()) for each in sent)


def check_ranks_and_facts(sent: Sent) -> None:
    ranks = [each.tensor for each in sent[SERVER] if (each.tag.kind, each.tag.round) == (Kind.AUDIT_ANSWER, 2)]
    assert len(ranks) > 5
    for each in ranks:
        distinct = np.unique(each.numpy())
        assert (distinct == np.arange(1, len(distinct) + 1)).all()
    facts = [json.loads(bytes(each.tensor.tolist())) for each in sent["B"] if each.tag == Tag(Kind.AUDIT_QUESTION)]
    assert all(fact.keys() == {"nodes", "labels", "alignment"} for fact in facts)


@pytest.mark.cases(2)
@pytest.mark.parametrize("who", [*NAMES, SERVER])
def test_who_does_not_allow_it_is_not_audited_and_audits_nobody(sites: Path, who: str) -> None:
    if who != SERVER:
        change(files(sites)[who], allow_audit=False)
    before = set(sites.rglob("audit.json"))
    with pytest.raises(ConfigError, match=rf"^{who} refuses the job: .*allow.audit"):
        apart(sites, files(sites), parse_job(JOB), "audit", audited=who != SERVER, auditor=audit_across)
    assert set(sites.rglob("audit.json")) == before


def test_no_site_keeps_a_view_unless_it_allows_audits(tmp_path: Path) -> None:
    data = DataSettings(dataset="synthetic", holders=3)
    for name, file in export_dataset(data, tmp_path / "tables", overlap=1.0, seed=1).items():
        change(file, allow_audit=name == "B", max_rounds=2, leakage=list(all_revelations()))
    apart(tmp_path, files(tmp_path), parse_job(JOB | {"train": {"epochs": 1, "patience": None}}))
    kept = {party for party in PARTIES if part(tmp_path, party).party(party).views()}
    assert kept == {"B"}


def test_a_limit_that_nothing_could_be_held_to_fails(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party without a view says so, no attack needs the truth, and large graphs are not compared node by node."""
    monkeypatch.setattr(across, "MOST_COMPARED", 10)
    for party in PARTIES:
        path = part(sites, party).path / "job.yaml"
        limits = "audit_limits: {link-similarity: 0.51, attribute: 0.9}"
        path.write_text(path.read_text().replace("audit_limits: {}", limits), encoding="utf-8")
    for view in (part(sites, "C").path / "parties" / "C" / "view").iterdir():
        view.unlink()
    found, _ = audited(sites)
    result = found["B"]
    assert not any(each.attack == "feature-similarity" for name in NAMES for each in found[name].findings)
    assert any(each.name == "feature-similarity" and "at most 10" in each.why for each in result.skipped)
    assert not any(each.adversary == "C" for each in result.findings)
    assert any(
        each.adversary == "C" and "no recorded view" in each.why and str(sites) not in each.why
        for each in result.skipped
    )
    assert {each.name for each in result.untested} >= {"attribute"}
    assert {each.attack for each in result.failed} == {"link-similarity"}
    shown = veilgraph("audit", part(sites, "B").path)
    assert shown.exit_code == 3
    assert "nothing was held to the limit on attribute" in shown.stderr


def test_tables_that_were_aligned_anew_are_not_attacked_with_old_messages(sites: Path) -> None:
    path = part(sites, "B").path / "parties" / "B" / "alignment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"identity": "0" * 64}), encoding="utf-8")
    found, _ = audited(sites)
    assert not found["B"].findings
    assert all("no recorded view of a training on these tables" in each.why for each in found["B"].skipped)
    assert found["A"].findings


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("liar", "tag", "tensor"),
    [
        ("B", Tag(Kind.AUDIT_QUESTION), text_tensor('{"nodes": 320}')),
        ("B", Tag(Kind.AUDIT_QUESTION), text_tensor("[" * 100_000)),
        ("B", Tag(Kind.AUDIT_QUESTION, 0, 1), torch.empty((0, 2), dtype=torch.int64)),
        ("B", Tag(Kind.AUDIT_QUESTION, 0, 1), torch.tensor([[0, 2**40]])),
        ("B", Tag(Kind.AUDIT_QUESTION, 0, 1), torch.tensor([[5, 5]])),
        ("B", Tag(Kind.AUDIT_QUESTION, 0, 1), torch.tensor([[0, -1]])),
        (SERVER, Tag(Kind.AUDIT_ANSWER), text_tensor('{"answers": [{"attack": "epsilon", "evidence": ""}]}')),
        (SERVER, Tag(Kind.AUDIT_ANSWER), text_tensor('{"answers": [{"attack": "attribute", "evidence": "x"}]}')),
        (
            SERVER,
            Tag(Kind.AUDIT_ANSWER),
            text_tensor('{"answers": [{"attack": "link-similarity", "evidence": "\\u001b[2J"}]}'),
        ),
        (SERVER, Tag(Kind.AUDIT_ANSWER, 0, 2), torch.zeros(3)),
        (SERVER, Tag(Kind.AUDIT_ANSWER, 0, 2), torch.full((10_000,), float("nan"))),
    ],
)
def test_a_lie_is_one_clear_error_and_nothing_is_written(sites: Path, liar: str, tag: Tag, tensor: Tensor) -> None:
    def alter(party: PartyId, link: Link) -> Link:
        """A hears first from the server, and of the holders from B."""
        return AlteredLink(link, lambda of, right: tensor if of == tag else right) if party == "A" else link

    with pytest.raises(ProtocolError, match=liar):
        audited(sites, alter=alter)


@nightly
@pytest.mark.parametrize("kind", [Kind.AUDIT_QUESTION, Kind.AUDIT_ANSWER])
def test_no_frame_of_a_peer_breaks_a_holder(sites: Path, kind: Kind) -> None:
    """Whatever comes in place of a message, in any order: it is taken, or refused with one clear error."""
    refused: list[VeilgraphError] = []
    for case in range(9):
        random = torch.Generator().manual_seed(case)

        def alter(party: PartyId, link: Link, random: torch.Generator = random) -> Link:
            return AlteredLink(link, lambda tag, right: hostile(right, random) if tag.kind is kind else right)

        try:
            audited(sites, alter=alter)
        except VeilgraphError as error:
            refused.append(error)
    assert len(refused) > 3
    assert all(str(error).isprintable() for error in refused)


def hostile(right: Tensor, random: torch.Generator) -> Tensor:
    """Another tensor than the one that was sent, or, once in three, that one."""
    draw = int(torch.randint(12, (1,), generator=random))
    if draw < 4:
        return right
    if draw < 6:
        return right[: len(right) // 2]
    if draw < 8:
        return right.to(torch.float64)
    if draw < 10 and right.dtype == torch.uint8:
        return torch.randint(256, right.shape, dtype=torch.uint8, generator=random)
    return torch.full_like(right, 2**62 if right.dtype == torch.int64 else 0)


def test_an_attack_that_looks_at_data_is_not_answered(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the catalogue says of it."""

    def look(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
        rows = case.graph("B").features.to_dense().double().numpy()[:, 0]
        return Outcome(rows, case.members(target))

    looking = replace(ATTACKS["membership-gradient"], mount=look)
    monkeypatch.setattr(across, "EVERYBODYS", ("membership-gradient",))
    monkeypatch.setattr(across, "ATTACKS", {"membership-gradient": looking})
    found, sent = audited(sites)
    assert not found["A"].findings
    assert any("data of B, which go into no answer" in each.why for each in found["A"].skipped)
    assert not [each for each in sent["B"] if (each.tag.kind, each.tag.round) == (Kind.AUDIT_ANSWER, 2)]


def test_an_attack_that_raises_fails_the_audit_and_says_nothing_of_the_answering_partys_data(
    sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Outcome:
        raise ValueError("row of customer Quux")

    altered = {**ATTACKS, "membership-gradient": replace(ATTACKS["membership-gradient"], mount=broken)}
    monkeypatch.setattr(across, "EVERYBODYS", ("membership-gradient", "link-similarity"))
    monkeypatch.setattr(across, "ATTACKS", altered)
    found, _ = audited(sites)
    assert {each.attack for each in found["A"].findings} == {"link-similarity"}
    assert {each.name for each in found["A"].broken} == {"membership-gradient"}
    assert not found["A"].passed
    assert "Quux" not in str(found["A"].record())


def test_questions_about_other_nodes_than_there_are_get_no_answer(sites: Path) -> None:
    lies = {
        Tag(Kind.AUDIT_QUESTION): text_tensor('{"nodes": 10000, "labels": true}'),
        Tag(Kind.AUDIT_QUESTION, 0, 1): torch.tensor([[0, 9999]]),
    }

    def alter(party: PartyId, link: Link) -> Link:
        return AlteredLink(link, lies.get) if party == SERVER else link

    for party in PARTIES:
        (part(sites, party).path / "parties" / party / "alignment.json").unlink()
    found, _ = audited(sites, alter=alter)
    assert {each.adversary for each in found["A"].findings} == {"B", "C"}
    assert any(each.adversary == SERVER and "have 10000" in each.why for each in found["A"].skipped)
