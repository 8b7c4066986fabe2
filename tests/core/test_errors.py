import inspect
import re
from pathlib import Path

import pytest

from veilgraph.core import errors
from veilgraph.core.errors import ConfigError, ProtocolError, VeilgraphError, error_of_json

TREE = {
    "VeilgraphError": "Exception",
    "ConfigError": "VeilgraphError",
    "DataError": "VeilgraphError",
    "RunError": "VeilgraphError",
    "RangeOverflow": "VeilgraphError",
    "BudgetSpent": "VeilgraphError",
    "LinkError": "VeilgraphError",
    "ProtocolError": "LinkError",
    "PeerFailed": "LinkError",
    "LinkTimeout": "LinkError",
}


def the_errors():
    return {
        name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
    }


def test_the_tree_is_the_whole_module_and_has_these_branches():
    assert {name: error.__bases__[0].__name__ for name, error in the_errors().items()} == TREE


@pytest.mark.parametrize("name", TREE)
def test_every_error_keeps_what_it_says_and_is_caught_at_the_root(name):
    with pytest.raises(VeilgraphError) as caught:
        raise the_errors()[name]("value=3: too large; choose 2", party="A")
    error = caught.value
    assert (str(error), error.key, error.value, error.party) == ("value=3: too large; choose 2", "value", 3, "A")
    assert the_errors()[name].__doc__


def test_every_class_has_a_code_of_its_own():
    codes = [error.code for error in the_errors().values()]
    assert len(set(codes)) == len(TREE)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


SAID = [
    ("privacy.delta=2.0 must be below 1; lower it", "privacy.delta", 2.0, None),
    ("data.dataset='ac m' is unknown; choose one of a, b", "data.dataset", "ac m", None),
    ("shares=[1, -2]: must be above 0; mend it", "shares", [1, -2], None),
    ("shares=[a, b]: change it", "shares", "[a, b]", None),
    ("masked=true, and no server", "masked", True, None),
    ("machines.address=host:80: cannot listen there; give another", "machines.address", "host:80", None),
    ("data.parties: names alone; give paths", "data.parties", None, None),
    ("/a/job.yaml: train.epochs=0: must be 1 or more", "train.epochs", 0, None),
    ("party.yaml: nodes.features.0: no column; mend it", "nodes.features.0", None, None),
    ("job: data.parts divides a data set; leave it out", "data.parts", None, None),
    ("job: paradigm='x': choose one of y", "paradigm", "x", None),
    ("/run/ledger.jsonl, line 4: damaged; restore a copy", "/run/ledger.jsonl", 4, None),
    ("/some/kit is not a start-up kit; give another", "/some/kit", None, None),
    ("B refuses the job: ledger.jsonl ends with line 0; restore it", "ledger.jsonl", None, "B"),
    ("party 'bank': num_common=9 is too many; mend it", "num_common", 9, "bank"),
    ("B refuses the job: limits.max_epsilon=0.5 and more; raise the limit", "limits.max_epsilon", 0.5, "B"),
    ("B refuses the job: it has no labels", None, None, "B"),
    ("the tables are not of one alignment (a=1); align them", None, None, None),
    ("A got h0=3 from B; install the same release", None, None, None),
    ("", None, None, None),
    ("/run/x.jsonl, one of lines 2 to 6: not what was stated; restore it", "/run/x.jsonl", None, None),
    ("--port 70000: must be from 0 to 65535; choose another", "--port", 70000, None),
    ("--key /a/b.pem is not the key of --certificate; take both of one pair", "--key", "/a/b.pem", None),
    ("--serial, --leaves: whose? Give the name, too", "--serial", None, None),
    ("features: torch.float64 must be float32; convert it", "features", None, None),
    ("n.csv: column 'x y', row 78: 'a' is not a number; mend it", "x y", 78, None),
    ("n.csv: column 'x': type string is not a number; mend it", "x", None, None),
    ("value=" + "[" * 9999, "value", "[" * 494, None),
]


@pytest.mark.parametrize(("message", "key", "value", "party"), SAID, ids=range(len(SAID)))
def test_what_is_not_given_apart_is_read_from_the_beginning(message, key, value, party):
    error = VeilgraphError(message)
    assert (error.key, error.value, error.party) == (key, value, party)
    assert str(error) == message


def test_a_party_is_no_key_and_what_others_tell_keeps_whose_it_is():
    assert ConfigError("bank: it is gone", party="bank").key is None
    assert ConfigError("x", party="A").told("y", "C").party == "A"
    assert ConfigError("x").told("y", "C").party == "C"


@pytest.mark.parametrize("name", TREE)
def test_an_error_travels_as_json(name):
    error = the_errors()[name]("a.b: value=3\n too large", code="too-large", value=Path("x"), party="A")
    there = error_of_json(error.to_json())
    assert there is not None
    assert type(there) is type(error)
    assert (there.code, there.key, there.value, there.party) == ("too-large", error.key, "x", "A")
    assert str(there) == "a.b: value=3 too large"


def test_an_error_that_a_room_makes_its_own_travels_as_the_nearest_of_the_tree():
    class Own(ProtocolError):
        pass

    assert type(error_of_json(Own("x").to_json())) is ProtocolError


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        "3",
        "[]",
        '{"kind": "ConfigError"}',
        '{"kind": "SystemExit", "message": ""}',
        '{"kind": [], "message": ""}',
        '{"kind": "ConfigError", "message": 3}',
        '{"kind": "ConfigError", "message": "", "more": 1}',
        "[" * 99999,
    ],
    ids=range(10),
)
def test_what_is_no_error_is_none(text):
    assert error_of_json(text) is None
