"""The network that learns from perturbed features and labels (LPGNN): KProp, a GCN layer, label denoising."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from veilgraph.core.settings import PartyName, Settings
from veilgraph.nn.settings import Probability
from veilgraph.privacy.local.settings import FeatureReleaseSettings


class KPropSettings(Settings):
    """Two layers: KProp (LPGNN, Algorithm 2) with a linear map and an activation as UPDATE, and a GCN layer.

    ``hops: 0`` makes the first a GCN layer as well, with the usual self-loops: the network of GCN+RAW.
    """

    hops: int = Field(8, ge=0, le=128, description="K: how often a node's neighbours, itself excluded, are aggregated")
    aggregate: Literal["gcn", "mean", "sum"] = Field(
        "gcn", description="AGGREGATE without self-loops: D^-1/2·A·D^-1/2, D^-1·A or A; hops: 0 uses none"
    )
    dim: int = Field(64, ge=1, le=4096, description="width of the hidden embedding")
    activation: Literal["none", "tanh", "relu", "sigmoid"] = "relu"
    dropout: Probability = Field(0.8, description="of the hidden embedding")


class DenoiseSettings(Settings):
    """Training on labels that went through randomised response."""

    denoise_steps: int = Field(
        8,
        ge=0,
        le=128,
        description="K_y: hops over which labels and predictions are aggregated before they are compared, so that the "
        "labels' noise cancels out; 0: the loss is corrected for the noise and nothing else",
    )
    targets: Literal["soft", "hard"] = Field(
        "hard", description="what the loss compares with: the aggregated labels, or the class that has most of them"
    )


class LabelReleaseSettings(DenoiseSettings):
    """Labels are private too: the holder that has them releases each a single time, by randomised response."""

    holder: PartyName = Field(description="who has the labels; the job's label_holder, which learns, has none")
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False, description="ε of one node's label")]


class LocalSettings(Settings):
    """LPGNN: every holder's nodes perturb their features once; the label holder, which knows the graph, learns."""

    features: FeatureReleaseSettings | None = Field(None, description="how features are released; must be given")
    labels: LabelReleaseSettings | None = Field(None, description="null: the label holder has the labels itself")
    network: KPropSettings = KPropSettings()
