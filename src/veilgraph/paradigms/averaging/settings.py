"""A job of averaging: every holder has a graph of its own, with features in the same columns and no node in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from veilgraph.core.settings import Settings
from veilgraph.core.types import PartyId
from veilgraph.graph.settings import PartitionSettings
from veilgraph.nn.activation import Activation
from veilgraph.nn.dropout import Probability
from veilgraph.nn.local.build import AnyLocalSettings, FirstSettings
from veilgraph.nn.local.custom import CustomLocal
from veilgraph.paradigms.averaging.rules import AnyRuleSettings
from veilgraph.paradigms.averaging.rules.fedavg import FedAvgSettings
from veilgraph.protocol.job import JobSettings, job_of


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
        self.local.kind.check(self.local, self.dim)
        return self


class AveragingSettings(Settings):
    """How holders' weights become one, under masks."""

    rule: AnyRuleSettings = FedAvgSettings()
    local_epochs: int = Field(5, ge=1, le=1000, description="E: epochs of a holder's own training in each round")
    threshold: int | None = Field(
        None,
        ge=1,
        description="t: how many holders must be there in a round from beginning to end, more than half of them; fewer "
        "than t that collude with the server learn no single holder's weights; null: more than two thirds",
    )
    patience_s: float = Field(
        60.0,
        gt=0,
        description="how long the server waits for each message of a sum, of all holders together, before it goes on "
        "without those from whom none came",
    )


_BY_NODES: Final = PartitionSettings(by="nodes")
_WAITS: Final = 6
"""Who is left out of a sum waits for its five messages, and for what follows."""


class AveragingJob(JobSettings):
    """Holders train one network on graphs of their own; of their weights the server learns sums."""

    paradigm: Literal["averaging"] = "averaging"
    averaging: AveragingSettings = Field(AveragingSettings(), description="how weights are averaged")
    model: NetworkSettings = Field(NetworkSettings(), description="the network")

    @model_validator(mode="before")
    @classmethod
    def _divide(cls, data: object) -> object:
        """A data set is divided by nodes where nothing else is said, and that is part of the job."""
        if not isinstance(data, Mapping):
            return data
        given: Any = data.get("data", {})
        if not isinstance(given, Mapping) or not isinstance(given.get("partition", {}), Mapping):
            return data
        partition = dict(given.get("partition", {}))
        if given.get("graphs") or given.get("parties") or not isinstance(given.get("holders", 2), int):
            if partition == _BY_NODES.model_dump():  # of the job before the holders brought their graphs
                return {**data, "data": {key: value for key, value in given.items() if key != "partition"}}
            return data
        return {**data, "data": {**given, "partition": {"by": "nodes", **partition}}}

    def _check_parts(self) -> None:
        partition = self.data.partition
        if self.data.dataset is not None and (partition.by == "edges" or partition.knows != "own"):
            raise ValueError(
                f"data.partition.by={partition.by!r} with knows={partition.knows!r} gives holders nodes in common, and "
                "with paradigm='averaging' they have none; choose by nodes or labels, and leave knows out"
            )

    def _check_unused(self) -> None:
        super()._check_unused()
        if self.train.class_weights != "none" or self.train.select_by == "auc":
            raise ValueError(
                "train.class_weights=balanced and train.select_by=auc do not follow from sums over the holders, and "
                "these are all that they open; choose none, and accuracy, f1 or loss"
            )
        holders, threshold = len(self.data.names), self.threshold
        if not holders < 2 * threshold <= 2 * holders:
            raise ValueError(
                f"averaging.threshold={threshold} must be more than half of the {holders} holders, and no more than "
                f"all; choose {holders // 2 + 1} to {holders}"
            )
        if self.timeout_s < _WAITS * self.averaging.patience_s:
            raise ValueError(
                f"timeout_s={self.timeout_s:g} must be at least {_WAITS} times averaging.patience_s="
                f"{self.averaging.patience_s:g}: who is left out of a sum waits for the end of it; raise the one or "
                "lower the other"
            )
        if self.rule_sends_gradients and self.averaging.local_epochs > 1:
            raise ValueError(
                f"averaging.local_epochs={self.averaging.local_epochs} with rule fedsgd: a gradient is of the weights "
                "that the server sent; set local_epochs to 1, or choose another rule"
            )

    @property
    def threshold(self) -> int:
        """t, of holders."""
        stated = self.averaging.threshold
        return 2 * len(self.data.names) // 3 + 1 if stated is None else stated

    @property
    def rule_sends_gradients(self) -> bool:
        """Whether a holder gives a gradient and takes no step of its own."""
        return self.averaging.rule.build(0, self.train.learning_rate).sends_gradients

    @property
    def is_aligned(self) -> bool:
        return False

    @property
    def is_custom(self) -> bool:
        return issubclass(self.model.local.kind, CustomLocal)

    @property
    def scoring(self) -> tuple[PartyId, ...]:
        return self.data.names


def averaging(job: JobSettings) -> AveragingJob:
    """A job as what it is; raises ``ConfigError`` where it is of another paradigm."""
    return job_of(AveragingJob, job)
