"""What a local job sends, and reveals."""

from __future__ import annotations

from typing import Final

from veilgraph.core.types import Kind
from veilgraph.paradigms.node_dp.settings import NodeDpJob
from veilgraph.protocol.revelations import PERTURBED_FEATURES, Told
from veilgraph.protocol.rows import ALIGNMENT_ROWS, COMMON_ROWS, PERTURBED, Ends, Fact, Form, Row, released_features


def _features(job: NodeDpJob) -> str:
    release = job.release.features
    return "" if release is None else f"release.features.epsilon={release.epsilon:g}"


def _labels(job: NodeDpJob) -> str:
    release = job.release.labels
    return "" if release is None else f"release.labels.epsilon={release.epsilon:g}"


def _of_labels(job: NodeDpJob) -> tuple[str, ...]:
    return () if job.release.labels is None else (job.release.labels.holder,)


LABELS: Final = Told[NodeDpJob](
    "perturbed-labels",
    "The label holder sees labels under randomised response with the job's ε, and in the clear "
    "which nodes have one for training or validation.",
    _labels,
    _of_labels,
)
LABELS_RELEASED: Final = Ends[NodeDpJob](
    "holder of private labels",
    "learner",
    lambda job, sender, receiver: sender in _of_labels(job) and receiver == job.data.label_party,
)
PRIVATE: Final = Fact[NodeDpJob]("`release.labels`", lambda job: job.release.labels is not None)
ROWS: Final[tuple[Row[NodeDpJob], ...]] = (
    *COMMON_ROWS,
    *ALIGNMENT_ROWS,
    released_features(Told[NodeDpJob](*PERTURBED_FEATURES, _features, lambda job: job.releasing)),
    Row(
        Kind.PERTURBED_LABELS,
        LABELS_RELEASED,
        "labels under randomised response, a single time; who has one, and is trained on, in the clear",
        "noise",
        PERTURBED,
        (LABELS,),
        (PRIVATE,),
        paid=True,
        forms=(Form("0, 0", "uint8 [N, 2]; with 255 classes or more int64", "[release](#a-local-job)"),),
    ),
)
