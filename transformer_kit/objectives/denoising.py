"""Write out what noise took from a text, with an encoder–decoder."""

from __future__ import annotations

import numpy as np
import torch

from transformer_kit.batch import Batch, Specials
from transformer_kit.data.noise import corrupt_spans, infill
from transformer_kit.data.ragged import Ints, Ragged
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.nn.cross_entropy import Spread
from transformer_kit.objectives.blocks import block, tokens_of, wrapped
from transformer_kit.objectives.noisy import NoisyObjective, share


class Denoising(NoisyObjective):
    """−log p(target | spoilt text): the encoder reads `inputs EOS`, the decoder predicts `target EOS`.

    Special tokens in the rows are left out, so a block of packed documents is one text. Subclasses make the noise.
    """

    families = frozenset({"encoder_decoder"})

    def noised(self, text: Ragged, seeds: Ints) -> tuple[Ragged, Ragged]:
        """Inputs and targets, without BOS and EOS."""
        raise NotImplementedError

    def longest(self, length: int, packed: bool) -> int:
        return length + 1

    def collate(self, rows: TextRows | LabelRows) -> Batch:
        assert isinstance(rows, TextRows)
        own = self.specials
        inputs, targets = self.noised(self.text(rows), rows.seeds)
        labels, counts = block(wrapped(targets, None, own.eos), own.pad)
        return Batch(
            source=tokens_of(wrapped(inputs, None, own.eos), own.pad),
            target=tokens_of(wrapped(targets, own.start, None), own.pad),
            labels=labels,
            counted=counts,
            num_labels=int(counts.sum()),
            sample_ids=torch.as_tensor(rows.sample_ids).long(),
        )


class SpanCorruption(Denoising):
    """Spans become sentinels; the target is each sentinel and what it stands for, and a last sentinel.

    Args:
        specials: with two sentinels or more; a row has at most one span less than there are.
        density: the share of tokens in spans, above 0 and below 1.
        mean_length: tokens of a span on average, at least 1.
        label_smoothing, smoothing_over, chunk: as in `TokenObjective`.

    Raises:
        ConfigError: an option out of its range; no sentinels.

    Source: Raffel et al. 2020, section 3.1.4; the defaults are of section 3.3.4.
    """

    def __init__(
        self,
        specials: Specials,
        density: float,
        mean_length: float,
        label_smoothing: float,
        smoothing_over: Spread,
        chunk: int,
    ) -> None:
        problems = []
        if not 0 < density < 1:
            problems.append(f"objective.density={density}: must be above 0 and below 1")
        if not mean_length >= 1:
            problems.append(f"objective.mean_length={mean_length}: must be at least 1")
        if len(specials.sentinels) < 2:
            problems.append(
                f"objective: SpanCorruption needs at least 2 sentinels, and this tokenizer has "
                f"{len(specials.sentinels)}: set tokenizer.sentinels=100"
            )
        super().__init__(problems, specials, label_smoothing, smoothing_over, chunk)
        self.density, self.mean_length = density, mean_length
        self.sentinels = np.array(specials.sentinels, np.int64)

    def noised(self, text: Ragged, seeds: Ints) -> tuple[Ragged, Ragged]:
        return corrupt_spans(text, seeds, density=self.density, mean_length=self.mean_length, sentinels=self.sentinels)


class Infilling(Denoising):
    """Spans of Poisson lengths, also empty ones, become one mask each; the target is the whole text.

    Args:
        specials: with a mask.
        rate: the share of tokens in spans, above 0 and at most 1.
        mean_length: tokens of a span on average, above 0 and at most 100.
        label_smoothing, smoothing_over, chunk: as in `TokenObjective`.

    Raises:
        ConfigError: an option out of its range; no mask.

    Source: Lewis et al. 2020, section 2.2, text infilling; the rate is of section 5.1.
    """

    def __init__(
        self,
        specials: Specials,
        rate: float,
        mean_length: float,
        label_smoothing: float,
        smoothing_over: Spread,
        chunk: int,
    ) -> None:
        problems = share("rate", rate) + share("mean_length", mean_length, most=100)
        if specials.mask is None:
            problems.append("objective: Infilling needs a mask, which this tokenizer has not: set tokenizer.mask=true")
        super().__init__(problems, specials, label_smoothing, smoothing_over, chunk)
        self.rate, self.mean_length = rate, mean_length

    def noised(self, text: Ragged, seeds: Ints) -> tuple[Ragged, Ragged]:
        assert self.specials.mask is not None
        mask = self.specials.mask
        return infill(text, seeds, rate=self.rate, mean_length=self.mean_length, mask=mask), text
