"""Perturbed labels for the terminal: what a label costs in a job with ``label_privacy``, and what that hides."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from veilgraph.privacy.local.settings import LabelPrivacySettings
from veilgraph.protocol.job import JobSettings
from veilgraph.run.run_directory import Record

MECHANISM: Final = "randomised response"


def label_table(job: JobSettings, private: LabelPrivacySettings) -> Table:
    """What a label costs at every holder.

    Args:
        job: in which the label holder learns from perturbed labels.
        private: how they are.
    """
    table = Table(title="Label privacy", title_justify="left", caption_justify="left")
    table.caption = "Of one label, perturbed a single time in all jobs with this ε; δ = 0."
    for heading in ("holder", "perturbs", "mechanism", "per-release ε", "total ε"):
        table.add_column(heading, justify="right" if heading.endswith("ε") else "left")
    for holder, costs in label_facts(job, private).items():
        if costs:
            epsilon = f"{private.epsilon:g}"
            table.add_row(Text(holder), "labels of training and validation nodes", MECHANISM, epsilon, epsilon)
        else:
            table.add_row(Text(holder), "nothing: it has no labels here", "–", "0", "0")
    return table


def label_notes(job: JobSettings, private: LabelPrivacySettings) -> list[str]:
    """What must be said beside the table, a line each; the arguments are ``label_table``'s."""
    holder = job.data.label_party
    return [
        f"{holder} perturbs the label of every training and validation node a single time, before training: "
        f"per-release ε and total ε {private.epsilon:g}, of one label, any class against any other, against everybody",
        "all that leaves it afterwards - gradients, which epoch is the best, when to stop - is computed from such "
        "labels, and costs nothing more",
        "not hidden: which nodes have a label for training, how many classes there are, and whether a label that was "
        "perturbed before has changed",
        "features and edges are not noised: per-release ε and total ε of these are infinite",
        "the same labels in another job with this ε cost nothing; with another ε, or changed, they cost as much again",
    ]


def label_facts(job: JobSettings, private: LabelPrivacySettings) -> dict[str, list[Record]]:
    """Holder → what is perturbed there, for programs."""
    costs = [{"what": "label", "mechanism": MECHANISM, "epsilon": private.epsilon}]
    return {holder: costs if holder == job.data.label_party else [] for holder in job.data.names}
