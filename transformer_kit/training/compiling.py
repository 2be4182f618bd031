"""Layers through torch.compile: one graph for all layers of a kind and for all lengths.

- The layers are compiled, not the whole step: they are where the time goes, they are alike, so that a few graphs serve
  a model of any depth, and the rest (embeddings, masks, the chunked loss) has little to fuse.
- Sizes of batches are symbols from the start. What would still make a graph of its own is whether a batch has padding
  at all, so every batch is said to have some.
- While a graph is made, parts choose plain operations (`torch.compiler.is_compiling`): the compiler fuses and derives
  them better than what is done by hand for a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from transformer_kit.batch import Batch, Tokens
from transformer_kit.logs import get_logger
from transformer_kit.models.stack import Layered, Stack, run_layer
from transformer_kit.nn.attention import SelfView
from transformer_kit.nn.block import Block, CrossView
from transformer_kit.nn.kernels import Visibility

log = get_logger(__name__)
MOST_GRAPHS = 64  # beyond it torch would go on without compiling


class Compiler:
    """Compiles the layers of models, and counts.

    Args:
        backend: of `torch.compile`; `aot_eager` makes the same graphs and runs them without a code generator.

    Attributes:
        graphs: how many were compiled.
    """

    def __init__(self, backend: str = "inductor") -> None:
        self.graphs = self._reported = 0
        self._made = torch._dynamo.lookup_backend(backend)
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_GRAPHS)
        torch.fx.experimental._config.use_duck_shape = False  # sizes that are equal once need not be so again
        self._compiled = torch.compile(run_layer, backend=self._backend)

    def apply(self, model: nn.Module) -> None:
        """Let the stacks of a model run their layers compiled, in training."""
        for module in model.modules():
            if isinstance(module, Stack):
                module.compiled = self._run

    def _run(self, block: Block, x: Tensor, view: SelfView, cross: CrossView | None) -> Layered:
        _mark(x, 0, 1)
        _mark(view.at, 0, 1)
        _mark_seen(view.seen)
        if cross is not None:
            memory, seen = cross
            assert isinstance(memory, Tensor), "what is remembered is for decoding"
            _mark(memory, 0, 1)
            _mark_seen(seen)
        return self._compiled(block, x, view, cross)

    def report(self, update: int) -> None:
        """Log what an update compiled; behind the first one it is worth a look."""
        new, self._reported = self.graphs - self._reported, self.graphs
        if new and new == self.graphs:
            log.info("compiled the layers: %d graphs", new)
        elif new:
            log.info("update %d: compiled %d more graphs, %d so far", update, new, self.graphs)

    def _backend(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs += 1
        return self._made(graph, inputs)


def _mark(tensor: Tensor | None, *dims: int) -> None:
    """Tell the compiler that these sizes change, where they are not 1, which broadcasts."""
    if tensor is not None:
        torch._dynamo.maybe_mark_dynamic(tensor, [dim for dim in dims if tensor.shape[dim] != 1])


def _mark_seen(seen: Visibility) -> None:
    for tensor in (seen.visible, seen.blind, seen.bias, *seen.additives):
        _mark(tensor, 0, 2, 3)


def as_padded(batch: Batch) -> Batch:
    """A batch that does not know whether it has padding."""

    def unknown(tokens: Tokens) -> Tokens:
        return replace(tokens, full=False)

    return replace(batch, source=None if batch.source is None else unknown(batch.source), target=unknown(batch.target))
