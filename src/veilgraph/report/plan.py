"""What a job will cost, as a table."""

from __future__ import annotations

from rich.table import Table

from veilgraph.protocol.costs import Costs
from veilgraph.report.tables import human_bytes


def will_send(costs: Costs) -> str:
    """In a sentence: what each party sends in all."""
    sent = costs.sent()
    first = next(iter(sent))
    others = ", ".join(f"{party} {human_bytes(count)}" for party, count in sent.items() if party != first)
    return f"{first} will send at most {human_bytes(sent[first])}, {others} (veilgraph plan: stage by stage)"


def costs_table(costs: Costs) -> Table:
    """Stages by parties: rounds and what each sends; then what each holds at once."""
    parties = list(costs.sent())
    table = Table(title="What it will send")
    table.add_column("stage")
    table.add_column("rounds", justify="right")
    for party in parties:
        table.add_column(party, justify="right")
    for stage in costs.stages:
        table.add_row(stage.name, f"{stage.rounds:,}", *(human_bytes(stage.sent.get(party, 0)) for party in parties))
    table.add_section()
    total = costs.sent()
    table.add_row("in all", f"{costs.rounds:,}", *(human_bytes(total[party]) for party in parties))
    table.add_row("memory, about", "", *(human_bytes(costs.memory.get(party, 0)) for party in parties))
    return table
