"""How the texts of a run are framed, for the commands that read and do not write."""

from __future__ import annotations

from typing import Any

from transformer_kit.decoding.reading import Frame
from transformer_kit.models.classifier import Classifier
from transformer_kit.tasks.load import Loaded, model_limit


def frame_of(loaded: Loaded) -> Frame:
    """What stands around a text that the run's model reads, as it did in training.

    - A classifier: `BOS text EOS`.
    - An encoder of documents: `BOS text EOS`, or what the documents have around them where they were packed.
    - A decoder of documents: what the documents have around them.
    - An encoder–decoder: `text EOS`, of the source; a decoder that translates: the same, as a prefix.
    """
    config, data = loaded.config, loaded.config.data
    own = loaded.tokenizers.source.specials
    begin, end = (own.bos,), (own.eos,)
    most = model_limit(config)
    if isinstance(loaded.model, Classifier):
        return Frame(begin, end, own.pad, most)
    family = config.model.family
    if family == "encoder_decoder" or data.kind == "pairs":
        return Frame((), end, own.pad, most, prefix=family == "decoder_only")
    documents: Any = data
    if family == "encoder_only" and not getattr(documents, "pack", False):
        return Frame(begin, end, own.pad, most)
    return Frame(begin if documents.bos else (), end if documents.eos else (), own.pad, most)
