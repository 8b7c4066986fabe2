import json
from dataclasses import asdict, replace

import pytest

from research import store as store_module
from research.store import Finished, Store, identity, training_key
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.samples.shipped import with_overrides


def finished(key="k", **changes):
    entry = Finished(
        key=key,
        table="t",
        dataset="synthetic",
        row="r",
        column="c",
        kind="federated",
        engine="federated",
        seed=0,
        version="1",
        val_accuracy=0.5,
        test_accuracy=0.25,
        best_epoch=2,
        seconds=1.5,
        sent_bytes={"A": 3},
        settings=identity(VerticalJob()),
    )
    return replace(entry, **changes)


@pytest.mark.parametrize("cut", [1, 2, 30, -1])
def test_a_torn_last_line_is_passed_over_and_never_joined(tmp_path, cut):
    store = Store(tmp_path, "t")
    store.add(finished("one"))
    torn = json.dumps(asdict(finished("two"))).encode()[:cut]
    with store.path.open("ab") as file:
        file.write(torn)
    again = Store(tmp_path, "t")
    assert again.get("one") is not None
    assert again.get("two") is None
    again.add(finished("three"))
    last = Store(tmp_path, "t")
    assert last.get("one") is not None
    assert last.get("two") is None
    assert last.get("three") is not None


def test_the_key_changes_with_all_that_changes_the_result(monkeypatch):
    settings = VerticalJob()
    keys = [
        training_key(settings, "federated", "federated"),
        training_key(settings, "federated", "plaintext"),
        training_key(settings, "pooled", "plaintext"),
        training_key(with_overrides(settings, {"seed": 1}), "federated", "federated"),
        training_key(with_overrides(settings, {"train.learning_rate": 0.02}), "federated", "federated"),
        training_key(with_overrides(settings, {"data.dataset": "synthetic"}), "federated", "federated"),
    ]
    monkeypatch.setattr(store_module, "package_version", lambda: "99")
    keys.append(training_key(settings, "federated", "federated"))
    assert len(set(keys)) == len(keys)
