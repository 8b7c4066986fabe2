"""What a sealed job's messages hold: nothing to mount an attack on but what the label holder is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.audit.source import Source
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.twin import trained_twin
from veilgraph.protocol.job import JobSettings


class SealedSource(Source):
    """The predictions, and for comparison a network like the job's on all that its holders have."""

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        own = sealed(job)
        like = own.model_copy(
            update={
                "output": "probabilities",
                "train": own.train.model_copy(update={"epochs": epochs}),
                "data": own.data.model_copy(update={"holders": (everything.party,), "label_holder": None}),
            }
        )
        found = trained_twin(like, [replace(everything, val_mask=None, test_mask=None)]).predict()
        assert found is not None
        return found.to(torch.float64)


SEALED: Final = SealedSource()
