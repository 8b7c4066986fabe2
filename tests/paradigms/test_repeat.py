"""The same job on the same tables, aligned anew, gives the same predictions by id."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from veilgraph_node_dp import publisher
from veilgraph_node_dp.mechanisms import FeatureMechanism
from veilgraph_node_dp.publisher import LocalPublisher

from tests import nightly
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.apart import apart
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.exported import export, over
from tests.paradigms.horizontal import MEAN, SECURE
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.local_tables import tables as local_tables
from tests.paradigms.organisations import exported, job
from tests.paradigms.repeated import DROPPING, distance
from tests.paradigms.sealed.programs import small_graphs, small_job
from tests.roles.federation import Settings
from veilgraph.core.errors import RunError
from veilgraph.core.randomness import PUBLIC_SEEDS
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import read_view
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.messages import revelation_causes
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import RunOptions, predict, train
from veilgraph.runtime.launch.site import learning_secret, learning_seed, repeat_mark
from veilgraph.runtime.store.predictions import Predictions, load_predictions
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory
from veilgraph.samples.organisations import export_organisations

VERTICAL: Mapping[str, Settings] = {
    "dropout": {"model": DROPPING, "train": {"epochs": 2}},
    "secure sum": {"model": DROPPING | {"initial": {"method": "secure-sum"}}},
    "sampled": {
        "model": DROPPING | {"local": {"model": "sage-mean", "fanout": 2}},
        "train": {"batch_size": 150, "epochs": 1},
    },
    "drawn order": {"model": {"dim": 4, "local": {"model": "sage-lstm"}}, "train": {"epochs": 1}},
}
SMALL: Settings = {"model": {"dim": 4}, "train": {"epochs": 1}}
SEALED: Settings = {
    "output": "margins",
    "model": {"network": "mlp", "max_degree": 30, "edge_slots": 155},
    "train": {"batch_size": 4},
}


def twice(settings: JobSettings, folder: Path, *, processes: bool = False) -> tuple[Predictions, Predictions]:
    one, other = (
        train(settings, folder / name, options=RunOptions(processes=processes)).predictions for name in ("one", "other")
    )
    return one, other


def accepting(settings: JobSettings) -> JobSettings:
    """The same, where every holder accepts what it reveals."""
    for path in (settings.data.parties or {}).values():
        content = yaml.safe_load(Path(str(path)).read_text("utf-8"))
        content["limits"] = {"leakage": list(revelation_causes(settings)), "max_rounds": 9}
        Path(str(path)).write_text(yaml.safe_dump(content), "utf-8")
    return settings


def of_vertical(folder: Path, changes: Settings = VERTICAL["dropout"]) -> JobSettings:
    return accepting(job(exported(folder), **changes))


def of_horizontal(folder: Path, changes: Settings | None = None) -> JobSettings:
    settings = horizontal_job(2, {"train": {"epochs": 3}}, changes or {})
    return over(export(folder, settings), settings, label_holder="A")


def of_averaging(folder: Path) -> JobSettings:
    settings = averaging_job(
        {"averaging": {"personal": ["input"], "threshold": 4}}
    )  # where somebody may be missing: none
    return over(export(folder, settings), settings, label_holder="A")


def of_sealed(folder: Path) -> JobSettings:
    settings = small_job(2, SEALED)
    export_organisations(small_graphs(), folder / "tables", overlap=0.9, seed=1, job=settings)
    return accepting(read_job(folder / "tables" / "job.yaml"))


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("changes", VERTICAL.values(), ids=VERTICAL.keys())
def test_vertical(changes: Settings, tmp_path: Path) -> None:
    one, other = twice(of_vertical(tmp_path, changes), tmp_path)
    assert one.ids == other.ids
    assert distance(one, other) == 0


@pytest.mark.parametrize("changes", [SECURE, pytest.param(MEAN, marks=nightly)], ids=["secure max", "mean"])
def test_horizontal(changes: Settings, tmp_path: Path) -> None:
    assert distance(*twice(of_horizontal(tmp_path, changes), tmp_path)) == 0


def of_node_dp(folder: Path) -> JobSettings:
    folder.mkdir(exist_ok=True)
    return local_tables(folder)


def test_node_dp_but_for_its_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tables are released once for life, so a repeat repeats; forgotten, they get new noise, which is all."""
    settings = of_node_dp(tmp_path / "one")
    one, again = twice(settings, tmp_path / "runs")
    assert distance(one, again) == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "forgotten"))  # else the same people would be recognised
    other = train(of_node_dp(tmp_path / "other"), tmp_path / "runs" / "elsewhere").predictions
    assert one.ids == other.ids
    assert distance(one, other) > 1e-3

    def same(mechanism: FeatureMechanism, *others: Any) -> LocalPublisher:
        response, ledger, _, *kept = others
        return LocalPublisher(mechanism, response, ledger, fixed_secrets(mechanism.features), *kept)

    monkeypatch.setattr(publisher, "LocalPublisher", same)
    found = []
    for name in ("one", "other"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state of {name}"))
        found.append(train(of_node_dp(tmp_path / f"fixed {name}"), tmp_path / "fixed" / name).predictions)
    assert distance(*found) == 0


def grow(settings: JobSettings) -> None:
    """A new customer of all holders, and another value of an old one."""
    for path in (settings.data.parties or {}).values():
        nodes = Path(str(path)).parent / "nodes.csv"
        header, first, *rest = nodes.read_text("utf-8").splitlines()
        values = first.split(",")
        new = ",".join(["new", *values[1:]])
        values[1] = "0.25"
        nodes.write_text("\n".join([header, ",".join(values), *rest, new]) + "\n", "utf-8")


def test_predictions_of_tables_that_have_grown(tmp_path: Path) -> None:
    """An inference draws nothing: its rows come in another order each time, in which the server recognises none."""
    settings = of_vertical(tmp_path, SMALL)
    twice(settings, tmp_path)
    grow(settings)
    one, again, other = (predict(tmp_path / name) for name in ("one", "one", "other"))
    assert "new" in (one.ids or ())
    assert len({found.ids for found in (one, again, other)}) == 3
    assert distance(one, again) < 1e-6
    assert distance(one, other) < 1e-6


# Across organisations: private seeds


def over_names(settings: JobSettings, **changes: Any) -> JobSettings:
    """The job across organisations."""
    names = list(settings.data.names)
    data = {"holders": names, "label_holder": "A", "feature_scaling": settings.data.feature_scaling}
    return parse_job(settings.model_dump(mode="json") | {"data": data} | changes)


class Sites:
    """The organisations of a job on this machine, their tables and their secrets for life."""

    def __init__(self, folder: Path, settings: JobSettings) -> None:
        self.folder, self.settings = folder, settings
        self.parties = {name: Path(str(path)) for name, path in (settings.data.parties or {}).items()}
        self.jobs = 0

    def run(self, *, audited: bool = False, **changes: Any) -> dict[PartyId, PartyStore]:
        """Trains under a new name, with the server's leave to audit or without; what every party has."""
        self.jobs += 1
        job = over_names(self.settings, name=f"job-{self.jobs}", **changes)
        runs = apart(self.folder / "sites", self.parties, job, server=True, audited=audited)
        return {party: RunDirectory.open(run).party(party) for party, run in runs.items()}

    def says(self, party: PartyId, **changes: Any) -> None:
        content = yaml.safe_load(self.parties[party].read_text("utf-8"))
        self.parties[party].write_text(yaml.safe_dump(content | changes), "utf-8")


def seeds(stores: Mapping[PartyId, PartyStore]) -> dict[PartyId, int]:
    return {party: store.seed() for party, store in stores.items()}


def predictions(stores: Mapping[PartyId, PartyStore]) -> Predictions:
    return load_predictions(stores["A"])


@pytest.mark.parametrize(
    "make", [of_vertical, pytest.param(of_averaging, marks=nightly)], ids=["vertical", "averaging"]
)
def test_across_organisations(make: Callable[[Path], JobSettings], tmp_path: Path) -> None:
    sites = Sites(tmp_path, make(tmp_path))
    one, other = sites.run(), sites.run()
    assert seeds(one) == seeds(other)
    assert min(seeds(one).values()) > PUBLIC_SEEDS
    assert len(set(seeds(one).values())) == len(one)
    assert distance(predictions(one), predictions(other)) == 0


@nightly
def test_sealed_across_organisations(tmp_path: Path) -> None:
    sites = Sites(tmp_path, of_sealed(tmp_path))
    one, other = sites.run(), sites.run()
    assert seeds(one) == seeds(other)
    assert 0 < distance(predictions(one), predictions(other)) < 2e-3, "fresh masks round up or down by one of 2^16"


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path, of_vertical(tmp_path, SMALL))


