"""``apge``: an autoencoder that is trained to hide (Li et al. 2020, arXiv:2008.13072)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from veilgraph_embeddings.autoencoder import Training, Weights, train
from veilgraph_embeddings.method import Embedded, Method, MethodSettings, Tools
from veilgraph_embeddings.methods.plain import AutoencoderSettings
from veilgraph_embeddings.world import World


class ApgeSettings(AutoencoderSettings):
    """How much is done to hide."""

    hide_weight: float = Field(1.0, ge=0)
    """loss weight of fooling the adversary"""
    match_weight: float = Field(3.0, ge=0)
    """loss weight of equal code means and covariances for all hidden values; not in the paper"""
    prior_weight: float = Field(0.0, ge=0)
    """loss weight of fooling the discriminator of normal codes"""
    adversary_steps: int = Field(3, ge=1)
    """of adversary and discriminator per encoder step"""
    conditioned: bool = True
    """the decoder receives the private attribute"""


class Apge(Method[ApgeSettings]):
    """Disentangling and purging together."""

    settings: ClassVar[type[MethodSettings]] = ApgeSettings
    words: ClassVar[str] = (
        "A graph autoencoder trained against an adversary that predicts the private attribute, with a decoder that is "
        "given it. Adversarial training proves nothing: an attacker with another model, more known values or other "
        "data may find more than the attacks below."
    )

    @staticmethod
    def epochs(settings: ApgeSettings) -> int:
        """See ``Method.epochs``."""
        return settings.epochs

    @staticmethod
    def embed(world: World, settings: ApgeSettings, tools: Tools) -> Embedded:
        """See ``Method.embed``."""
        weights = Weights(
            keep=settings.keep_weight,
            links=settings.link_weight,
            features=settings.feature_weight,
            hide=settings.hide_weight,
            match=settings.match_weight,
            prior=settings.prior_weight,
            conditioned=settings.conditioned,
        )
        training = Training(
            settings.dim,
            settings.hidden,
            settings.epochs,
            settings.adversary_steps,
            settings.learning_rate,
            weights,
        )
        encoder, rows = train(world, training, tools.streams, tools.told)
        return Embedded(rows, encoder.state_dict())
