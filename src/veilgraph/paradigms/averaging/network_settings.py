"""The settings of the network that holders of averaging jobs train, a job's ``model``."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from veilgraph.core.settings import Settings
from veilgraph.nn.activation import Activation
from veilgraph.nn.dropout import Probability
from veilgraph.nn.local.build import AnyLocalSettings, FirstSettings


class NetworkSettings(Settings):
    """The network that all holders train: a linear map of the features, hops over a holder's edges, logits."""

    dim: int = Field(64, ge=1, le=4096, description="d, the width of every embedding")
    activation: Activation = Field("relu", description="after the map of the features")
    dropout: Probability = Field(0.5, description="before the hops, and before the logits")
    local: AnyLocalSettings = FirstSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("fanout", "learning_rate"):
            if (value := getattr(self.local, key)) is not None:
                raise ValueError(
                    f"local.{key}={value} is for paradigm='vertical'; leave it out: all nodes are trained on at once, "
                    "with train.learning_rate"
                )
        if self.local.kind.is_relational:
            raise ValueError(
                f"local.model={self.local.model!r} is for paradigm='vertical': it has weights for each relation of a "
                "holder, and those that are averaged must be the same at all; choose another"
            )
        self.local.kind.check(self.local, self.dim)
        return self
