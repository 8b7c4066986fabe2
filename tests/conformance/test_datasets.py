"""Our data sets that need no files, held to what all of them promise."""

from collections.abc import Mapping
from typing import Any, ClassVar

from veilgraph_testing.dataset import DataSetConformance


class TestDigits(DataSetConformance):
    name = "digits"


class TestSynthetic(DataSetConformance):
    name = "synthetic"


class TestBlockModel(DataSetConformance):
    name = "block-model"
    said: ClassVar[Mapping[str, Any]] = {"block_model": {"nodes": 300, "classes": 3, "features": 12}}


class TestPayments(DataSetConformance):
    name = "payments"
    said: ClassVar[Mapping[str, Any]] = {
        "payments": {"customers": 600, "transfers": 6_000, "banks": 2, "overlap": 0.3, "laundering": 0.15}
    }
