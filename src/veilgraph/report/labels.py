"""Perturbed labels for the terminal: what a label costs in a job with ``label_privacy``, and what that hides."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from veilgraph.core.words import listed
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.privacy.local.settings import LabelPrivacySettings
from veilgraph.protocol.job import JobSettings
from veilgraph.run.run_directory import Record

MECHANISM: Final = "randomised response"
OF_SEVERAL: Final = "where several holders have a node's label, each perturbs it by itself, and their ε add up"


def compared_with(job: JobSettings) -> str:
    """Which labels the scores of a job with ``label_privacy`` compare with, in a sentence."""
    if _tests_are_true(job):
        return (
            "Training and validation figures compare with perturbed labels, and are no accuracies against the true "
            "ones; test figures compare with true labels."
        )
    return (
        "All figures, test figures among them, compare with perturbed labels, and are no accuracies against the true "
        "ones."
    )


def against(job: JobSettings) -> str:
    """What is said behind a figure of a run on test nodes; empty where it compares with true labels."""
    return "" if job.label_privacy is None or _tests_are_true(job) else " against perturbed labels"


def expected_true(job: JobSettings, accuracy: float | None, classes: int) -> str:
    """What accuracy on test nodes against true labels is to be expected, in a sentence; empty where it is known."""
    if job.label_privacy is None or accuracy is None or _tests_are_true(job):
        return ""
    expected = LabelResponse(job.label_privacy.epsilon, classes).expected_accuracy(accuracy)
    return f"Against true labels a test accuracy of about {expected:.1%} is to be expected (docs/privacy.md#labels)."


def label_table(job: JobSettings, private: LabelPrivacySettings) -> Table:
    """What a label costs at every holder."""
    table = Table(title="Label privacy", title_justify="left", caption_justify="left")
    table.caption = "Of one label, perturbed a single time in all jobs with this ε; δ = 0."
    for heading in ("holder", "perturbs", "mechanism", "per-release ε", "total ε"):
        table.add_column(heading, justify="right" if heading.endswith("ε") else "left")
    for holder, costs in label_facts(job, private).items():
        if costs:
            epsilon = f"{private.epsilon:g}"
            table.add_row(Text(holder), f"labels of {whose_labels(job)} nodes", MECHANISM, epsilon, epsilon)
        else:
            table.add_row(Text(holder), "nothing: it has no labels here", "–", "0", "0")
    return table


def label_notes(job: JobSettings, private: LabelPrivacySettings) -> list[str]:
    """What must be said beside the table, a line each; the arguments are ``label_table``'s."""
    several = len(job.perturbing) > 1
    who = f"each of {listed(job.perturbing)} that has labels" if several else job.data.label_party
    return [
        f"{who} perturbs the label of every {whose_labels(job)} node a single time, before training: per-release "
        f"ε and total ε {private.epsilon:g}, of one label, any class against any other, against everybody",
        "all that leaves it afterwards - gradients, which epoch is the best, when to stop - is computed from such "
        "labels, and costs nothing more",
        "not hidden: which nodes have a label for training, how many classes there are, and whether a label that was "
        "perturbed before has changed",
        "features and edges are not noised: per-release ε and total ε of these are infinite",
        "the same labels in another job with this ε cost nothing; with another ε, or changed, they cost as much again",
        *([OF_SEVERAL] if several else []),
    ]


def whose_labels(job: JobSettings, joined: str = "and") -> str:
    """The nodes of which splits have theirs perturbed."""
    return f"training {joined} validation" if _tests_are_true(job) else f"training, validation {joined} test"


def _tests_are_true(job: JobSettings) -> bool:
    return "test_mask" not in job.perturbed_splits


def label_facts(job: JobSettings, private: LabelPrivacySettings) -> dict[str, list[Record]]:
    """Holder → what is perturbed there, for programs."""
    costs = [{"what": "label", "mechanism": MECHANISM, "epsilon": private.epsilon}]
    return {holder: costs if holder in job.perturbing else [] for holder in job.data.names}
