"""A sealed job in words."""

from __future__ import annotations

from veilgraph.core.words import counted, listed
from veilgraph.paradigms.sealed.entering import plan_of
from veilgraph.paradigms.sealed.networks import network_of
from veilgraph.paradigms.sealed.settings import SealedJob


def describe(job: SealedJob) -> list[str]:
    """A job in sentences."""
    names = listed(job.data.names)
    told = "the class" if job.output == "classes" else "the probability of every class"
    nodes = "every node"
    if job.named_nodes is not None:
        nodes = (
            f"at most {counted(job.named_nodes, 'node')} in all, which it names in later predictions and nobody else "
            "learns"
        )
    but = ""
    if job.release == "holders":
        but = ", but that every holder learns the weights of its own columns in the first layer at the end"
    dealer = "sees no message between holders, and must not collude with one of them"
    if job.dealer_checks:
        dealer += f"; a dealing with a wrong byte is found out with chance {job.dealer_checks:g} before it is used"
    plan = plan_of(job)
    network = network_of(plan).words.format(
        hops=counted(plan.hops, "hop"), own_hops=counted(plan.own_hops, "hop"), hidden=plan.hidden
    )
    noise = [] if job.privacy is None else [_noise(job)]
    return [
        f"{names} have other columns, and edges of their own, of the same nodes. All that they compute with is masked: "
        f"nobody sees another's features, edges, degrees, labels or training nodes, nor any weight, gradient or "
        f"score{but}.",
        f"{network}, trained in {counted(job.train.epochs, 'step')} of SGD with momentum.",
        f"{job.data.label_party} learns {told} that is predicted for {nodes}, and nothing else; the server deals "
        f"random numbers, {dealer}.",
        *noise,
        "What all are told are sizes: nodes, columns, rounded numbers of edges, training nodes, classes"
        + (", and how many nodes are named." if job.predicts_named else "."),
    ]


def _noise(job: SealedJob) -> str:
    others = listed([name for name in job.data.names if name != job.data.label_party])
    return (
        f"Of the edges of {others} nothing is used but one count of votes, to which the dealer adds noise that no "
        "holder knows: ε bounds what all predictions of the run together tell of one edge of theirs. Columns, and the "
        f"edges of {job.data.label_party}, have no noise."
    )
