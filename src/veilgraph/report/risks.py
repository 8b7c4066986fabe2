"""What could go wrong with a job, in plain words: what its protection rests on, and what it is not about."""

from __future__ import annotations

from dataclasses import dataclass

from veilgraph.core.words import counted, listed
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.paradigm import paradigm_of


@dataclass(frozen=True)
class Risk:
    """What could happen, in a few words, and what then."""

    name: str
    words: str


def risks(job: JobSettings) -> tuple[Risk, ...]:
    """Of a job's paradigm and settings; none of them depends on what a run found."""
    learning = listed(job.scoring)
    found = [
        Risk("Parties work together", paradigm_of(job).collusion(job)),
        Risk(
            "A party does not follow the protocol",
            "It can send wrong numbers, and so spoil the model or what others learn from it, without being noticed; "
            "what it may find out then is bounded by nothing that is said here.",
        ),
        *_told(job),
        *_common(job),
        Risk(
            "Predictions are wrong",
            f"{learning} may act on a person wrongly. How often, and for whom, are questions of their own: see how "
            "well it predicts, and look at groups of people (veilgraph report RUN --by COLUMN).",
        ),
        Risk(
            "The model remembers",
            f"Whoever has predictions ({learning}), or asks for them, may be able to infer from them whether a node "
            f"was trained on, or something of its columns. {_noised(job)}",
        ),
        Risk(
            "Files outlive their purpose",
            "A run's directory holds data, the model and predictions of the parties whose part is in it, in the clear, "
            "and nothing deletes them. What was sent to other parties is theirs to delete.",
        ),
    ]
    if not job.data.is_apart:
        found.append(
            Risk(
                "All parties are on one machine",
                "A simulation protects nobody from whoever runs it: every holder's data are in its directory.",
            )
        )
    return tuple(found)


def _told(job: JobSettings) -> list[Risk]:
    count = len(revelations(job))
    if not count:
        return []
    return [
        Risk(
            "A party makes more of what it is told",
            f"{counted(count, 'thing')} that messages of this job tell are listed above. What can be inferred from "
            "them grows with every step and every job on the same nodes; the audit says what known attacks find, and "
            "no more.",
        )
    ]


def _common(job: JobSettings) -> list[Risk]:
    data = job.data
    if not job.is_aligned or not (data.from_tables or data.is_apart):
        return []
    return [
        Risk(
            "That somebody is known is news",
            f"Each of {listed(data.names)} learns which of its own nodes all the others have, too: of a customer, that "
            "the others know it. Every alignment tells that anew. The server and a holder together learn for each of "
            "that holder's nodes which others have it.",
        )
    ]


def _noised(job: JobSettings) -> str:
    if not job.adds_noise:
        return "Nothing is noised, so no ε bounds that."
    return "ε bounds what was released with noise, and nothing else: the privacy ledger says what it is about."
