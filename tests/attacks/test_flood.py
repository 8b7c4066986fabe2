"""A party that sends what nobody asked for: it is named while what waits is still in proportion to the job."""

import torch

from tests.errors import refused
from tests.roles.federation import FEATURES, NODES, build_role, small_job, small_parties
from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import SERVER, Kind, Link, Tag
from veilgraph.link.mailbox import MAX_UNREAD_BYTES, SLACK_BYTES
from veilgraph.paradigms.horizontal.network import layer_widths
from veilgraph.paradigms.horizontal.roles import unread_bytes_by_rows
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.vertical.paradigm import VerticalSessions
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.processes import run_threads

PIECE = torch.zeros(1 << 20, dtype=torch.uint8)
"""One piece of memory, however often it is sent."""


def hellos(job: JobSettings, nodes: int, features: int) -> dict[str, Hello]:
    each = {name: Hello(job=job.hash(), nodes=nodes, features=features) for name in job.data.names}
    return {**each, SERVER: Hello(job=job.hash())}


def test_a_flood_is_noticed_at_what_the_job_needs() -> None:
    job, sent = small_job(2), []
    graphs = {graph.party: graph for graph in small_parties(2)}

    def program(link: Link) -> None:
        role = build_role(job, link, graphs)
        try:
            role.setup([])
            if link.party == "B":
                for step in range(1 << 12):
                    link.send("A", Tag(Kind.SHARE, 1000 + step), PIECE)
                    sent.append(step)
                link.receive("A", Tag(Kind.SHARE, 999))
            elif link.party == "A":
                link.receive("B", Tag(Kind.SHARE, 1 << 20))
            else:
                link.receive("A", Tag(Kind.SHARE, 999))
        finally:
            role.close()

    limit = VerticalSessions().unread_bytes(vertical(job), hellos(job, NODES, FEATURES // 2))
    with refused(ProtocolError, code="unread", value=67195520, party="B"):
        run_threads(dict.fromkeys(["A", "B", SERVER], program), 20, lambda: None)
    assert limit < 2 * SLACK_BYTES < MAX_UNREAD_BYTES


def test_what_is_allowed_follows_the_job() -> None:
    job = small_job(2)
    one = VerticalSessions().unread_bytes(vertical(job), hellos(job, 169_343, 64))
    assert one < 4 << 30
    assert VerticalSessions().unread_bytes(vertical(job), hellos(job, 2 * 169_343, 64)) - SLACK_BYTES > 1.9 * (
        one - SLACK_BYTES
    )
    wide = small_job(2, {"model": {"combine": {"strategy": "concat"}}})
    assert VerticalSessions().unread_bytes(vertical(wide), hellos(wide, 169_343, 64)) > one
    batched = small_job(2, {"train": {"batch_size": 1}})
    assert VerticalSessions().unread_bytes(vertical(batched), hellos(batched, 169_343, 64)) > one
    pooled = horizontal(parse_job({"paradigm": "horizontal", "data": {"dataset": "synthetic", "holders": 2}}))
    widths = layer_widths(pooled.model, 64)
    assert unread_bytes_by_rows(pooled, 1000, widths) < 2 << 30
    secure = horizontal(parse_job({**pooled.model_dump(mode="json"), "model": {"combine": "secure-max"}}))
    assert unread_bytes_by_rows(secure, 1000, widths) == 4 * MAX_UNREAD_BYTES


def test_an_honest_session_stays_far_below() -> None:
    """Half of the limit is never used, whatever the parties' pace: all that one sends another in a step is less."""
    job = small_job(2, {"model": {"rounds": 2}})
    step = 3 * (2 * 2 - 1) * 8 * NODES * vertical(job).model.dim + 8 * NODES * FEATURES
    assert VerticalSessions().unread_bytes(vertical(job), hellos(job, NODES, FEATURES // 2)) - SLACK_BYTES > 2 * step
