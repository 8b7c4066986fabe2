"""The jobs whose results are pinned: what ships and needs no download, and small ones that touch every kind of part."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_TRAIN: Final = ("train job.yaml --out run",)
_RECORDED: Final = "train job.yaml --out run --record-views"
_WATCHED: Final = (_RECORDED, "audit run --shadows 2")
_OF_FEATURES: Final = "--attack attribute --attack known-weights --attack reconstruction --attack membership-gradient"
_ALIGNED: Final = ("data align job.yaml --out run", "resume run", "predict run --out predictions.csv")

_NOISE: Final = "its noise is drawn from the system's source"
_MASKS: Final = "the audit looks at masks, which are drawn from the system's source"
_ORDER: Final = "the alignment's secret keys give the order of rows, another in every alignment"
_BLINDED: Final = "the audit looks at noise and masks, which are drawn from the system's source"


@dataclass(frozen=True)
class Case:
    """Commands that make a run.

    Attributes:
        name: of the case.
        job: text of ``job.yaml``; empty: the commands take a shipped one, ``{jobs}/…``, or make one.
        commands: arguments of ``veilgraph``, in a folder of the case's own.
        edits: file that the first command makes → YAML whose keys it gets in place of its own.
        fixed: why the system's source of randomness gives the same bytes at every call; empty: it is as always, and the
            results may not depend on it.
        custom: trained by ``veilgraph.train`` with a local model of the user's own.
        fast: part of ``make test``.
    """

    name: str
    job: str = ""
    commands: tuple[str, ...] = _TRAIN
    edits: Mapping[str, str] = field(default_factory=dict)
    fixed: str = ""
    custom: bool = False
    fast: bool = False


def _job(*parts: str, data: str = "dataset: synthetic", train: str = "") -> str:
    """Three epochs on the synthetic graph; ``parts`` are lines of YAML."""
    return "\n".join((f"data: {{{data}}}", f"train: {{epochs: 3, patience: null, {train}}}", *parts)) + "\n"


def _model(text: str, *, dim: int = 8) -> str:
    return f"model: {{dim: {dim}, {text}}}"


SHIPPED: Final = (
    Case("digits", commands=("train {jobs}/digits.yaml --out run", "predict run --nodes 1,5,7", "report run")),
    Case("demo", commands=("demo --epochs 3 --out run",)),
    Case(
        "digits, audited",
        commands=(
            "train {jobs}/digits.yaml --out run --record-views --set train.epochs=3 --set model.dim=8",
            "audit run --attack uniformity --attack low-bits --attack link-similarity --attack label-gradient",
        ),
        fixed=_MASKS,
    ),
    Case(
        "budgets",
        commands=("budget {jobs}/cora-local.yaml",),
    ),
)

VERTICAL: Final = (
    Case(
        "collaborative, sage-mean, mean masked",
        _job(_model("local: {dropout: 0.2}")),
        fast=True,
    ),
    Case(
        "collaborative, sage-mean, audited",
        _job(_model("local: {hops: 1}"), "audit_limits: {link-similarity: 0.95}", "name: audited"),
        (_RECORDED, "audit run --shadows 2 --seed 3"),
        fixed=_MASKS,
    ),
    Case(
        "collaborative, started at the average, two server layers, float64",
        _job(
            "precision: float64",
            _model(
                "initial: {activation: relu, dropout: 0.3, weight_decay: 0.001, learning_rate: 1.0},"
                "local: {start: average, activation: relu, learning_rate: 0.001, hops: 3},"
                "server: {layers: 2, activation: tanh, dropout: 0.2}"
            ),
            data="dataset: synthetic, feature_scaling: row, holders: 3, label_holder: B",
            train="evaluate_every: 2, class_weights: balanced, select_by: auc, checkpoint_every: 1",
        ),
    ),
    Case(
        "individual, gcn, mean clear, logit hops, audited",
        _job(
            _model(
                "initial: {method: individual}, local: {model: gcn, normalize: false}, combine: {masked: false},"
                "head: {logit_hops: 2, dropout: 0.1}"
            ),
            data="dataset: synthetic, feature_scaling: standard",
        ),
        (_RECORDED, f"audit run {_OF_FEATURES}"),
        fixed=_MASKS,
    ),
    Case(
        "secure-sum, gat, regression masked",
        _job(_model("initial: {method: secure-sum}, local: {model: gat, heads: 2}, combine: {strategy: regression}")),
    ),
    Case(
        "individual, gin, regression clear",
        _job(
            _model("initial: {method: individual}, local: {model: gin}, combine: {strategy: regression, masked: false}")
        ),
    ),
    Case(
        "collaborative, appnp, degree-weighted masked, two rounds, no server layer, audited",
        _job(
            _model(
                "rounds: 2, local: {model: appnp, hops: 1, normalize: false}, combine: {strategy: degree-weighted},"
                "server: {layers: 0, dropout: 0.0}"
            )
        ),
        (_RECORDED, "audit run --adversary server+B --adversary B --attack link-combination --attack equation-solving"),
        fixed=_MASKS,
    ),
    Case(
        "individual, sage-pool, degree-weighted clear",
        _job(
            _model(
                "initial: {method: individual}, local: {model: sage-pool},"
                "combine: {strategy: degree-weighted, masked: false}"
            )
        ),
    ),
    Case(
        "collaborative, sage-lstm, concat, three holders",
        _job(
            _model("local: {model: sage-lstm, hops: 1}, combine: {strategy: concat}", dim=4),
            data="dataset: synthetic, holders: 3, feature_proportions: [1, 2, 3], edge_proportions: [3, 2, 1]",
        ),
    ),
    Case(
        "a local model of the user's own",
        _job(_model("initial: {method: individual}, local: {model: custom}")),
        commands=(),
        custom=True,
    ),
    Case(
        "batches with a fanout",
        _job(
            _model("local: {fanout: 3, dropout: 0.1}"),
            train="batch_size: 64, refresh_every: 2",
        ),
    ),
    Case(
        "block model, mean masked, split by shares",
        _job(
            _model("initial: {method: individual}, local: {hops: 1}"),
            data="dataset: block-model, block_model: {nodes: 300, classes: 3, features: 6}, split: [0.3, 0.2, 0.5]",
        ),
    ),
)

PRIVATE: Final = (
    Case(
        "perturbed labels",
        _job(
            _model("initial: {method: individual}, head: {logit_hops: 1}"),
            "label_privacy: {epsilon: 2.0}",
            data="dataset: synthetic, split: [0.5, 0.25, 0.25], stratify: false",
        ),
        (*_TRAIN, "predict run --nodes 0,1", "budget job.yaml"),
        fixed=_NOISE,
    ),
    Case(
        "noise on votes, with canaries, audited",
        _job(
            "paradigm: sealed",
            "model: {network: linear, blocks: [pooled.1], edge_slots: 8192}",
            "output: margins",
            "privacy: {unit: edge, epsilon_total: 4, canaries: 40}",
            train="select_by: last",
        ),
        (*_WATCHED, "predict run --nodes 0,1", "budget job.yaml --total 1,16"),
        fixed=_BLINDED,
    ),
)


def _horizontal(
    text: str, *, parts: str = "overlap: 0.2", data: str = "", train: str = "", batch_norm: str = "false"
) -> str:
    return _job(
        "paradigm: horizontal",
        f"model: {{dim: 8, {text}, server: {{batch_norm: {batch_norm}, dropout: 0.2}}}}",
        data=f"dataset: synthetic, partition: {{{parts}}}, {data}",
        train=train,
    )


HORIZONTAL: Final = (
    Case("max of linear messages, sum, audited", _horizontal("message: linear"), _WATCHED, fixed=_MASKS),
    Case("secure max, gated, three holders", _horizontal("combine: secure-max, update: gated", data="holders: 3")),
    Case("min of plain messages, concat", _horizontal("message: none, aggregate: min, update: concat")),
    Case(
        "mean, difference, disjoint, by labels, batch norm",
        _horizontal(
            "aggregate: mean, update: difference, edges: disjoint",
            parts="by: labels, mixed: 0.3, knows: all",
            batch_norm="true",
            train="select_by: f1",
        ),
    ),
    Case(
        "sum, deduplicated, three layers, scaled together",
        _horizontal(
            "aggregate: sum, edges: deduplicate, layers: 3",
            data="holders: 3, feature_scaling: standard",
            train="select_by: loss",
        ),
    ),
)


def _node_dp(features: str, network: str, *, labels: str = "", data: str = "", privacy: str = "") -> str:
    return _job(
        "paradigm: node-dp",
        f"release: {{features: {{low: -6.0, high: 6.0, {features}}}, {labels}}}",
        f"model: {{{network}}}",
        *([f"privacy: {{{privacy}}}"] if privacy else []),
        data=f"dataset: synthetic, split: [0.5, 0.25, 0.25], {data}",
    )


NODE_DP: Final = (
    Case(
        "multi-bit features with canaries, audited",
        _node_dp("epsilon: 3.0, canaries: 40", "hops: 4, dim: 8"),
        _WATCHED,
        fixed=_BLINDED,
    ),
    Case(
        "one-bit features and private labels",
        _node_dp(
            "mechanism: one-bit, epsilon: 8.0",
            "hops: 2, aggregate: mean, dim: 8",
            labels="labels: {holder: C, epsilon: 2.0, denoise_steps: 2}",
            data="holders: 3, stratify: false",
        ),
        fixed=_NOISE,
    ),
    Case(
        "gaussian features, labels without denoising",
        _node_dp(
            "mechanism: gaussian, epsilon: 8.0, delta: 1.0e-4",
            "hops: 0, dim: 8",
            labels="labels: {holder: B, epsilon: 2.0, denoise_steps: 0, targets: soft}",
            data="stratify: false",
        ),
        fixed=_NOISE,
    ),
    Case(
        "laplace features, sums",
        _node_dp("mechanism: laplace, epsilon: 20.0", "hops: 1, aggregate: sum, dim: 8"),
        fixed=_NOISE,
    ),
    Case(
        "noise on the learner's edges",
        _node_dp("epsilon: 3.0", "dim: 8", privacy="unit: edge, hops: 2, epsilon_total: 16, predictions: 1"),
        (*_TRAIN, "predict run --nodes 0,1", "budget job.yaml --total 1,16"),
        fixed=_NOISE,
    ),
)

TABLES: Final = (
    Case(
        "vertical tables",
        _job(_model("local: {hops: 1}"), data="parties: {A: own/A/party.yaml, B: own/B/party.yaml}"),
        ("data export synthetic --holders 2 --overlap 0.8 --out own", "check job.yaml", *_ALIGNED),
        fixed=_ORDER,
    ),
    Case(
        "horizontal tables",
        _job(
            "paradigm: horizontal",
            "model: {dim: 8}",
            data="parties: {A: own/A/party.yaml, B: own/B/party.yaml}",
        ),
        ("data export synthetic --paradigm horizontal --holders 2 --overlap 0.2 --format parquet --out own", *_ALIGNED),
    ),
    Case(
        "local tables",
        _job(
            "paradigm: node-dp",
            "release: {features: {epsilon: 4.0, low: -6.0, high: 6.0}}",
            "model: {hops: 2, dim: 8}",
            data="parties: {A: own/A/party.yaml, B: own/B/party.yaml}",
        ),
        ("data export synthetic --holders 2 --overlap 0.9 --out own", *_ALIGNED),
        edits={
            "own/B/party.yaml": "limits: {leakage: [perturbed-features], max_epsilon: 4.0, epsilon_unit: node, "
            "epsilon_neighbours: replacement}"
        },
        fixed=_NOISE,
    ),
)

CASES: Final = {case.name: case for case in (*SHIPPED, *VERTICAL, *PRIVATE, *HORIZONTAL, *NODE_DP, *TABLES)}
"""Name → case."""
