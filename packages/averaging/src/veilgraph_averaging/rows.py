"""What an averaging job sends, and reveals."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from veilgraph.core.types import Kind
from veilgraph.paradigms.horizontal.rows import COLUMN_ROWS
from veilgraph.paradigms.union.rows import EDGES
from veilgraph.protocol import messages as table
from veilgraph.protocol.messages import Condition, MessageSpec, Revelation, WireFormat
from veilgraph_averaging.settings import AveragingJob


def _paradigm(_: AveragingJob) -> str:
    return "paradigm=averaging"


# fmt: off
WEIGHTS: Final = Revelation[AveragingJob](
    "averaged-weights", "In every round the server learns summed changes of weights, losses and numbers of training "
    "nodes, and every holder the weights and mean loss, which tell of what was trained on; two sums that differ by a "
    "holder tell its number of training nodes; with averaging.privacy all is made of noisy gradients, without losses "
    "and counts.",
    _paradigm)
SCORES: Final = Revelation[AveragingJob](
    "score-tallies", "The server and every holder learn, at every evaluation, summed losses, confusion matrices of "
    "each split and score histograms, with train.class_weights=balanced also the training nodes of each class before "
    "the first round; if one sum leaves a holder out, its own follow.", _paradigm)
TWO: Final = Revelation[AveragingJob](
    "single-updates", "A sum may be of two holders: each has the other's part of averaged weights and scores exactly.",
    lambda job: f"averaging.threshold={job.threshold}")

TALLIES: Final = Revelation[AveragingJob](
    "task-tallies", "The server and every holder learn, at every evaluation of each split, summed losses and what "
    "judges the task: with values numbers and sums of targets, of errors and of their squares; with links score "
    "histograms of pairs with and without an edge; with graphs confusion matrices, score histograms and, with "
    "train.class_weights=balanced, training graphs of each class; with another package's task what that says; if one "
    "evaluation leaves a holder out, its own follow.",
    lambda job: f"averaging.task.name={job.averaging.task.name}")
TARGETS: Final = Revelation[AveragingJob](
    *table.TARGET_SUMS, lambda job: f"averaging.task.name={job.averaging.task.name} without low and high")

CONFIRMED: Final = Revelation[AveragingJob](EDGES.name, EDGES.statement, lambda _: "averaging.symbols")
COUNTERPARTS: Final = Revelation[AveragingJob](
    "counterpart-symbols", "At each edge that both ends' holders have, a holder learns the symbol of the other end: "
    "its label under randomised response with the job's ε, the same in all jobs of a ledger.",
    lambda job: "" if job.label_privacy is None else f"label_privacy.epsilon={job.label_privacy.epsilon:g}")
TRAINED_ENDS: Final = Revelation[AveragingJob](
    "trained-counterparts", "A holder learns which of another holder's nodes, at the ends of edges that both have, are "
    "trained on.", lambda _: "averaging.symbols.answers=trained")

CLASSES: Final = Condition[AveragingJob]("`averaging.task: classes`", lambda job: job.averaging.task.name == "classes")
NOISED: Final = Condition[AveragingJob]("`averaging.privacy`", lambda job: job.averaging.privacy is not None)
BARE: Final = NOISED.otherwise("no `averaging.privacy`")
SYMBOLS: Final = Condition[AveragingJob]("`averaging.symbols`", lambda job: job.averaging.symbols is not None)
AVERAGED: Final = SYMBOLS.otherwise("")  # the usual job, of which nothing is said
TRAINED: Final = Condition[AveragingJob](
    "`answers: trained`", lambda job: job.averaging.symbols is not None and job.averaging.symbols.answers == "trained")
OTHERS: Final = CLASSES.otherwise("another `averaging.task`")
SUMS_BEFORE: Final = Condition[AveragingJob](
    "`averaging.task: values` without bounds",
    lambda job: bool(job.averaging.task.sums_before))
BALANCED: Final = Condition[AveragingJob](
    "`class_weights: balanced`", lambda job: job.train.class_weights == "balanced"
)
OF_TWO: Final = Condition[AveragingJob]("t = 2", lambda job: job.threshold <= 2)
GIVEN: Final = Condition[AveragingJob]("t < P, nothing at home", lambda job: job.gives_checkpoints is not None)
_MASKED: Final = (
    "Uniform by itself, under a mask of the sender's own and one with every other holder; they come off in the sum of "
    "those who sent theirs, of t holders at least. Fewer than t holders that collude with the server learn no more."
)
_SHARES: Final = "Made of random numbers, and sealed for one holder each; t of n shares give a key or a mask back."
_OPENED: Final = (
    "Of every holder one of two: its own mask if it is in the sum, its key of masks if it is not. Holders compare by "
    "signatures whom they were told of, so that the server never has both."
)

_NOISY: Final = (
    "Differential privacy of the sender's own nodes, paid for in its ledger: by its own noise it holds against the "
    "server and all others together, who may take the masks off; with `joint_noise` noise is a share, and needs them."
)
_AS_ALL: Final = "Under masks, as all sums."
_NEEDED: Final = "The receiver needs them to go on, and to judge the model."
_BEHIND: Final = "the checkpoint of all for one that rounds were made without: weights, the best ones and their score"
_TOLD: Final = "The server tells every holder that stays the same."
_CHECKPOINT: Final = (
    WireFormat("0, 1", "float64 [weights and best weights]", "set-up, resumed, to a holder without the checkpoint"),
    WireFormat("0, 2", "int64 [6]", "the same"),
)

_Size = tuple[str, str, str, str]  # tag, the type of what is opened, its shape, and when
_ROUND: Final[_Size] = ("sum, 0", "real", "[W + 2]", "every round")
_CLASS_TALLY: Final = "[3 + 3C² + 4KB]"


def _at_evaluations(shape: str, of: str = "") -> _Size:
    return "sum, 0", "float64", shape, f"every evaluation{of}"


def _before_training(tag: str, shape: str) -> _Size:
    return tag, "float64", shape, "before the first round"


def _sum_rows(
    up: str, down: str, why: str, told: tuple[Revelation[AveragingJob], ...],
    when: tuple[Condition[AveragingJob], ...], *sizes: _Size, paid: bool = False,
) -> tuple[MessageSpec[AveragingJob], ...]:
    """Make two rows: what holders add up under masks (``up``), and what the server makes of the sum (``down``)."""
    begin = [WireFormat("0, 0", "real [W]", "set-up")] if _ROUND in sizes else []
    added = [WireFormat(tag, f"ring {shape}", moment) for tag, _, shape, moment in sizes]
    opened = [WireFormat(tag, f"{kind} {shape}", moment) for tag, kind, shape, moment in sizes]
    return (
        MessageSpec(Kind.MASKED, table.TO_SERVER, up, "mask", why, told, when, paid=paid, forms=tuple(added)),
        MessageSpec(Kind.AVERAGED, table.FROM_SERVER, down, "noise" if paid else "none", _NEEDED, told, when,
            forms=(*begin, *opened)),
    )


def _class_count_rows(
    what: str, told: Revelation[AveragingJob], when: Condition[AveragingJob]
) -> tuple[MessageSpec[AveragingJob], ...]:
    return _sum_rows(f"masked numbers of training {what} of each class", f"how many training {what} each class has",
        _AS_ALL, (told,), (BALANCED, when), _before_training("1, 0", "[C]"))


_LISTED: Final = (
    "The receiver reads those that are edges of its own, and learns that the sender has them; of others it can test "
    "pairs of ids that it guesses, one end of which is its own node. There is padding among them."
)
_SYMBOL: Final = (
    "Local differential privacy, paid for in the sender's ledger, once for life: ε bounds what anybody can infer from "
    "it of the node's own label, with `answers: all` also of whether it is trained on."
)
_SYMBOL_ROWS: Final[tuple[MessageSpec[AveragingJob], ...]] = (
    MessageSpec(Kind.NODE_LIST, table.TO_HOLDER, "hashes of the sender's edges with the receiver's nodes, and padding",
        "none", _LISTED, (CONFIRMED,), (SYMBOLS,),
        forms=(WireFormat("0, 0", "uint8 [edges, rounded up; 16]", "set-up"),)),
    MessageSpec(Kind.PERTURBED_LABELS, table.TO_HOLDER, "a symbol for each edge that both have: its end's label under "
        "randomised response", "noise", _SYMBOL, (COUNTERPARTS,), (SYMBOLS,), paid=True,
        forms=(WireFormat("0, 0", "uint8 [edges that both have]", "set-up"),)),
    MessageSpec(Kind.PERTURBED_LABELS, table.TO_HOLDER, "whether that end is trained on", "none",
        "Not protected: who is not trained on sends no symbol.", (TRAINED_ENDS,), (TRAINED,)),
)

# What is summed, and the keys and shares of every sum
_SUM_ROWS: Final[tuple[MessageSpec[AveragingJob], ...]] = (
    table.judgement(table.LABELLED_TO_SERVER),
    # Keys and shares of every sum
    MessageSpec(Kind.KEY, table.TO_HOLDER, "a public key that the sender's signatures are checked with; a half of the "
        "pair's secret", "random", "No data went in.",
        forms=(WireFormat("0, 2", "uint8 [32]", "set-up"), WireFormat("0, 3", "uint8 [32]", "set-up"))),
    MessageSpec(Kind.KEY, table.TO_SERVER, "public keys of a sum, a commitment to the own mask, signed", "random",
        "No data went in; keys are new in every sum.", forms=(WireFormat("sum, 1", "uint8 [160]", "every sum"),)),
    MessageSpec(Kind.KEY, table.FROM_SERVER, "those of all holders", "random", "No data went in.",
        forms=(WireFormat("sum, 2", "uint8 [P, 160]", "every sum"),)),
    MessageSpec(Kind.MASK_SHARE, table.TO_SERVER,
        "sealed shares of the sender's key of masks and own mask; keys of its pairs under that key", "random", _SHARES,
        forms=(WireFormat("sum, 0", "uint8 [P, 112]", "every sum"),)),
    MessageSpec(Kind.MASK_SHARE, table.TO_SERVER, "one share of every holder's key of masks or own mask", "random",
        _OPENED,
        forms=(WireFormat("sum, 2", "uint8 [P, 32]", "every sum"),)),
    MessageSpec(Kind.MASK_SHARE, table.FROM_SERVER, "what others sealed for the receiver", "random", _SHARES,
        forms=(WireFormat("sum, 1", "uint8 [P, 80]", "every sum"),)),
    MessageSpec(Kind.CONTROL, table.FROM_SERVER, "who is in the sum, and the holders' signatures of that", "public",
        "It tells who was there in time.",
        forms=(WireFormat("sum, 1", "bool [P]", "every sum"), WireFormat("sum, 3", "uint8 [P, 64]", "every sum"))),
    MessageSpec(Kind.CONTROL, table.TO_SERVER, "a signature of who is in the sum", "public", "No data went in.",
        forms=(WireFormat("sum, 2", "uint8 [64]", "every sum"),)),
    MessageSpec(Kind.CONTROL, table.TO_SERVER, "the survivors of sums that were opened in earlier sessions", "public",
        "The server opened these sums; a sum that is made again has the same survivors.",
        forms=(WireFormat("0, 4", "uint8 [sums, 25 + P]", "set-up, resumed, t < P"),)),
    # What is summed
    *_sum_rows(
        "masked changes of weights, loss and number of training nodes; masked losses, class counts and score "
        "histograms",
        "the weights that follow, and the mean loss; summed losses, class counts and score histograms",
        _MASKED, (WEIGHTS, SCORES), (CLASSES, BARE), _ROUND, _at_evaluations(_CLASS_TALLY)),
    *_class_count_rows("nodes", SCORES, CLASSES),
    *_class_count_rows("graphs", TALLIES, OTHERS),
    *_sum_rows(
        "masked noisy sums of clipped gradients of sampled training nodes, and 1 where there are labels",
        "the weights that follow of noisy gradients alone", _NOISY, (WEIGHTS,), (NOISED,), _ROUND, paid=True),
    *_sum_rows(
        "masked changes of weights, loss and number of training examples; masked losses and what the task counts",
        "the weights that follow, and the mean loss; summed losses and what the task counts",
        _AS_ALL, (WEIGHTS, TALLIES), (OTHERS,), _at_evaluations("[15]", ", values"),
        _at_evaluations("[3 + 6·bins]", ", links"), _at_evaluations(_CLASS_TALLY, ", graphs")),
    *_sum_rows("masked sums of training targets", "sums of training targets", _AS_ALL, (TARGETS,), (SUMS_BEFORE,),
        _before_training("1 … 2, 0", "[3]; [1]")),
    MessageSpec(Kind.AVERAGED, table.FROM_SERVER, "that of two holders", "none", table.EXACTLY, (TWO,), (OF_TWO, BARE)),
    MessageSpec(Kind.AVERAGED, table.FROM_SERVER, "that of two holders, noised", "noise", table.EXACTLY, (TWO,),
        (OF_TWO, NOISED)),
    MessageSpec(Kind.AVERAGED, table.TO_HOLDER,
        _BEHIND, "none", _TOLD, (WEIGHTS, SCORES), (CLASSES, BARE, GIVEN), forms=_CHECKPOINT),
    MessageSpec(Kind.AVERAGED, table.TO_HOLDER, _BEHIND, "none", _TOLD, (WEIGHTS, TALLIES), (OTHERS, GIVEN)),
    MessageSpec(Kind.AVERAGED, table.TO_HOLDER, _BEHIND, "noise", _TOLD, (WEIGHTS,), (NOISED, GIVEN)),
)
ROWS: Final[tuple[MessageSpec[AveragingJob], ...]] = (
    *table.COMMON_ROWS,
    *(row if NOISED in row.when else replace(row, when=(*row.when, AVERAGED)) for row in _SUM_ROWS),
    *_SYMBOL_ROWS,
    *COLUMN_ROWS,
)
# fmt: on
