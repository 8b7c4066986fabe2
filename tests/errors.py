"""What a test says of an error: its class, code, key, value and party. Its words are the product's, not the test's."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, TypedDict

import pytest
from pydantic import ValidationError

from veilgraph.core.errors import ConfigError, DataError, RunError, VeilgraphError
from veilgraph.core.settings import config_errors

ANY = object()
_WAY_OUT = re.compile(r".[;:,] \S| must ", re.DOTALL)
"""What follows the key: a rule that says what to give, or what to do."""


class About(TypedDict, total=False):
    """What ``refused`` is told of an error, apart from its class."""

    code: str
    key: str | PurePath
    value: object
    party: str


@contextmanager
def refused(
    kind: type[VeilgraphError] | type[ValidationError] | tuple[type[VeilgraphError], ...],
    *,
    key: str | PurePath | None = None,
    value: object = ANY,
    party: str | None = None,
    code: str | None = None,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block is refused, for the reason that is given; what is left out is not looked at.

    Args:
        kind: class of the error; of settings that were not read from a file, pydantic's.
        key: the setting, argument or file; a path is compared from its end.
        value: what was found there.
        party: whose it is.
        code: which rule was broken.
    """
    assert key or party or code, "say what is refused"
    with pytest.raises(kind) as caught:
        yield caught
    check(caught.value, key=key, value=value, party=party, code=code)


def check(
    error: BaseException | None,
    *,
    key: str | PurePath | None = None,
    value: object = ANY,
    party: str | None = None,
    code: str | None = None,
) -> None:
    """As ``refused``, of an error that was caught already."""
    if isinstance(error, ValidationError):
        try:
            with config_errors("job"):
                raise error
        except ConfigError as found_error:
            error = found_error
    assert isinstance(error, VeilgraphError)
    found = (error.code, error.key, error.value, error.party, str(error))
    assert code is None or error.code == code, found
    assert party is None or error.party == party, found
    assert value is ANY or error.value == value or value != value != error.value, found
    if isinstance(key, PurePath):
        assert PurePath(error.key or "").match(str(key)), found
    else:
        assert key is None or error.key == key, found
    if isinstance(error, ConfigError | DataError | RunError):
        assert _WAY_OUT.search(str(error)), f"no way out: {error}"
