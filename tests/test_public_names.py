"""The public interface: a name is added, renamed or removed on purpose only."""

import subprocess
import sys
from typing import Any

import pytest

import veilgraph

PUBLIC = [
    "FederatedNodeClassifier",
    "Job",
    "JobSettings",
    "PartyGraph",
    "Predictions",
    "Run",
    "Tables",
    "VeilgraphError",
    "__version__",
    "datasets",
    "fit",
    "load_run",
    "nn",
    "read_job",
    "simulate",
    "tracking",
]
MODULES = {
    "datasets": ["load", "names", "payments", "split"],
    "nn": ["Combine", "CombineSettings", "CustomModel", "HopModel", "LocalModel", "LocalSettings"],
    "simulate": ["horizontally", "vertically"],
}


def test_the_public_names_are_these() -> None:
    assert veilgraph.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(veilgraph))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_can_be_imported(name: str) -> None:
    value: Any = getattr(veilgraph, name)
    if name == "__version__":
        assert isinstance(value, str)
    else:
        assert value.__name__.rpartition(".")[2] == name


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_these_names(name: str) -> None:
    module = getattr(veilgraph, name)
    assert module.__all__ == MODULES[name]
    assert all(hasattr(module, each) for each in MODULES[name])
    with pytest.raises(AttributeError):
        _ = module.trian


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = veilgraph.trian


def test_importing_the_package_or_its_command_line_leaves_torch_alone() -> None:
    script = "import sys, veilgraph, veilgraph.cli; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_process_of_a_site_leaves_torch_to_its_jobs() -> None:
    """It stays for months, and what comes from outside meets it first; a job's part imports torch by a quicker way."""
    script = (
        "import sys, veilgraph.deploy.join, veilgraph.deploy.supervisor, veilgraph.deploy.broker\n"
        "import veilgraph.deploy.part\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
