"""What a job says of the part of a model that each holder learns at home, ``averaging.at_home``."""

from __future__ import annotations

from pydantic import Field

from veilgraph.core.settings import Settings


class AtHomeSettings(Settings):
    """After the last round a holder trains a correction of the averaged network, of its own; nothing of it is sent."""

    epochs: int = Field(
        300, ge=1, le=10_000, description="of Adam; the best on the holder's validation nodes is kept, or none of them"
    )
    hops: int = Field(1, ge=0, le=16, description="means of neighbours, over the holder's own edges")
    dim: int = Field(16, ge=1, le=4096, description="its width")
    learning_rate: float = Field(0.01, gt=0, description="Adam's")
    weight_decay: float = Field(5e-4, ge=0, description="as L2")
