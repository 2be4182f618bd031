"""Pieces of SentencePiece models that this toolkit trained.

- Ids: 0 padding, 1 unknown, 2 BOS, 3 EOS, then tags, the mask and sentinels, then pieces of text.
- With byte fallback U+2581, which SentencePiece uses for the space, is escaped first, so that no character is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property

import sentencepiece

from transformer_kit.data.subword_sampling import SubwordSampler, make_sampler
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import MASK, SENTINEL, Tokenizer
from transformer_kit.errors import DataError
from transformer_kit.specials import Specials

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
SPACE = "▁"  # U+2581
ESCAPE = "\ue581"  # private use; `ESCAPE u` stands for U+2581 and `ESCAPE e` for itself


class SentencePieceTokenizer(Tokenizer):
    """A unigram or BPE model.

    Args:
        model: a serialized SentencePiece model.
        rule, tag, prefix: see `Tokenizer`.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, rule: TextRule, tag: str | None = None, prefix: str = "") -> None:
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise DataError(f"the tokenizer's SentencePiece model is damaged ({error}); train it again") from None
        special = tuple(getattr(self._pieces, name)() for name in ("pad_id", "unk_id", "bos_id", "eos_id"))
        if special != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise DataError(f"the SentencePiece model numbers pad, unk, BOS, EOS {special}; they must be (0, 1, 2, 3)")
        controls: dict[str, int] = {}
        for number in range(EOS_ID + 1, len(self._pieces)):
            if not self._pieces.is_control(number):
                break
            controls[self._pieces.id_to_piece(number)] = number
        self._byte_fallback = self._pieces.piece_to_id("<0x00>") != UNK_ID
        self._sampler: SubwordSampler | None = None
        specials = Specials(
            pad=PAD_ID,
            bos=BOS_ID,
            eos=EOS_ID,
            unk=UNK_ID,
            mask=controls.get(MASK),
            sentinels=tuple(number for name, number in controls.items() if SENTINEL.match(name)),
            vocab_size=len(self._pieces),
            start=BOS_ID,
        )
        super().__init__(model, rule, specials, controls=controls, tag=tag, prefix=prefix)

    @cached_property
    def fingerprint(self) -> str:
        # As it was before there were kinds: saved runs and prepared data name their tokenizer by it.
        return hashlib.sha256(self.model + json.dumps(asdict(self.rule), sort_keys=True).encode()).hexdigest()

    def cut(self, lines: list[str]) -> list[list[int]]:
        try:
            ids: list[list[int]] = self._pieces.encode(self._escape(lines), out_type=int, num_threads=1)
        except (UnicodeEncodeError, TypeError):  # a lone surrogate, which only a Python caller can pass
            clean = [line.encode("utf-8", "replace").decode("utf-8") for line in lines]
            ids = self._pieces.encode(self._escape(clean), out_type=int, num_threads=1)
        return ids

    def sample(self, lines: list[str], seeds: Sequence[int], alpha: float) -> list[list[int]]:
        if self._sampler is None or self._sampler.alpha != alpha:
            self._sampler = make_sampler(self.model, alpha)
        return self._sampler.sample(self._pieces.normalize(self._escape(lines)), seeds)

    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        if not len(rows):
            return []
        lines: list[str] = self._pieces.decode([list(map(int, row)) for row in rows], num_threads=1)
        return [_unescape(line) if ESCAPE in line else line for line in lines] if self._byte_fallback else lines

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces.id_to_piece(int(one)) for one in ids]

    def _escape(self, lines: list[str]) -> list[str]:
        if not self._byte_fallback:
            return lines
        return [
            line.replace(ESCAPE, ESCAPE + "e").replace(SPACE, ESCAPE + "u") if SPACE in line or ESCAPE in line else line
            for line in lines
        ]


def _unescape(line: str) -> str:
    return line.replace(ESCAPE + "u", SPACE).replace(ESCAPE + "e", ESCAPE)
