"""Tell the tokens that were hidden from an encoder."""

from __future__ import annotations

import torch

from transformer_kit.batch import Batch, Specials
from transformer_kit.data.noise import mask_tokens
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.nn.cross_entropy import Spread
from transformer_kit.objectives.blocks import block, part, tokens_of, wrapped
from transformer_kit.objectives.noisy import NoisyObjective, share


class MaskedLM(NoisyObjective):
    """−log p(token | the spoilt row), over the chosen tokens of each row.

    A document is read as `BOS text EOS`, packed documents as they are, each by itself. Padding, special tokens and
    unknown ones are neither chosen nor drawn.

    Args:
        specials: with a mask.
        rate: the share of each row's tokens that is chosen, above 0 and at most 1; one at least.
        masked: how probable it is that a chosen token becomes the mask.
        replaced: how probable it is that it becomes a token drawn from all; otherwise it stays.
        label_smoothing, smoothing_over, chunk: as in `TokenObjective`.

    Raises:
        ConfigError: an option out of its range; no mask.

    Source: Devlin et al. 2019, section 3.1, task 1.
    """

    families = frozenset({"encoder_only"})

    def __init__(
        self,
        specials: Specials,
        rate: float,
        masked: float,
        replaced: float,
        label_smoothing: float,
        smoothing_over: Spread,
        chunk: int,
    ) -> None:
        problems = share("rate", rate)
        for name, value in (("masked", masked), ("replaced", replaced)):
            if not 0 <= value <= 1:
                problems.append(f"objective.{name}={value}: must be at least 0 and at most 1")
        if masked + replaced > 1 + 1e-9:
            problems.append(f"objective.masked={masked} and objective.replaced={replaced}: must be at most 1 together")
        if specials.mask is None:
            problems.append("objective: MaskedLM needs a mask, which this tokenizer has not: set tokenizer.mask=true")
        super().__init__(problems, specials, label_smoothing, smoothing_over, chunk)
        self.rate, self.masked, self.replaced = rate, masked, replaced
        self.ordinary = ~self.special
        if specials.unk is not None:
            self.ordinary[specials.unk] = False

    def longest(self, length: int, packed: bool) -> int:
        return length if packed else length + 2

    def collate(self, rows: TextRows | LabelRows) -> Batch:
        assert isinstance(rows, TextRows)
        assert self.specials.mask is not None
        document = None
        if rows.packed:
            ids = part(rows.ids, 0, 1)
            document = None if rows.document is None else part(rows.document, 0, 1)
        else:
            ids = wrapped(self.text(rows), self.specials.bos, self.specials.eos)
        inputs, labels, chosen = mask_tokens(
            ids,
            rows.seeds,
            rate=self.rate,
            masked=self.masked,
            replaced=self.replaced,
            mask=self.specials.mask,
            ordinary=self.ordinary,
        )
        target = tokens_of(inputs, self.specials.pad, document)
        counts = torch.zeros_like(target.valid)
        counts[target.valid] = torch.from_numpy(chosen)
        return Batch(
            source=None,
            target=target,
            labels=block(labels, self.specials.pad)[0],
            counted=counts,
            num_labels=int(chosen.sum()),
            sample_ids=torch.as_tensor(rows.sample_ids).long(),
        )
