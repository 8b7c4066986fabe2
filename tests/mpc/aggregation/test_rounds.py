"""The sum is that of who sent values, whoever drops out when, and all of it costs what the formula says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from veilgraph_averaging.aggregation.summing import holder_bytes

from tests import nightly
from tests.errors import refused
from tests.mpc.aggregation.rounds import ANSWERS, MOMENTS, NAMES, Dropped, add_over_links, play, ring_values, round_of
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.types import SERVER
from veilgraph.mpc import ring
from veilgraph.mpc.mask import plain_sum, ring_sum

BITS = 24
FROM_FOUR = {
    name: [torch.randn(9, generator=torch.Generator().manual_seed(place)).double()] * 3
    for place, name in enumerate(NAMES[:4])
}


def counted_of(names: tuple[str, ...], dropped: Dropped) -> tuple[str, ...]:
    """Values count of who sent them, message 3, whatever became of it later."""
    return tuple(name for name in names if dropped.get(name, 6) > 3)


@settings(max_examples=40)
@given(count=st.integers(1, 7), size=st.integers(0, 5), seed=st.integers(0, 2**31), data=st.data())
def test_the_sum_is_that_of_who_sent_values(count, size, seed, data):
    threshold = data.draw(st.integers(count // 2 + 1, count))
    leaving = data.draw(st.permutations(NAMES[:count]))[: count - threshold]
    dropped = {name: data.draw(st.sampled_from(MOMENTS)) for name in leaving}
    values = ring_values(NAMES[:count], size, seed)
    played = play(round_of(count, threshold, seed), values, dropped)
    assert played.server.counted == counted_of(NAMES[:count], dropped)
    assert played.total is not None
    assert torch.equal(played.total, ring_sum(values[name] for name in played.server.counted))


@pytest.mark.parametrize("moment", MOMENTS)
def test_who_drops_out_at_any_moment_leaves_the_sum_of_the_others_and_may_be_back(moment):
    """Twin: the sum of those who are counted, to 1e-6."""
    lost = NAMES[1]
    summed = add_over_links(FROM_FOUR, 3, dropped={lost: {1: moment}})
    assert summed.counted == {name: [True, moment > 3 or name != lost, True] for name in NAMES[:4]}
    for number, found in enumerate(summed.sums):
        assert found.counted == (counted_of(NAMES[:4], {lost: moment}) if number == 1 else NAMES[:4])
        twin = plain_sum([FROM_FOUR[name][number] for name in found.counted])
        opened = ring.decode(found.total, BITS, torch.float64, "the sum", "change it")
        assert float((opened - twin).abs().max()) < 1e-6


@pytest.mark.parametrize("moment", MOMENTS)
def test_who_is_late_is_left_out_and_what_came_late_does_not_stay(moment):
    lost = NAMES[2]
    summed = add_over_links(FROM_FOUR, 3, dropped={lost: {0: moment}}, late=True)
    assert summed.counted[lost] == [moment > 3, True, True]
    assert [lost in found.counted for found in summed.sums] == [moment > 3, True, True]
    read = [each.tag for each in summed.links[SERVER].transcript() if each.sender == lost and each.tag.step == 0]
    assert ANSWERS[moment - 1] in [(tag.kind, tag.round) for tag in read]


def test_who_is_gone_for_good_is_left_out_at_once_and_the_others_go_on():
    summed = add_over_links(FROM_FOUR, 3, gone={NAMES[3]: 1})
    assert [found.counted for found in summed.sums] == [NAMES[:4], NAMES[:3], NAMES[:3]]
    assert summed.counted[NAMES[0]] == [True] * 3


@nightly
def test_a_hundred_holders_of_whom_a_third_drops_out():
    names = [f"h{number:03d}" for number in range(100)]
    values = {
        name: [torch.randn(1000, generator=torch.Generator().manual_seed(place))] * 2
        for place, name in enumerate(names)
    }
    lost = {name: {1: MOMENTS[place % len(MOMENTS)]} for place, name in enumerate(names[:33])}
    summed = add_over_links(values, 67, dropped=lost)
    for number, found in enumerate(summed.sums):
        twin = plain_sum([values[name][number] for name in found.counted])
        opened = ring.decode(found.total, BITS, torch.float64, "the sum", "change it")
        assert float((opened - twin).abs().max()) < 1e-3  # float32: 2^-20 of each value
        assert found.counted == tuple(name for name in names if number == 0 or lost.get(name, {1: 6})[1] > 3)
    traffic = [each for each in summed.links[names[-1]].traffic() if each.peer == SERVER]
    assert sum(each.bytes for each in traffic) == 2 * sum(holder_bytes(100, 1000))


@pytest.mark.parametrize("moment", MOMENTS)
def test_too_few_are_refused(moment):
    with refused(ProtocolError, code="too-few", key="threshold", value=2):
        play(round_of(4, 3), ring_values(NAMES[:4], 2, 0), dict.fromkeys(NAMES[:2], moment))


def test_too_few_over_links_end_the_session_at_all():
    with refused(ProtocolError, code="too-few", key="threshold", value=2):
        add_over_links(FROM_FOUR, 3, dropped={name: {1: 3} for name in NAMES[:2]})


@pytest.mark.parametrize(("count", "threshold"), [(4, 2), (4, 5), (1, 0), (5, 2)])
def test_a_threshold_of_half_or_beyond_all_is_refused(count, threshold):
    with refused(ConfigError, key="threshold", value=threshold):
        round_of(count, threshold)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_messages_and_bytes_are_those_of_the_formula(count):
    names, size = NAMES[:count], 11
    summed = add_over_links({name: [torch.ones(size)] for name in names}, count // 2 + 1)
    for name in names:
        traffic = [each for each in summed.links[name].traffic() if each.peer == SERVER]
        sent, received = (
            [each for each in traffic if each.direction == direction] for direction in ("sent", "received")
        )
        assert (sum(each.messages for each in sent), sum(each.messages for each in received)) == (5, 4)
        assert (sum(each.bytes for each in sent), sum(each.bytes for each in received)) == holder_bytes(count, size)


def test_real_numbers_are_rounded_by_a_secret_before_they_are_added():
    """Else the zeros below a number's last place would show in the sum (test_lowbits)."""
    summed = add_over_links({"A": [torch.ones(50)]}, 1, bits=40)
    opened = summed.sums[0].total
    assert len(set((opened & 0xFFFF).tolist())) == 1, "equal values are moved alike"
    assert int(opened[0] & 0xFFFF)
    assert float((opened.double() * 2.0**-40 - 1).abs().max()) < 2.0**-19
