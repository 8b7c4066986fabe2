from importlib.resources import files
from pathlib import Path

import pytest

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.vertical.settings import VerticalJob, vertical
from veilgraph.protocol.job_file import read_job
from veilgraph.samples.shipped import shipped_job, shipped_jobs, with_overrides

JOBS = {
    "acm": "acm",
    "acm-sealed": "acm",
    "amazon": "amazon",
    "amazon-sealed": "amazon",
    "arxiv": "ogbn-arxiv",
    "citeseer": "citeseer",
    "citeseer-horizontal": "citeseer",
    "citeseer-local": "citeseer",
    "citeseer-rounds": "citeseer",
    "citeseer-sealed": "citeseer",
    "cora": "cora",
    "cora-averaging": "cora",
    "cora-horizontal": "cora",
    "cora-local": "cora",
    "cora-private": "cora",
    "cora-private-once": "cora",
    "cora-rounds": "cora",
    "cora-sealed": "cora",
    "digits": "digits",
    "facebook-local": "facebook",
    "github-local": "github",
    "payments": "payments",
    "pubmed": "pubmed",
    "pubmed-horizontal": "pubmed",
    "pubmed-local": "pubmed",
    "pubmed-rounds": "pubmed",
    "pubmed-sealed": "pubmed",
}
CHECKOUT = Path(__file__).parents[2]


def test_all_jobs_are_package_data():
    folder = files("veilgraph.samples") / "jobs"
    assert {file.name for file in folder.iterdir()} == {f"{name}.yaml" for name in JOBS}
    assert shipped_jobs() == tuple(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_parses(name):
    settings = shipped_job(name)
    assert settings.name == name
    assert settings.data.dataset == JOBS[name]
    assert settings.data.label_party == "A"


@pytest.mark.parametrize("name", [name for name in JOBS if name.endswith("-rounds")])
def test_rounds_jobs_exchange_more_than_once_with_degree_weights(name):
    model = vertical(shipped_job(name)).model
    assert model.rounds > 1
    assert model.combine.strategy == "degree-weighted"


@pytest.mark.parametrize(("name", "schedule"), [("cora-private", "every-step"), ("cora-private-once", "once")])
def test_private_jobs_publish_by_their_schedule(name, schedule):
    privacy = shipped_job(name).privacy
    assert privacy is not None
    assert (privacy.schedule, privacy.unit, privacy.relation) == (schedule, "row", "zero-out")


@pytest.mark.parametrize("name", ["cora", "cora-private", "citeseer", "pubmed", "arxiv"])
def test_paper_jobs_use_the_papers_local_model_and_one_round(name):
    model = vertical(shipped_job(name)).model
    assert (model.rounds, model.local.model) == (1, "sage-mean")


@pytest.mark.parametrize("name", JOBS)
def test_the_top_folder_shows_the_same_files(name):
    assert read_job(CHECKOUT / "jobs" / f"{name}.yaml") == shipped_job(name)


def test_an_unknown_job_names_the_choices():
    with refused(ConfigError, key="job", value="karate"):
        shipped_job("karate")


def test_overrides_replace_only_what_they_name():
    settings = VerticalJob()
    changed = with_overrides(settings, {"data.holders": 3, "model.combine.strategy": "concat", "seed": 7})
    assert (changed.data.holders, vertical(changed).model.combine.strategy, changed.seed) == (3, "concat", 7)
    assert with_overrides(changed, {"data.holders": 2, "model.combine.strategy": "mean", "seed": 0}) == settings
    assert with_overrides(settings, {}) == settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.hops": 3}, {"key": "model.hops", "value": 3}),
        ({"data.holders": 1}, {"key": "data.holders", "value": 1}),
        ({"modell.dim": 8}, {"key": "modell.dim", "value": 8}),
        ({"seed.start": 8}, {"key": "seed.start", "value": 8}),
    ],
)
def test_broken_overrides_are_refused(overrides, message):
    with refused(ConfigError, **message):
        with_overrides(VerticalJob(), overrides)


@pytest.mark.parametrize("name", [name for name in JOBS if name.endswith("-horizontal")])
def test_horizontal_jobs_have_the_network_of_equation_23(name):
    job = shipped_job(name)
    network = horizontal(job).model
    assert job.paradigm == "horizontal"
    assert (network.layers, network.message, network.aggregate, network.update) == (2, "none", "max", "sum")
    assert (job.train.epochs, job.train.learning_rate) == (300, 0.01)
