"""``plain``: a graph autoencoder that keeps edges, features and the useful attribute, and hides nothing."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from veilgraph_embeddings.autoencoder import Training, Weights, train
from veilgraph_embeddings.method import Embedded, Method, MethodSettings, Tools
from veilgraph_embeddings.world import World


class AutoencoderSettings(MethodSettings):
    """A graph autoencoder: a GCN of two layers, and what its codes are to give back."""

    hidden: int = Field(64, ge=1, le=4096)
    """width of encoder's and decoder's hidden layer"""
    epochs: int = Field(150, ge=1)
    """steps over the whole graph"""
    learning_rate: float = Field(0.01, gt=0)
    """Adam's"""
    keep_weight: float = Field(4.0, ge=0)
    """loss weight of the useful attribute"""
    link_weight: float = Field(3.0, ge=0)
    """loss weight of the edges"""
    feature_weight: float = Field(0.3, ge=0)
    """loss weight of randomly projected features"""


class Plain(Method[AutoencoderSettings]):
    """Kipf & Welling 2016, with the useful attribute: ``GAE`` of Li et al. 2020."""

    settings: ClassVar[type[MethodSettings]] = AutoencoderSettings
    words: ClassVar[str] = (
        "A graph autoencoder whose codes keep edges, features and the useful attribute. Nothing is hidden: whatever "
        "features and neighbours tell of the private attribute is in them."
    )

    @staticmethod
    def epochs(settings: AutoencoderSettings) -> int:
        """See ``Method.epochs``."""
        return settings.epochs

    @staticmethod
    def embed(world: World, settings: AutoencoderSettings, tools: Tools) -> Embedded:
        """See ``Method.embed``; the hidden attribute is not read."""
        weights = Weights(settings.keep_weight, settings.link_weight, settings.feature_weight)
        training = Training(settings.dim, settings.hidden, settings.epochs, 0, settings.learning_rate, weights)
        encoder, rows = train(world, training, tools.streams, tools.told)
        return Embedded(rows, encoder.state_dict())
