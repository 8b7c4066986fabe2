"""A holder's local model: K hops of message passing over its own edges (VFGNN 3.3, Algorithm 2 lines 4-10)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams, seeded_global
from veilgraph.nn.activation import ACTIVATIONS
from veilgraph.nn.dropout import dropout
from veilgraph.nn.hops import AppnpHop, GatHop, GcnHop, GinHop, SageLstmHop, SageMeanHop, SagePoolHop
from veilgraph.nn.neighbourhood import Edges, Sampler
from veilgraph.nn.propagate import first_rows
from veilgraph.nn.settings import LocalSettings

_SHORTEST = 1e-6


class LocalModel(nn.Module):
    """Dropout, hop, activation, K times; then perhaps rows of length 1.

    Args:
        hops: K modules with the forward of ``veilgraph.nn.hops``; none leaves h as it is.
        activation: name in ``ACTIVATIONS``, applied after each hop.
        dropout: probability, before each hop.
        normalize: whether to scale the result's rows to length 1 (Algorithm 2, line 10); zero rows stay zero.
    """

    def __init__(self, hops: list[nn.Module], *, activation: str, dropout: float, normalize: bool) -> None:
        super().__init__()
        self.hops = nn.ModuleList(hops)
        self._activation = ACTIVATIONS[activation]
        self._dropout = dropout
        self._normalize = normalize

    def forward(self, h: Tensor, initial: Tensor, edges: Edges, generator: torch.Generator | None) -> Tensor:
        """Propagates h over the holder's edges.

        Args:
            h: Tensor[N, d], the round's input: h^0, or what the server sent back.
            initial: Tensor[N, d], h^0; appnp teleports to it.
            edges: of the holder's own graph, or of a neighbourhood in it, of the same dtype.
            generator: source of dropout; None means evaluation.

        Returns:
            Tensor[T, d], t of this round for the targets: all N nodes of a graph, the first T of a neighbourhood.
        """
        for hop, adjacency in zip(self.hops, edges.layers(len(self.hops)), strict=True):
            h = self._activation(hop(dropout(h, self._dropout, generator), initial, adjacency, generator))
        h = first_rows(h, edges.num_targets)
        return normalize_rows(h) if self._normalize else h

    def in_blocks(self, initial: Tensor, sampler: Sampler) -> Tensor:
        """``forward`` of a whole graph from h^0 in evaluation, a block of nodes at a time.

        Args:
            initial: Tensor[N, d], h^0.
            sampler: of one hop, that takes all neighbours.

        Returns:
            Tensor[N, d].
        """
        h = initial
        for hop in self.hops:
            result = torch.empty_like(h)
            for rows, around in sampler.blocks():
                (adjacency,) = around.layers(1)
                block = self._activation(hop(h.index_select(0, around.nodes), initial[rows], adjacency, None))
                result[rows] = normalize_rows(block) if self._normalize and hop is self.hops[-1] else block
            h = result
        return normalize_rows(h) if self._normalize and not len(self.hops) else h


class CustomLocal(nn.Module):
    """A user's own module in place of the K hops: anything with PyTorch Geometric's ``forward(x, edge_index)``.

    Hops, activation and dropout of the settings do not apply to it. In training it may draw from torch's
    process-wide generator, which is seeded for it and restored afterwards.
    """

    def __init__(self, module: nn.Module, *, normalize: bool = False) -> None:
        super().__init__()
        self.module = module
        self._normalize = normalize

    def forward(self, h: Tensor, initial: Tensor, edges: Edges, generator: torch.Generator | None) -> Tensor:
        """As ``LocalModel.forward``.

        Raises:
            ConfigError: the module's output has another shape than ``h``.
        """
        if generator is None:
            self.module.eval()
            result = self.module(h, edges.edge_index.to(h.device))
        else:
            self.module.train()
            seed = int(torch.randint(2**63 - 1, (), generator=generator))
            with seeded_global(seed):
                result = self.module(h, edges.edge_index.to(h.device))
        if not isinstance(result, Tensor) or result.shape != h.shape:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ConfigError(
                f"local.model='custom': {type(self.module).__name__} returned {got} for x of shape {list(h.shape)}; "
                f"it must keep the shape, so give it an output width of dim={h.shape[1]}"
            )
        result = first_rows(result, edges.num_targets)
        return normalize_rows(result) if self._normalize else result

    def in_blocks(self, initial: Tensor, sampler: Sampler) -> Tensor:
        """``forward`` of a whole graph in evaluation; a module is not known to have layers, so all nodes at once."""
        return self.forward(initial, initial, sampler.adjacency, None)


def normalize_rows(h: Tensor) -> Tensor:
    """Rows of length 1 (Algorithm 2, line 10); a row shorter than 1e-6 is left as it is, so that its gradient is sound.

    Tensor[N, d] to Tensor[N, d].
    """
    squares = h.square().sum(dim=1, keepdim=True)
    return h * torch.where(squares > _SHORTEST**2, squares, torch.ones_like(squares)).rsqrt()


LocalBuilder = Callable[[LocalSettings, int, int, bool], LocalModel]
"""(settings, dim, holders, normalize) → the model, its weights drawn from torch's process-wide generator."""


