"""Train, decode and compare Transformers from declarative YAML.

    from transformer_kit import load, Translator

`load` gives the model, tokenizers and configuration of a run folder. `Translator`, `Generator`, `Classifier`,
`MaskFiller` and `Embedder` do with a run what the commands translate, generate, classify, fill-mask and embed do.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_kit.tasks.api import Classifier, Embedder, Generator, MaskFiller, Translator
    from transformer_kit.tasks.load import load

__all__ = ["Classifier", "Embedder", "Generator", "MaskFiller", "Translator", "load"]


def __getattr__(name: str) -> object:
    # Loaded when asked for: the command line must not pay for torch before it needs it.
    if name == "load":
        from transformer_kit.tasks.load import load

        return load
    if name in __all__:
        from transformer_kit.tasks import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
