"""A stack of blocks: (B, L, D) in, (B, L, D) out. It knows positions and masks, and nothing of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transformer_kit.batch import Cells
from transformer_kit.nn.attention import SelfView
from transformer_kit.nn.block import Block, CrossView
from transformer_kit.nn.dropout import Dropout
from transformer_kit.nn.kernels import Visibility
from transformer_kit.nn.mask import Mask
from transformer_kit.nn.norm.base import Norm
from transformer_kit.nn.position.base import Position
from transformer_kit.nn.state import DecoderState

Layered = tuple[Tensor, dict[str, Tensor]]
RunLayer = Callable[[Block, Tensor, SelfView, CrossView | None], Layered]


def run_layer(block: Block, x: Tensor, view: SelfView, cross: CrossView | None) -> Layered:
    """One layer in training, as a function: what can be compiled, or run a second time."""
    layered: Layered = block(x, view, cross)
    return layered


@dataclass(frozen=True)
class Memory:
    """What an encoder leaves for a decoder.

    Attributes:
        hidden: (B, S, D).
        valid: (B, S) bool, True at real tokens.
        full: True when no cell is padding.
    """

    hidden: Tensor
    valid: Tensor
    full: bool

    @property
    def mask(self) -> Mask:
        return Mask(key_valid=None if self.full else self.valid)


class Stack(nn.Module):
    """Positions, dropout, blocks and, where the residual form asks for it, a last norm.

    Padded cells are zeroed once, where the input comes in; the position bias is made once and shared by all layers, the
    mask once for each window that some layer has.

    Args:
        position: the position scheme, shared by the layers.
        blocks: the layers, first to last.
        final_norm: the norm after the last layer, or None.
        dropout: probability in [0, 1) on the input after positions were added.
        causal: whether a cell sees only itself and earlier cells.
        input_norm: the norm of the input after positions were added, before dropout, or None.

    Attributes:
        compiled: in training, how a layer is run (`training/compiling.py`); None: as it is written.
        checkpointing: in training, keep of each layer its input alone, and run it again on the way back, with the same
            random draws: less memory for a third more work, the same gradients.

    Source: checkpointing: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """

    checkpointing = False
    compiled: RunLayer | None = None

    def __init__(
        self,
        position: Position,
        blocks: Sequence[Block],
        final_norm: Norm | None,
        dropout: float,
        causal: bool,
        input_norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.position = position
        self.input_norm = input_norm
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm
        self.causal = causal

    def forward(
        self,
        x: Tensor,
        cells: Cells,
        memory: Memory | None = None,
        state: DecoderState | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run all layers.

        Args:
            x: (B, T, D) embedded tokens.
            cells: their positions, and what belongs together.
            memory: what the cross-attentions read when there is no `state`.
            state: earlier cells, with these already counted in by `state.append`; its caches grow. Cells of a prefix
                must come in one call.

        Returns:
            hidden (B, T, D) and the sums of the layers' auxiliary values.
        """
        assert cells.document is None or state is None, "packed documents are for training"
        x = self.position.embed(x, cells.at)
        x = self.dropout(x if self.input_norm is None else self.input_norm(x))
        if cells.valid is not None:
            x = x.masked_fill(~cells.valid[..., None], 0.0)
        views = self._self_views(x, cells, state)
        seen = None
        if memory is not None:
            seen = Visibility(memory.mask, None, x.shape[1], memory.hidden.shape[1], x.device)
        elif state is not None and state.cross:
            keys = state.cross[0][0].shape[2]
            seen = Visibility(Mask(key_valid=state.memory_valid), None, x.shape[1] * state.beams, keys, x.device)
        training = self.training and state is None and torch.is_grad_enabled()
        if training and (self.checkpointing or self.compiled):
            _make_masks([*(view.seen for view in views.values()), *([] if seen is None else [seen])], x)
        aux: dict[str, Tensor] = {}
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            cross: CrossView | None = None
            if seen is not None and state is not None:
                cross = (state.cross[number], seen)
            elif seen is not None and memory is not None:
                cross = (memory.hidden, seen)
            view = views[block.self_attention.window]
            run = self.compiled if training and self.compiled else run_layer
            if training and self.checkpointing:
                x, sums = checkpoint(run, block, x, view, cross, use_reentrant=False, preserve_rng_state=True)
            elif training:
                x, sums = run(block, x, view, cross)
            else:
                x, sums = block(x, view, cross, None if state is None else state.caches[number])
            aux = add_sums(aux, sums)
        return x if self.final_norm is None else self.final_norm(x), aux

    def _self_views(self, x: Tensor, cells: Cells, state: DecoderState | None) -> dict[int | None, SelfView]:
        """What self-attention sees, for each window that some layer has."""
        queries, at, prefix = x.shape[1], cells.at, cells.prefix if self.causal else None
        if state is None:
            key_at, key_valid, offset = at, cells.valid, 0
            if self.causal and cells.behind and prefix is None and (self.compiled or not x.is_cpu):
                key_valid = None  # tokens do not see what is behind them: nothing but "causal" is fastest on a GPU
        else:
            key_at, key_valid, offset = state.key_at, state.key_valid, state.length - queries
            if prefix is not None:  # later keys are the new ones alone; the earlier are seen anyhow
                prefix = F.pad(prefix, (offset, 0))
        packed = None if cells.document is None else (cells.document, cells.document)
        keys, bias = key_at.shape[1], self.position.bias(at, key_at)
        views = {}
        for block in self.blocks:
            assert isinstance(block, Block)
            window = block.self_attention.window
            if window not in views:
                mask = Mask(self.causal, window, key_valid, packed, offset, prefix)
                views[window] = SelfView(self.position, at, Visibility(mask, bias, queries, keys, x.device))
        return views


def checkpoint_activations(model: nn.Module, on: bool) -> None:
    """Let the stacks of a model keep the inputs of their layers alone, or all activations; see `Stack`."""
    for module in model.modules():
        if isinstance(module, Stack):
            module.checkpointing = on


def _make_masks(seen: Sequence[Visibility], x: Tensor) -> None:
    """Make what the layers share now: made in the first layer, its second run would find it made, and differ."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    for each in seen:
        each.additive(dtype)


def add_sums(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums by name, added where both have the name."""
    return one | {name: one[name] + value if name in one else value for name, value in other.items()}
