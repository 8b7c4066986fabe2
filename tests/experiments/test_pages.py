"""Every page of measurements has the figures that are kept."""

from types import ModuleType

import pytest

from research import canary_bounds, gap_beside, presets
from research.figures import Figures


@pytest.mark.parametrize("measured", [canary_bounds, gap_beside, presets], ids=lambda module: module.__name__)
def test_a_page_has_what_was_measured(measured: ModuleType) -> None:
    page = measured.PAGE.read_text(encoding="utf-8")
    kept = (measured.Figures if measured is presets else Figures)(measured.FIGURES)
    assert measured.written(page, kept) == page, f"python -m {measured.__name__} --write"