def all_new(one: Mapping[PartyId, PartyStore], other: Mapping[PartyId, PartyStore]) -> bool:
    return all(seed != seeds(other)[party] for party, seed in seeds(one).items())


def test_no_seed_comes_again_of_other_tables_another_job_or_another_secret(sites: Sites) -> None:
    one, edges = sites.run(), sites.parties["B"].parent / "edges.csv"
    content = edges.read_text("utf-8")
    edges.write_text(content.rsplit("\n", 2)[0] + "\n", "utf-8")
    assert all_new(one, sites.run())
    edges.write_text(content, "utf-8")
    assert all_new(one, sites.run(seed=1))
    assert all_new(one, sites.run(train={"epochs": 1, "learning_rate": 0.02}))
    assert seeds(one) == seeds(sites.run())
    path = sites.folder / "sites" / "learning-of-B" / "secret"
    drawn = {(sites.folder / "sites" / f"learning-of-{party}" / "secret").read_bytes() for party in ("A", "B", SERVER)}
    assert {len(secret) for secret in drawn} == {32}
    assert len(drawn) == 3
    path.unlink()
    assert all_new(one, sites.run())
    path.write_bytes(b"short")
    with refused(RunError, key=PurePath("secret")):
        sites.run()
    path.unlink()
    path.mkdir()
    with refused(RunError, key=PurePath("secret")):
        learning_secret(path.parent)


