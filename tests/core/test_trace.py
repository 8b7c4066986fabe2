import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.trace import NO_TRACE, Trace, merge_traces


def written(trace: Trace, path: Path) -> dict[str, Any]:
    trace.write(path)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def fail_slowly() -> None:
    time.sleep(0.02)
    raise ValueError("of the body")


def test_spans_are_timed_in_their_thread_also_where_the_body_fails(tmp_path: Path) -> None:
    trace = Trace("A", 3)
    before = time.monotonic_ns()
    with trace.span("outer", step=4) as facts:
        facts["bytes"] = 7
        with pytest.raises(ValueError, match="of the body"), trace.span("inner"):
            fail_slowly()
    after = time.monotonic_ns()

    def elsewhere() -> None:
        with trace.span("elsewhere", "wait"):
            pass

    thread = threading.Thread(target=elsewhere, name="helper")
    thread.start()
    thread.join()
    events = written(trace, tmp_path / "trace.json")["traceEvents"]
    names = {(event["name"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {
        ("process_name", 0): "A",
        ("thread_name", 1): threading.current_thread().name,
        ("thread_name", 2): "helper",
    }
    inner, outer, other = (event for event in events if event["ph"] == "X")
    assert (inner["name"], outer["name"], other["name"]) == ("inner", "outer", "elsewhere")
    assert {event["pid"] for event in events} == {3}
    assert (inner["tid"], outer["tid"], other["tid"]) == (1, 1, 2)
    assert (inner["cat"], other["cat"], outer["args"]) == ("work", "wait", {"step": 4, "bytes": 7})
    assert 20e3 <= inner["dur"] <= outer["dur"] <= (after - before) / 1e3
    assert before / 1e3 <= outer["ts"] <= inner["ts"]


def test_what_does_not_fit_is_dropped_and_counted_of_each_party(tmp_path: Path) -> None:
    for number, (party, events) in enumerate({"A": 5, "B": 2}.items(), start=1):
        trace = Trace(party, number, limit=3)
        for _ in range(events):
            with trace.span("work"):
                pass
        trace.write(tmp_path / party)
    assert merge_traces([tmp_path / "A", tmp_path / "B"], tmp_path / "both") == {"A": 2}
    both = json.loads((tmp_path / "both").read_text(encoding="utf-8"))
    assert both["otherData"] == {"dropped": {"A": 2}}
    assert sorted(event["pid"] for event in both["traceEvents"] if event["ph"] == "X") == [1, 1, 1, 2, 2]


def test_threads_lose_no_event() -> None:
    trace = Trace("A", 1, limit=10_000)

    def work() -> None:
        for _ in range(1000):
            with trace.span("work"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trace._events) == 4000


@pytest.mark.parametrize("content", [None, "", "[1]", "{}", "[" * 10_000])
def test_a_trace_that_is_missing_or_damaged_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "A").write_text(content, encoding="utf-8")
    with refused(RunError, key=Path("A")):
        merge_traces([tmp_path / "A"], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_without_a_trace_a_span_is_one_object_made_once() -> None:
    with NO_TRACE.span("forward", step=1) as facts:
        assert facts is None
    assert NO_TRACE.span("forward", step=1) is NO_TRACE.span("backward")
