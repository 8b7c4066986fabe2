"""Dropout, initial transform, deep layers and head."""

import numpy as np
import pytest
import torch
from veilgraph_testing.graphs import without_edges

from tests.nn.graphs import random_adjacency
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.layers import ACTIVATIONS, HeadSettings, ServerSettings, build_deep, build_head, dropout
from veilgraph.paradigms.vertical.network import HolderNetwork, InitialSettings, ModelSettings

STREAMS = LearningStreams(0, "server")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_dropout_keeps_the_mean_and_follows_the_generator():
    x = torch.ones(200, 200, dtype=torch.float64)
    out = dropout(x, 0.25, generator())
    assert set(out.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs(float(out.mean()) - 1) < 0.02
    assert torch.equal(out, dropout(x, 0.25, generator()))
    assert not torch.equal(out, dropout(x, 0.25, generator(1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dropout_mask_comes_from_53_bits_of_two_words_of_the_mersenne_twister_on_every_processor(dtype):
    words = np.frombuffer(np.random.RandomState(7).bytes(8 * 90_000), dtype="<u4").astype("<u8")
    uniform = (words[0::2] << 32 | words[1::2]) % 2**53 * 2.0**-53
    result = dropout(torch.ones(300, 300, dtype=dtype), 0.3, generator(7))
    assert result.dtype == dtype
    assert (result > 0).flatten().tolist() == (uniform < 0.7).tolist()


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_initial_embeddings_are_activated_then_dropped(name):
    h0 = torch.randn(6, 4)
    settings = ModelSettings(dim=4, initial=InitialSettings(activation=name, dropout=0.5))
    network = HolderNetwork(settings, 2, without_edges(6), STREAMS)
    assert torch.equal(network.start(h0, None), ACTIVATIONS[name](h0))
    assert (network.start(h0, generator()) == 0).any()


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_deep(layers):
    deep = build_deep(10, 4, ServerSettings(layers=layers, activation="relu"), streams=STREAMS, dtype=torch.float64)
    m = torch.randn(6, 10, dtype=torch.float64)
    out = deep(m, None)
    assert out.shape == (6, deep.output_dim)
    assert deep.output_dim == (4 if layers else 10)
    expected = m
    for layer in deep.layers:
        weight, bias = layer.parameters()
        expected = (expected @ weight.T + bias).relu()
    torch.testing.assert_close(out, expected)
    assert torch.equal(deep(m, generator()), deep(m, generator()))
    assert not torch.equal(deep(m, generator()), out)
    assert len(list(deep.parameters())) == 2 * layers


def test_head_propagates_the_logits():
    head = build_head(4, 3, HeadSettings(logit_hops=2, logit_teleport=0.3), streams=STREAMS, dtype=torch.float64)
    z, adjacency = torch.randn(12, 4, dtype=torch.float64), random_adjacency()
    logits = head.output(z)
    expected = logits
    for _ in range(2):
        expected = 0.7 * adjacency.self_loop_mean(expected, 1.0) + 0.3 * logits
    torch.testing.assert_close(head(z, adjacency, None), expected)
