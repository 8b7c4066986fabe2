"""Our mechanisms, held to what all of them promise."""

from typing import Any, ClassVar

from veilgraph_node_dp.conformance import FeatureMechanismConformance
from veilgraph_node_dp.feature_settings import FEATURE_MECHANISMS


class TestMultiBit(FeatureMechanismConformance):
    name = "multi-bit"


class TestOneBit(FeatureMechanismConformance):
    name = "one-bit"


class TestLocalGaussian(FeatureMechanismConformance):
    name = "gaussian"
    said: ClassVar[dict[str, Any]] = {"delta": 1e-5}


class TestLocalLaplace(FeatureMechanismConformance):
    name = "laplace"


def test_all_of_ours_are_here() -> None:
    here = [each for each in globals().values() if isinstance(each, type)]
    local = {each.name for each in here if hasattr(each, "said") and hasattr(each, "name")}
    assert local == set(FEATURE_MECHANISMS.own)