def _stack(make_hop: Callable[[LocalSettings, int], nn.Module]) -> LocalBuilder:
    def build(settings: LocalSettings, dim: int, holders: int, normalize: bool) -> LocalModel:
        hops = [make_hop(settings, dim) for _ in range(settings.hops)]
        return LocalModel(hops, activation=settings.activation, dropout=settings.dropout, normalize=normalize)

    return build


def _appnp(settings: LocalSettings, dim: int, holders: int, normalize: bool) -> LocalModel:
    hops: list[nn.Module] = [AppnpHop(settings.teleport, holders) for _ in range(settings.hops)]
    return LocalModel(hops, activation="none", dropout=settings.dropout, normalize=normalize)


LOCAL_MODELS: dict[str, LocalBuilder] = {
    "sage-mean": _stack(lambda settings, dim: SageMeanHop(dim, averages=settings.start == "average")),
    "sage-lstm": _stack(lambda settings, dim: SageLstmHop(dim)),
    "sage-pool": _stack(lambda settings, dim: SagePoolHop(dim)),
    "gcn": _stack(lambda settings, dim: GcnHop(dim)),
    "gat": _stack(lambda settings, dim: GatHop(dim, settings.heads)),
    "gin": _stack(lambda settings, dim: GinHop(dim)),
    "appnp": _appnp,
}
"""The local models by the name the settings use; ``custom`` is the user's own and not in the table."""


def build_local(
    settings: LocalSettings,
    dim: int,
    holders: int,
    *,
    last_round: bool,
    streams: LearningStreams,
    round: int,  # noqa: A002 - the paper's word, and the tag's
    custom: Callable[[int], nn.Module] | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A holder's local model of one exchange round.

    Args:
        settings: ``model.local`` of the job.
        dim: d, width of h and of the result.
        holders: P, number of data holders.
        last_round: whether its result is the last the server combines; only then ``settings.normalize`` applies.
        streams: the holder's; initial weights come from its stream ("local", round).
        round: number of the exchange round.
        custom: for ``model: custom``, makes the user's module for a given dim.
        dtype: of the weights.

    Returns:
        A module with the forward of ``LocalModel``; its ``parameters()`` are the trainable weights.

    Raises:
        ConfigError: ``custom`` is missing where the settings ask for it, or given where they do not.
    """
    normalize = settings.normalize and last_round
    if (settings.model == "custom") != (custom is not None):
        raise ConfigError(
            f"local.model={settings.model!r} and custom is {'missing' if custom is None else 'given'}: they go "
            "together; set model to 'custom' and pass a function that makes the module, or do neither"
        )
    with streams.global_generator("local", round):
        model: nn.Module
        if custom is not None:
            model = CustomLocal(custom(dim), normalize=normalize)
        else:
            model = LOCAL_MODELS[settings.model](settings, dim, holders, normalize)
        return model.to(dtype)
