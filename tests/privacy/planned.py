"""Jobs and the plan of what they release."""

from typing import Any

from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job

HOPS = 2


def job(epochs: int = 300, rounds: int = 1, holders: int = 2, **privacy: Any) -> JobSettings:
    once = privacy.get("schedule") == "once"
    return parse_job(
        {
            "data": {"dataset": "synthetic", "holders": holders},
            "model": {"rounds": rounds, "initial": {"method": "individual"}, "local": {"model": "appnp", "hops": HOPS}},
            "train": {"epochs": epochs} | ({} if once else {"select_by": "last", "patience": None}),
            "privacy": {"unit": "row", "schedule": "every-step"} | privacy,
        }
    )


def planned(settings: JobSettings, party: str, **others: int) -> Plan:
    found = plan(settings, party, **others)
    assert found is not None
    return found
