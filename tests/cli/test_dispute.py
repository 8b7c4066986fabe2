"""``net dispute``: an auditor runs a training of sites again, whose messages certificates vouch for."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.cli.commands import one_error, usage_error, veilgraph
from tests.deploy.small_project import bank_and_shop
from tests.paradigms.apart import apart
from veilgraph.cli.app import FAILED
from veilgraph.core.errors import RangeOverflow, RunError
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.deploy.kit import Kit
from veilgraph.graph.settings import DataSettings
from veilgraph.link.signed import SignedLink
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.samples.organisations import export_dataset

DEALER = "croupier"
JOB = {
    "name": "disputed",
    "paradigm": "sealed",
    "disputes": True,
    "data": {"holders": ["A", "B"], "label_holder": "A"},
    "model": {"network": "linear", "blocks": ["own", "pooled.2"], "edge_slots": 4096, "max_degree": 255},
    "train": {"epochs": 2, "select_by": "last", "learning_rate": 0.5},
}
EVIDENCE, INPUTS = "evidence-1.safetensors", "inputs-1.safetensors"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Kit]:
    return bank_and_shop(tmp_path_factory.mktemp("project") / "out", holders=["A", "B"], dealer=DEALER)


@pytest.fixture(scope="module")
def sites(kits: Mapping[str, Kit], tmp_path_factory: pytest.TempPathFactory) -> Mapping[PartyId, Path]:
    """What each party hands over of a training in which nobody deviated."""
    return trained(kits, tmp_path_factory.mktemp("honest"))


def trained(kits: Mapping[str, Kit], folder: Path) -> dict[PartyId, Path]:
    job = parse_job(JOB)
    data = DataSettings(dataset="synthetic", holders=2)
    files = export_dataset(data, folder / "tables", overlap=0.8, seed=1, job=job)
    identities = {party: kits[DEALER if party == SERVER else party].identity() for party in ("A", "B", SERVER)}
    return {party: handed_over(folder, party) for party in apart(folder, files, job, identities=identities)}


def handed_over(folder: Path, party: PartyId) -> Path:
    return folder / f"site {party}" / "disputed" / "parties" / party / "dispute"


def refuse(*_: object) -> None:
    raise RunError("no space is left")


def disputed(kits: Mapping[str, Kit], folders: Mapping[PartyId, Path], *options: str) -> tuple[str | Path, ...]:
    root = kits["A"].path / "startup" / "rootCA.pem"
    return ("net", "dispute", *folders.values(), "--root", root, "--dealer", DEALER, *options)


def test_an_honest_training_of_sites(kits: Mapping[str, Kit], sites: Mapping[PartyId, Path]) -> None:
    result = veilgraph(*disputed(kits, sites))
    assert result.exit_code == 0, result.output
    assert "DEVIATED" not in result.stdout
    assert "not judged" not in result.stdout
    found = json.loads(veilgraph(*disputed(kits, sites, "--json")).stdout)
    assert (found["named"], found["unjudged"], found["stopped"]) == ({}, {}, {})
    assert min(found["compared"].values()) > 3


def test_a_holder_that_adds_one_is_named_by_an_exit_code_too(kits: Mapping[str, Kit], tmp_path: Path) -> None:
    send = SignedLink.send

    def sends(self: SignedLink, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        adds = (self.party, tag.kind) == ("B", Kind.MASKED_WIRE) and tag.step > 2
        send(self, to, tag, tensor + 1 if adds else tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SignedLink, "send", sends)
        with pytest.raises(RangeOverflow):  # a job may end so, or with wrong predictions
            trained(kits, tmp_path)
    folders = {party: handed_over(tmp_path, party) for party in ("A", "B", SERVER)}
    result = veilgraph(*disputed(kits, folders))
    assert result.exit_code == FAILED
    assert re.search(r"B: DEVIATED: it sent A another masked_wire \(pass \d+, round \d+\) than", result.stdout)
    assert result.stdout.count("DEVIATED") == 1


def test_keys_that_no_certificate_of_the_project_vouches_for(
    kits: Mapping[str, Kit], sites: Mapping[PartyId, Path], tmp_path: Path
) -> None:
    stranger = bank_and_shop(tmp_path / "other", holders=["A", "B"], dealer=DEALER)
    assert "of another project" in one_error(veilgraph(*disputed(stranger, sites)))
    words = disputed(kits, sites)
    assert "who dealt (--dealer)" in one_error(veilgraph(*words[:-1], "other.example.org")), "another name"
    assert "give both" in usage_error(veilgraph(*words[: words.index("--dealer")]))
    assert "give the project's root certificate" in one_error(veilgraph(*words[: words.index("--root")]))


def test_a_training_on_one_machine_needs_no_certificates_and_has_none(kits: Mapping[str, Kit], tmp_path: Path) -> None:
    job = parse_job(JOB | {"data": {"dataset": "synthetic", "holders": 2}})
    train(job, tmp_path / "run")
    folders = {party: tmp_path / "run" / "parties" / party / "dispute" for party in ("A", "B", SERVER)}
    assert "it is not signed; on one machine nobody has" in one_error(veilgraph(*disputed(kits, folders)))
    found = json.loads(veilgraph("net", "dispute", *folders.values(), "--json").stdout)
    assert (found["named"], found["unseen"]) == ({}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "finish", refuse)
        result = veilgraph("net", "dispute", *folders.values())
    assert (result.exit_code, "no space is left" in result.stdout) == (FAILED, True), "nothing was judged to the end"
    assert min(found["compared"].values()) > 3
    tensors, facts = load_tensors(folders["B"] / EVIDENCE)
    kept = {name: tensors[name][:-2].clone() for name in ("tags", "digests", "signatures")}
    save_tensors(folders["B"] / EVIDENCE, tensors | kept, facts)
    result = veilgraph("net", "dispute", *folders.values())
    assert (result.exit_code, "DEVIATED" in result.stdout) == (0, False)
    assert "not judged: 2 more messages" in result.stdout


def test_a_key_that_another_party_wrote_in_its_place_is_refused(
    kits: Mapping[str, Kit], sites: Mapping[PartyId, Path], tmp_path: Path
) -> None:
    """Or all others could sign in its name together."""
    found = {party: shutil.copytree(folder, tmp_path / party) for party, folder in sites.items()}
    for folder in found.values():
        tensors, facts = load_tensors(folder / EVIDENCE)
        facts["keys"][0]["key"] = "00" * 32
        save_tensors(folder / EVIDENCE, tensors, facts)
    assert "A's key of the session cannot be trusted" in one_error(veilgraph(*disputed(kits, found)))


@pytest.mark.parametrize(
    "damage", ["missing", "no graph", "no inputs", "no tensors", "tags", "kinds", "senders", "party", "keys", "job"]
)
def test_evidence_that_is_missing_or_damaged_is_one_error(
    damage: str, kits: Mapping[str, Kit], sites: Mapping[PartyId, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(sites["B"], tmp_path / "B")
    tensors, facts = load_tensors(folder / EVIDENCE)
    if file := {"missing": EVIDENCE, "no graph": "graph.safetensors", "no inputs": INPUTS}.get(damage):
        (folder / file).unlink()
    else:
        changes: Mapping[str, Callable[[], object]] = {
            "no tensors": tensors.clear,
            "tags": lambda: tensors.update(tags=tensors["tags"][1:].clone()),
            "kinds": lambda: tensors.update(tags=torch.full_like(tensors["tags"], 99)),
            "senders": lambda: tensors.update(tags=tensors["tags"] - torch.tensor([4, 0, 0, 0])),
            "party": lambda: facts.update(party="C"),
            "keys": facts["keys"].pop,
            "job": lambda: facts["job"].update(paradigm="vertical"),
        }
        changes[damage]()
        save_tensors(folder / EVIDENCE, tensors, facts)
    said = one_error(veilgraph(*disputed(kits, {**sites, "B": folder})))
    assert str(folder) in said
    assert ("B lacks its graph" in said) == (damage == "no graph")
