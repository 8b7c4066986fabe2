"""Any t shares give the secret; fewer are consistent with every secret."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from veilgraph_averaging.aggregation.shamir import FIELD, combine, draw, of_bytes, split, to_bytes, weights

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ConfigError, ProtocolError

elements = st.one_of(st.sampled_from([0, 1, FIELD - 1]), st.integers(0, FIELD - 1))


@settings(max_examples=40)
@given(secret=elements, count=st.integers(1, 12), data=st.data())
def test_any_t_shares_or_more_give_the_secret(secret, count, data):
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, threshold, count, fixed_secrets(secret, count))
    chosen = data.draw(st.permutations(range(1, count + 1)))[: data.draw(st.integers(threshold, count))]
    assert combine({point: shares[point - 1] for point in chosen}) == secret
    each = weights(chosen)
    assert sum(weight * shares[point - 1] for weight, point in zip(each, chosen, strict=True)) % FIELD == secret


@settings(max_examples=40)
@given(secret=elements, other=elements, count=st.integers(2, 9), data=st.data())
def test_fewer_shares_fit_every_secret(secret, other, count, data):
    """For t − 1 shares and any other secret there is exactly one polynomial, so they say nothing."""
    threshold = data.draw(st.integers(2, count))
    shares = split(secret, threshold, count, fixed_secrets(secret, count))
    known = {point: shares[point - 1] for point in data.draw(st.permutations(range(1, count + 1)))[: threshold - 1]}
    missing = next(point for point in range(1, count + 1) if point not in known)
    points = [*known, missing]
    *held, last = weights(points)
    rest = sum(weight * share for weight, share in zip(held, known.values(), strict=True))
    fitting = (other - rest) * pow(last, -1, FIELD) % FIELD
    assert combine({**known, missing: fitting}) == other


def test_shares_are_of_a_new_polynomial_each_time_and_of_full_degree():
    one, other = (split(7, 3, 5, fixed_secrets(number)) for number in (1, 2))
    assert not set(one) & set(other)
    assert 7 not in one
    assert combine(dict(enumerate(one[:2], start=1))) != 7, "two of three shares give the secret"


def test_bytes_and_back():
    for element in (0, 1, FIELD - 1, draw(fixed_secrets("x"))):
        assert of_bytes(to_bytes(element)) == element


@pytest.mark.parametrize("content", [to_bytes(0)[:-1], FIELD.to_bytes(32, "little"), b"\xff" * 32, b""])
def test_bytes_that_are_no_element_are_refused(content):
    with refused(ProtocolError, code="bad-share"):
        of_bytes(content)


@pytest.mark.parametrize("threshold", [0, 4])
def test_a_threshold_that_nobody_can_meet_is_refused(threshold):
    with refused(ConfigError, key="threshold", value=threshold):
        split(1, threshold, 3, fixed_secrets())


def test_what_is_drawn_is_spread_over_the_field():
    drawn = sorted(draw(fixed_secrets(number)) / FIELD for number in range(200))
    assert drawn[0] < 0.1 < 0.9 < drawn[-1]
    assert 0.3 < drawn[100] < 0.7
