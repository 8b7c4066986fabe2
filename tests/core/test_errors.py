import inspect
import re

import pytest

from veilgraph.core import errors
from veilgraph.core.errors import VeilgraphError

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
    return {name: value for name, value in vars(errors).items() if inspect.isclass(value)}


def test_the_tree_is_the_whole_module_and_has_these_branches():
    assert {name: error.__bases__[0].__name__ for name, error in the_errors().items()} == TREE


def test_the_tree_at_the_head_of_the_file_is_the_tree():
    drawn = set(re.findall(r"(?:├──|└──|^ {4}(?=Veil)) ?(\w+)", errors.__doc__ or "", re.MULTILINE))
    assert drawn == set(TREE)


@pytest.mark.parametrize("name", TREE)
def test_every_error_keeps_its_message_and_is_caught_at_the_root(name):
    with pytest.raises(VeilgraphError, match=r"^value=3: too large; choose 2$"):
        raise the_errors()[name]("value=3: too large; choose 2")
    assert the_errors()[name].__doc__
