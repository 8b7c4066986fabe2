"""The public interface: a name is added, renamed or removed on purpose only."""

import subprocess
import sys
from typing import Any

import pytest

import veilgraph

PUBLIC = [
    "JobSettings",
    "PartyGraph",
    "Predictions",
    "TrainResult",
    "VeilgraphError",
    "__version__",
    "load_result",
    "parse_job",
    "predict",
    "read_job",
    "resume",
    "split_vertically",
    "train",
]


def test_the_public_names_are_these() -> None:
    assert veilgraph.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(veilgraph))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_can_be_imported(name: str) -> None:
    value: Any = getattr(veilgraph, name)
    assert isinstance(value, str) if name == "__version__" else value.__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = veilgraph.trian


def test_importing_the_package_or_its_command_line_leaves_torch_alone() -> None:
    script = "import sys, veilgraph, veilgraph.cli; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
