"""Optimizers by name. The fused implementations update all parameters in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from transformer_kit.training.options import OptimizerOptions


def build_optimizer(options: OptimizerOptions, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """An optimizer of the parameters that take gradients.

    `adam` is Kingma & Ba 2015, algorithm 1. `adamw` is Loshchilov & Hutter 2019, algorithm 2, in which matrices and
    tables (two axes or more) decay; vectors (norms, biases) do not. The learning rate is 0 until the loop sets it.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    b1, b2 = options.betas
    if options.name == "adam":
        return torch.optim.Adam(trained, lr=0.0, betas=(b1, b2), eps=options.eps, fused=True)
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    filled = [group for group in groups if group["params"]]
    return torch.optim.AdamW(filled, lr=0.0, betas=(b1, b2), eps=options.eps, fused=True)
