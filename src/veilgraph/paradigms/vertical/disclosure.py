"""What a vertical job sends and reveals."""

from __future__ import annotations

from typing import Final

from veilgraph.core.revelations import Revelation
from veilgraph.core.types import SERVER, PartyId
from veilgraph.paradigms.vertical.settings import VerticalJob

_OF_LABEL_HOLDER: Final = frozenset[Revelation]({"training-rows", "label-holder-edges"})
_TO_LABEL_HOLDER: Final = frozenset[Revelation]({"output-embeddings", "combined-as-output"})


def facts(job: VerticalJob, sender: PartyId, receiver: PartyId) -> dict[str, bool]:
    """What rows of the table of messages may depend on."""
    model, label_party = job.model, job.data.label_party
    once = job.learns_alone
    noised = job.privacy is not None and job.privacy.noise_multiplier != 0
    return {
        "paired": not once or (job.is_masked and {sender, receiver} <= set(job.publishing)),
        "every step": not once,
        "once": once,
        "noised": noised,
        "bare": not noised,
        "from publisher": sender in job.publishing,
        "collaborative": model.initial.method == "collaborative",
        "secure-sum": model.initial.method == "secure-sum",
        "masked": job.is_masked,
        "unmasked": not job.is_masked,
        "degree-weighted": model.combine.strategy == "degree-weighted",
        "more rounds": model.rounds > 1,
        "no layers": model.server.layers == 0,
        "logit hops": model.head.logit_hops > 0,
        "from label holder": sender == label_party,
        "to label holder": receiver == label_party,
        "to another": receiver not in (label_party, SERVER),
    }


def concerns(name: Revelation, job: VerticalJob, party: PartyId) -> bool:
    """Whether what is revealed under a name tells others something of the party's own data."""
    if party == job.data.label_party:
        return name not in _TO_LABEL_HOLDER and party in job.publishing
    return party in job.data.names and name not in _OF_LABEL_HOLDER


def reveals(job: VerticalJob) -> dict[Revelation, str]:
    """What a job reveals → the settings that cause it."""
    if job.privacy is not None and job.privacy.once:
        return _causes_of_one_release(job)
    model = job.model
    causes = _causes_of_initial(job)
    strategy = f"model.combine.strategy={model.combine.strategy}"
    causes["embedding-sums"] = strategy
    if not job.is_masked:
        causes["single-embeddings"] = _unmasked(job)
    if model.combine.strategy == "degree-weighted":
        causes["pooled-degrees"] = strategy
        if not job.is_masked:
            causes["single-degrees"] = f"{strategy}, masked=false"
    if model.rounds > 1:
        causes["combined-embeddings"] = f"model.rounds={model.rounds}"
    causes["output-embeddings"] = "every job"
    if model.server.layers == 0:
        causes["combined-as-output"] = "model.server.layers=0"
    causes["training-rows"] = "every job"
    if model.head.logit_hops > 0:
        causes["label-holder-edges"] = f"model.head.logit_hops={model.head.logit_hops}"
    return causes


def _causes_of_initial(job: VerticalJob) -> dict[Revelation, str]:
    initial, causes = job.model.initial, dict[Revelation, str]()
    method = f"model.initial.method={initial.method}"
    if initial.is_joint:
        causes["initial-embeddings"] = method
    if initial.method == "secure-sum":
        causes["initial-gradients"] = method
        if len(job.data.names) == 2:
            causes["single-initial-embeddings"] = f"{method}, 2 holders"
    if initial.release is not None:
        causes["perturbed-features"] = f"{method}, release.epsilon={initial.release.epsilon:g}"
    return causes


def _causes_of_one_release(job: VerticalJob) -> dict[Revelation, str]:
    once = "privacy.schedule=once"
    causes: dict[Revelation, str] = {"embedding-sums": f"model.combine.strategy={job.model.combine.strategy}"}
    if not job.is_masked:
        causes["single-embeddings"] = f"{once}, 2 holders" if len(job.publishing) == 1 else _unmasked(job)
    return causes | {"output-embeddings": once, "combined-as-output": once}


def _unmasked(job: VerticalJob) -> str:
    combine = job.model.combine
    return "model.combine.masked=false" if combine.linear else f"model.combine.strategy={combine.strategy}"
