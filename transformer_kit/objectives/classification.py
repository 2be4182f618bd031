"""Tell the label of a text, or of a pair of texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from transformer_kit.batch import Batch, Specials, Tokens
from transformer_kit.data.ragged import Ragged, beside
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.models.classifier import Classifier, Pooling
from transformer_kit.nn.cross_entropy import entropy, smoothed_target
from transformer_kit.objectives.base import Objective, Sums
from transformer_kit.objectives.blocks import block, tokens_of, wrapped
from transformer_kit.objectives.tokens import counted

POOLING: dict[str, Pooling] = {"encoder_only": "first", "decoder_only": "last", "encoder_decoder": "mean"}
"""What is pooled where `pooling` is null, by family."""


class Classification(Objective):
    """−Σ_j q_j log p(j | row), one label a row, with a fresh classifier on a model of any family.

    The row is `BOS text EOS`, or `BOS first EOS second EOS` with the second text and its EOS as the second segment,
    where the model tells segments apart. Perplexity comes from `metrics["nll"]`, which knows no smoothing.

    Args:
        specials: of the tokenizer.
        pooling: first, mean or last (`models/classifier.py`); None: as `POOLING` says.
        pooler: put a dense layer and tanh before the classifier, as BERT does.
        dropout: rate before the classifier, 0 <= dropout < 1.
        label_smoothing: ε, 0 <= ε < 1, spread over all labels.

    Raises:
        ConfigError: an option out of its range.

    Source: Devlin et al. 2019, sections 3.2 and 4.1; Radford et al. 2018, section 3.2.
    """

    reads = "labels"
    families = frozenset(POOLING)

    def __init__(
        self, specials: Specials, pooling: Pooling | None, pooler: bool, dropout: float, label_smoothing: float
    ) -> None:
        super().__init__()
        problems = []
        if pooling not in (None, "first", "mean", "last"):
            problems.append(f"objective.pooling={pooling}: must be one of first, mean, last, null")
        for name, value in (("dropout", dropout), ("label_smoothing", label_smoothing)):
            if not 0 <= value < 1:
                problems.append(f"objective.{name}={value}: must be at least 0 and below 1")
        if problems:
            raise ConfigError(problems)
        self.specials, self.pooling, self.pooler = specials, pooling, pooler
        self.dropout, self.label_smoothing = dropout, label_smoothing

    def adapt(self, model: Model, classes: int | None) -> Model:
        assert classes is not None, "labelled data have classes"
        return Classifier(model, classes, self.pooling or POOLING[model.family], self.pooler, self.dropout)

    def collate(self, rows: TextRows | LabelRows) -> Batch:
        assert isinstance(rows, LabelRows)
        labels = torch.as_tensor(rows.labels).long()[:, None]  # (B, 1)
        return Batch(
            source=None,
            target=self.tokens(rows.first, rows.second),
            labels=labels,
            counted=torch.ones_like(labels, dtype=torch.bool),
            num_labels=len(labels),
            sample_ids=torch.as_tensor(rows.sample_ids).long(),
        )

    def tokens(self, first: Ragged, second: Ragged | None) -> Tokens:
        """What a classifier reads: B texts or pairs of texts, without special tokens -> (B, L)."""
        own = self.specials
        ids = wrapped(first, own.bos, own.eos)
        if second is None:
            return tokens_of(ids, own.pad)
        other = wrapped(second, None, own.eos)
        segments = beside([Ragged(np.full(len(each.flat), n), each.offsets) for n, each in enumerate((ids, other))])
        return replace(tokens_of(beside([ids, other]), own.pad), types=block(segments, 0)[0])

    def floor(self, model: Model) -> float:
        assert isinstance(model, Classifier)
        classes = model.classifier.out_features
        return entropy(smoothed_target(classes, self.label_smoothing, "all", -1), classes)

    def forward(self, model: nn.Module, batch: Batch) -> Sums:
        logits, labels = counted(model(batch).hidden, batch)  # (N, C), (N,)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        with torch.no_grad():
            nll = F.cross_entropy(logits, labels, reduction="sum")
            correct = (logits.argmax(1) == labels).sum()
        return Sums(loss, batch.num_labels, {"nll": nll, "correct": correct})
