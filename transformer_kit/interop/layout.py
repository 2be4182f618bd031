"""What a layout is: configurations to model options and back, and the rules of its tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.interop.foreign import Foreign
from transformer_kit.interop.holds import check_holds
from transformer_kit.interop.options import Plain
from transformer_kit.interop.tables import Names, Rule, to_ours, to_theirs

CLASSIFIER = "classifier.weight"  # in the state of a model that tells classes apart


@dataclass(frozen=True)
class Extent:
    """Sizes that a model has from its data.

    Attributes:
        source: rows of the (source) embedding.
        target: rows of the target embedding; as many for a model of one stack.
        classes: outputs of a classifier on top of it; 0 for none.
    """

    source: int
    target: int
    classes: int = 0


class Layout(ABC):
    """One way of storing a kind of model.

    Attributes:
        names: how its tensors are called besides the rules.
        model_types: values of `model_type` in its configurations.
        family: of the models that it holds.
        classifiers: whether it holds classifiers on top of them.
    """

    names: ClassVar[Names]
    model_types: ClassVar[tuple[str, ...]]
    family: ClassVar[str]
    classifiers: ClassVar[bool] = False

    @abstractmethod
    def read(self, hf: Foreign, tensors: Collection[str] | None) -> Plain:
        """Our options of its configuration.

        Args:
            hf: the configuration.
            tensors: names in the file, which tell heads apart that the configuration does not; None: not known.
        """

    @abstractmethod
    def write(self, options: Plain, extent: Extent) -> Plain:
        """Its configuration for our options, as far as it can say them."""

    @abstractmethod
    def rules(self, options: Plain, extent: Extent) -> list[Rule]:
        """Where each tensor of ours stands."""

    @abstractmethod
    def extent(self, hf: Foreign) -> Extent:
        """The sizes that its model has from its data."""

    @abstractmethod
    def extent_of(self, state: Mapping[str, Tensor]) -> Extent:
        """The same, of a state dict of ours."""

    def model_options(self, hf_config: Mapping[str, Any], tensors: Collection[str] | None = None) -> Plain:
        """Plain data for `build_model`, of a parsed `config.json`.

        Raises:
            ConfigError: it describes what no model here computes.
        """
        hf = Foreign(hf_config, self.names.layout)
        hf.must_be("quantization_config", why="quantised weights are not read; take the full-precision ones")
        return self.read(hf, tensors)

    def from_hf(self, tensors: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> dict[str, Tensor]:
        """The state dict of the model that `model_options` describes.

        Raises:
            ConfigError, CheckpointError: naming what does not fit.
        """
        options = self.model_options(hf_config, tensors.keys())
        rules = self.rules(options, self.extent(Foreign(hf_config, self.names.layout)))
        return to_ours(tensors, rules, self.names)

    def to_hf(self, state: Mapping[str, Tensor], model_options: Mapping[str, Any]) -> tuple[Plain, dict[str, Tensor]]:
        """A `config.json` and tensors of this layout.

        Raises:
            ConfigError: the layout cannot hold such a model; one line for each option.
            CheckpointError: the state is not that model's.
        """
        if model_options["family"] != self.family:
            raise ConfigError(
                f"model.family={model_options['family']}: the {self.names.layout} layout holds {self.family} models"
            )
        if CLASSIFIER in state and not self.classifiers:
            raise ConfigError(f"this model tells classes apart: the {self.names.layout} layout holds none such here")
        options, state = self.prepared(dict(model_options), state)
        extent = self.extent_of(state)
        hf_config, rules = self.write(options, extent), self.rules(options, extent)
        written = [piece.name for rule in rules for piece in rule.pieces]
        check_holds(self.names.layout, options, self.model_options(hf_config, written))
        tensors = to_theirs(state, rules, self.names)
        if hf_config["architectures"][0] in self.bare():
            tensors = {_bare(name, self.names.prefixes): tensor for name, tensor in tensors.items()}
        return hf_config, tensors

    def prepared(self, options: Plain, state: Mapping[str, Tensor]) -> tuple[Plain, Mapping[str, Tensor]]:
        """An equal model in the form that the layout has; here the model itself."""
        return options, state

    def bare(self) -> Sequence[str]:
        """Architectures whose tensors stand without a prefix."""
        return ()


def _bare(name: str, prefixes: Sequence[str]) -> str:
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name


def one_stack(hf: Foreign, default: int, classes: int = 0) -> Extent:
    """The extent of a model of one stack."""
    rows = hf.integer("vocab_size", default)
    return Extent(rows, rows, classes)
