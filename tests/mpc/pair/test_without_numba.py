"""What somebody sees who has not installed numba."""

import subprocess
import sys

TEXT = """
import sys
sys.modules["numba"] = None
from veilgraph.core.errors import ConfigError
try:
    import veilgraph.mpc.pair.products
except ConfigError as error:
    print(error.code, "|", error)
"""


def test_the_error_names_the_package():
    found = subprocess.run([sys.executable, "-c", TEXT], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("numba-library | ")
    assert "pip install numba" in found.stdout
