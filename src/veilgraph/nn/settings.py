"""The split network: the ``model`` part of a job."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from veilgraph.core.settings import Settings
from veilgraph.privacy.local.settings import FeatureReleaseSettings

Probability = Annotated[float, Field(ge=0, lt=1)]


MAX_DETECTED_BITS: Final = 12
"""Fractional bits that features have at most where nothing says how many."""


class InitialSettings(Settings):
    """Initial embeddings h^0 (docs/protocol.md)."""

    method: Literal["collaborative", "individual", "secure-sum", "perturbed"] = "collaborative"
    release: FeatureReleaseSettings | None = Field(
        None, description="perturbed only, which needs one: how every holder's nodes release their features"
    )
    learning_rate: float = Field(0.1, gt=0, description="SGD on the secret-shared W; collaborative only")
    momentum: float = Field(0.9, ge=0, lt=1, description="collaborative only")
    weight_decay: float = Field(
        0.0, ge=0, le=0.5, description="W ← (1 − learning_rate·weight_decay)·W each step; collaborative only"
    )
    init_std: float | None = Field(None, gt=0, description="of W's normal initialisation; default √(2/(F + d))")
    activation: Literal["none", "tanh", "relu", "sigmoid"] = Field("none", description="at each holder, on h^0")
    dropout: Probability = Field(0.0, description="at each holder, on h^0")
    feature_bits: int | None = Field(
        None,
        ge=0,
        le=24,
        description="fractional bits of x in the ring; default: as many as x needs, at most 12; with privacy 12",
    )
    gradient_bits: int = Field(28, ge=8, le=40, description="fractional bits of the scaled gradient in the ring")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.release is None) == (self.method == "perturbed"):
            raise ValueError(
                "method='perturbed' needs a release, which says how nodes perturb their features; give at least its "
                "epsilon"
                if self.release is None
                else f"release is for method='perturbed', not {self.method!r}; leave it out"
            )
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"learning_rate·weight_decay = {self.learning_rate * self.weight_decay:g} must stay below 1: each step "
                "multiplies W by one minus it; lower one of them"
            )
        return self

    @property
    def is_joint(self) -> bool:
        """Whether the holders compute one h^0 together; else each computes its own, of what it has."""
        return self.method in ("collaborative", "secure-sum")


class LocalSettings(Settings):
    """Local embeddings: K hops over the holder's own edges (VFGNN 3.3)."""

    model: Literal["sage-mean", "sage-lstm", "sage-pool", "gcn", "gat", "gin", "appnp", "custom"] = "sage-mean"
    hops: int = Field(2, ge=0, le=32, description="K, per exchange round; 0 leaves the edges unused")
    activation: Literal["none", "tanh", "relu", "sigmoid"] = "tanh"
    normalize: bool = Field(True, description="rows of the last round's output to length 1 (Algorithm 2, line 10)")
    dropout: Probability = Field(0.0, description="before every hop")
    teleport: float = Field(0.1, ge=0, le=1, description="appnp's α")
    heads: int = Field(4, ge=1, description="gat's attention heads; must divide dim")
    fanout: int | None = Field(
        None,
        ge=1,
        description="with train.batch_size: at most so many neighbours of a node, drawn anew in each step; null: all",
    )
    start: Literal["glorot", "average"] = Field(
        "glorot", description="first weights: random, or [I/2, I/2], the mean of a node and its neighbours (sage-mean)"
    )
    learning_rate: float | None = Field(None, gt=0, description="Adam's, for the hops; default: train.learning_rate")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start == "average" and self.model != "sage-mean":
            raise ValueError(
                f"start='average' is for model='sage-mean', not {self.model!r}: only there it is the mean of a node "
                "and its neighbours; leave start out or choose sage-mean"
            )
        return self


class CombineSettings(Settings):
    """How the server combines the local embeddings (VFGNN 3.4)."""

    strategy: Literal["mean", "concat", "regression", "degree-weighted"] = "mean"
    masked: bool | None = Field(
        None, description="hide single embeddings from the server; default: wherever the strategy is linear"
    )
    bits: int = Field(32, ge=8, le=44, description="fractional bits of a masked embedding in the ring")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.masked and not self.linear:
            raise ValueError(
                "strategy 'concat' cannot be masked: the server needs each embedding by itself; "
                "set masked to false, or choose mean, regression or degree-weighted"
            )
        return self

    @property
    def linear(self) -> bool:
        """Whether the server needs no more than the sum of what the holders prepare."""
        return self.strategy != "concat"

    @property
    def is_masked(self) -> bool:
        """``masked`` with its default filled in."""
        return self.linear if self.masked is None else self.masked


class ServerSettings(Settings):
    """The server's deep layers; the paper's network is (d, d, |C|) (VFGNN 4.1)."""

    layers: int = Field(1, ge=0, le=8, description="hidden layers of width dim at the server")
    activation: Literal["none", "tanh", "relu", "sigmoid"] = "sigmoid"
    dropout: Probability = 0.5


class HeadSettings(Settings):
    """The label holder's output layer."""

    logit_hops: int = Field(0, ge=0, le=32, description="extra propagation of the logits over its own edges")
    logit_teleport: float = Field(0.1, ge=0, le=1)
    dropout: Probability = 0.0


class ModelSettings(Settings):
    """The split network."""

    dim: int = Field(64, ge=1, le=4096, description="d, the width of every embedding")
    rounds: int = Field(1, ge=1, le=64, description="R; with R > 1 holders see combined embeddings of earlier rounds")
    initial: InitialSettings = InitialSettings()
    local: LocalSettings = LocalSettings()
    combine: CombineSettings = CombineSettings()
    server: ServerSettings = ServerSettings()
    head: HeadSettings = HeadSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rounds > 1 and self.combine.strategy == "concat":
            raise ValueError(
                "rounds > 1 sends the combined embedding back as the next input of width dim, and concat makes it "
                "wider; set rounds to 1 or choose mean, regression or degree-weighted"
            )
        if self.local.model == "gat" and self.dim % self.local.heads:
            raise ValueError(f"local.heads={self.local.heads} does not divide dim={self.dim}; change one of them")
        return self