def test_who_draws_anew_has_all_draw_anew(sites: Sites) -> None:
    sites.says("B", seed="fresh")
    assert all_new(sites.run(), sites.run())


@nightly
def test_the_jobs_seed_at_one_holder_leaves_the_others_theirs(sites: Sites) -> None:
    sites.says("B", seed="job")
    one, other = seeds(sites.run()), seeds(sites.run())
    assert one == other
    assert one["B"] == sites.settings.seed
    assert min(one["A"], one[SERVER]) > PUBLIC_SEEDS


def test_a_mark_tells_whether_anything_has_changed_and_nothing_else(tmp_path: Path) -> None:
    """Who has not the secret cannot test a guess of the tables, nor connect marks of two jobs."""
    settings = of_vertical(tmp_path, SMALL)
    own = Organisation.read(Path(str((settings.data.parties or {})["B"])), "B")
    job, secret = over_names(settings), bytes(range(32))
    found = repeat_mark(secret, job, own)
    assert re.fullmatch(r"[0-9a-f]{64}", found)
    assert found == repeat_mark(secret, job.model_copy(update={"name": "another"}), own)
    assert found != repeat_mark(secret, job.model_copy(update={"seed": 9}), own)
    assert found != repeat_mark(bytes(32), job, own), "the secret is in it"
    assert len({found, repeat_mark(secret, job, None), own.digest()}) == 3
    grow(settings)
    assert found != repeat_mark(secret, job, own)


def test_who_knows_all_marks_but_not_the_secret_cannot_compute_a_seed(tmp_path: Path) -> None:
    settings = over_names(of_vertical(tmp_path, SMALL))
    marks = {name: repeat_mark(name.encode().ljust(32), settings, None) for name in ("A", "B", SERVER)}
    secret = bytes(range(32))
    found = learning_seed(secret, settings, None, marks)
    assert found == learning_seed(secret, settings.model_copy(update={"name": "another"}), None, marks)
    others = [
        learning_seed(bytes(32), settings, None, marks),
        learning_seed(secret, settings, None, {**marks, "A": marks["B"]}),
        learning_seed(secret, settings, None, {"A": marks["B"], "B": marks["A"], SERVER: marks[SERVER]}),
        *(learning_seed(secret, settings, None, {**marks, "B": ""}) for _ in range(2)),
    ]
    assert len({found, *others}) == 6
    assert min(found, *others) > PUBLIC_SEEDS


def test_jobs_with_noise_draw_anew(tmp_path: Path) -> None:
    """The noise is new; the same values under new noise, again and again, would lose it."""
    sites = Sites(tmp_path, of_node_dp(tmp_path / "data"))
    assert all_new(sites.run(), sites.run())


def test_a_repeated_job_has_new_masks_for_the_same_values(sites: Sites) -> None:
    """Who has seen both learns nothing of their difference: no word under a mask is the same, what is opened is."""
    for party in "AB":
        limits = yaml.safe_load(sites.parties[party].read_text("utf-8"))["limits"]
        sites.says(party, limits=limits | {"allow_audit": True})
    seen = [words(stores) for stores in (sites.run(audited=True), sites.run(audited=True))]
    assert seen[0].keys() == seen[1].keys()
    kinds = {kind for kind, *_ in seen[0]}
    assert {Kind.MASKED, Kind.MASKED_OPERAND, Kind.STATIC_DIFFERENCE, Kind.SHARE, Kind.SEED, Kind.KEY} <= kinds
    assert kinds >= OPENED
    for key, tensor in seen[0].items():
        if key[0] in HIDDEN:
            assert float((tensor == seen[1][key]).float().mean()) < 0.25, key  # of 32 bytes some meet by chance
        elif key[0] in OPENED:
            assert torch.equal(tensor, seen[1][key]), key


HIDDEN = {
    Kind.MASKED,
    Kind.MASKED_OPERAND,
    Kind.STATIC_DIFFERENCE,
    Kind.SHARE,
    Kind.SEED,
    Kind.KEY,
    Kind.CORRELATION,
    Kind.MASKED_GRADIENT,
    Kind.BLINDED_IDS,
    Kind.ID_TOKENS,
}
OPENED = {Kind.COMBINED, Kind.GRADIENT}


def words(stores: Mapping[PartyId, PartyStore]) -> dict[tuple[Kind, PartyId, PartyId, int, int], Tensor]:
    """Everything that was received."""
    found = {}
    for party, store in stores.items():
        for view in store.views():
            for message in read_view(view):
                if message.receiver == party != message.sender:
                    tag = message.tag
                    found[tag.kind, message.sender, party, tag.step, tag.round] = message.tensor()
    return found
