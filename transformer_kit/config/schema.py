"""The typed skeleton of every configuration: which keys there are, of which type, and what must hold between them.

Options of a part stand beside its code (`<package>/options.py`); this module composes them. Defaults stand in the YAML
of `conf/`, never here. `problems()` gives (key, message) pairs for what types cannot say.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from transformer_kit.config.cluster_options import ClusterOptions
from transformer_kit.config.convert import INTERNAL, Slot
from transformer_kit.data.options import DataOptions
from transformer_kit.data.tokenizer_options import TokenizerOptions
from transformer_kit.decoding.generation_options import GenerationOptions
from transformer_kit.decoding.options import DecodingOptions
from transformer_kit.evaluation.options import METRICS as SCORES
from transformer_kit.training.options import METRICS, OptimizerOptions, ScheduleOptions, TrainerOptions
from transformer_kit.training.tracker_options import TrackerOptions

FORMAT = 4
"""The version of the saved configuration."""

SLOTS = ("position", "norm", "residual", "attention", "feedforward")
"""The open choices of a stack: each one a group `model/<slot>`, and `model/decoder/<slot>` for the decoder alone."""

LAYER_SLOTS = ("residual", "attention", "feedforward")
"""Those of which each layer has its own, so that a pattern may change them."""

LARGEST_SIZE, MOST_LAYERS = 10_000_000, 10_000
"""Far beyond any model; a slip of the finger is told before anything of that size is made."""

StackName = Literal["encoder", "decoder"]
FAMILIES: dict[str, tuple[StackName, ...]] = {
    "encoder_decoder": ("encoder", "decoder"),
    "decoder_only": ("decoder",),
    "encoder_only": ("encoder",),
}
"""The stacks of each family of models."""

Problems = list[tuple[str, str]]


@dataclass
class DropoutOptions:
    """Dropout rates, each at its place."""

    embedding: float
    residual: float
    attention: float
    feedforward: float

    def problems(self) -> Problems:
        rates = vars(self).items()
        return [(name, f"a rate is at least 0 and below 1, got {rate}") for name, rate in rates if not 0 <= rate < 1]


@dataclass
class StackOptions:
    """One stack: its depth, and the slots in which it differs from the model's.

    Attributes:
        cross_attention: the decoder's attention to the source, where it is not as its self-attention.
    """

    layers: int
    position: Slot | None = None
    norm: Slot | None = None
    residual: Slot | None = None
    attention: Slot | None = None
    feedforward: Slot | None = None
    cross_attention: Slot | None = None

    def problems(self) -> Problems:
        if 1 <= self.layers <= MOST_LAYERS:
            return []
        return [("layers", f"must be from 1 to {MOST_LAYERS:,}, got {self.layers}")]


@dataclass
class EmbeddingOptions:
    """The way in.

    Attributes:
        scale: times √d_model.
        norm: a norm behind embeddings and positions.
        types: how many kinds of segments (first and second sentence) are told apart; 0 for none.
    """

    scale: bool
    norm: bool
    types: int

    def problems(self) -> Problems:
        return [] if self.types >= 0 else [("types", f"must be at least 0, got {self.types}")]


@dataclass
class ModelOptions:
    """A model: its family, sizes, ties, dropout, and the parts that fill its slots.

    Attributes:
        encoder, decoder: the stacks of the family; null for one that it lacks.
        tie: which matrices are one; see `conf/model`.
        pooler: a dense layer over the first cell's state (encoder_only).
        pattern: slot options that differ between layers, one mapping per layer, repeated over depth:
            `[{attention: {window: 128}}, {}]`. A mapping with `_target_` replaces the slot, another changes options.
    """

    family: Literal["encoder_decoder", "decoder_only", "encoder_only"]
    d_model: int
    d_ff: int
    num_heads: int
    head_dim: int | None
    v_head_dim: int | None
    encoder: StackOptions | None
    decoder: StackOptions | None
    tie: Literal["three_way", "inputs", "output", "none"]
    embedding: EmbeddingOptions
    pooler: bool
    pattern: list[dict[str, dict[str, Any]]]
    max_length: int
    init: str
    dropout: DropoutOptions
    position: Slot
    norm: Slot
    residual: Slot
    attention: Slot
    feedforward: Slot
    head: Slot

    @property
    def stacks(self) -> tuple[StackName, ...]:
        """The names of the family's stacks."""
        return FAMILIES[self.family]

    @property
    def one_table(self) -> bool:
        """Whether source and target have one embedding."""
        return self.tie in ("three_way", "inputs")

    @property
    def key_width(self) -> int:
        """K, the width of a head's queries and keys."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """W, the width of a head's values."""
        return self.v_head_dim or self.key_width

    def slot(self, name: str, stack: StackName, layer: int = 0) -> dict[str, Any]:
        """The options of slot `name` in one layer of one stack."""
        own = getattr(getattr(self, stack), name)
        options = dict(getattr(self, name) if own is None else own)
        change = self.pattern[layer % len(self.pattern)].get(name, {}) if self.pattern else {}
        return dict(change) if "_target_" in change else options | change

    def problems(self) -> Problems:
        found = []
        for name in ("d_model", "d_ff", "num_heads", "head_dim", "v_head_dim", "max_length"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST_SIZE:
                found.append((name, f"must be from 1 to {LARGEST_SIZE:,}, got {value}"))
        if self.head_dim is None and self.num_heads >= 1 and self.d_model % self.num_heads:
            found.append(
                (
                    "num_heads",
                    f"d_model={self.d_model} does not divide into {self.num_heads} heads: give model.head_dim",
                )
            )
        for name in ("encoder", "decoder"):
            if (getattr(self, name) is None) == (name in self.stacks):
                what = f"needs layers: set model.{name}.layers" if name in self.stacks else f"has no {name}: set null"
                found.append((name, f"a model of the family {self.family} {what}"))
        if self.one_table and self.family != "encoder_decoder":
            found.append(("tie", f"{self.family} has one embedding: output shares it with the head, none does not"))
        if self.pooler and self.family != "encoder_only":
            found.append(("pooler", f"is for encoder_only, not for {self.family}"))
        for number, changes in enumerate(self.pattern):
            for slot in changes:
                if slot not in LAYER_SLOTS:
                    found.append((f"pattern.{number}.{slot}", f"layers may differ in {', '.join(LAYER_SLOTS)} only"))
        return found


@dataclass
class InitOptions:
    """What training starts from.

    Attributes:
        from_: the run folder whose weights are taken (`init.from`); parts that it lacks or that do not fit start afresh
            only where they belong to a head.
        freeze: parameters that are not trained: the beginnings of their names, dotted parts compared whole, where `0-3`
            stands for the numbers from 0 to 3.
    """

    from_: str | None = field(metadata={"path": True, "key": "from"})
    freeze: list[str]


@dataclass
class RunOptions:
    """Where a run lives, and what happens when its folder already holds another configuration."""

    root: str = field(metadata={"path": True})
    name: str | None
    resume: Literal["same", "changed"]
    overwrite: bool

    def problems(self) -> Problems:
        if self.name is None:
            return []
        parts = PurePath(self.name).parts
        if not parts or PurePath(self.name).is_absolute() or {"..", "."} & set(self.name.split("/")):
            return [("name", f"{self.name!r} must be the name of a folder inside run.root")]
        return []


@dataclass
class Source:
    """What a configuration was made from.

    Attributes:
        plain: the complete configuration as plain data, environment values unresolved.
        overrides: the overrides in Hydra's canonical spelling, in the order given.
    """

    plain: dict[str, Any]
    overrides: list[str]


@dataclass
class Config:
    """Everything that a training run needs; `tkit tokenize` reads its `data` and `tokenizer`.

    Attributes:
        cluster: where `+cluster=slurm` says that a job trains; no part of a run.
    """

    format: int
    seed: int
    init: InitOptions
    run: RunOptions
    model: ModelOptions
    data: DataOptions
    tokenizer: TokenizerOptions
    objective: Slot
    optimizer: OptimizerOptions
    schedule: ScheduleOptions
    trainer: TrainerOptions
    tracker: TrackerOptions
    decoding: DecodingOptions
    generation: GenerationOptions
    cluster: ClusterOptions | None = None
    source: Source = field(default_factory=lambda: Source({}, []), repr=False, compare=False, metadata=INTERNAL)

    def plain(self) -> dict[str, Any]:
        """The complete configuration as plain data, with `${oc.env:…}` unresolved and absolute paths."""
        return copy.deepcopy(self.source.plain)

    def problems(self) -> Problems:
        found = []
        if self.format != FORMAT:
            found.append(("format", f"this version reads format {FORMAT}, got {self.format}"))
        if not 0 <= self.seed < 2**63:
            found.append(("seed", f"must be between 0 and 2^63 - 1, got {self.seed}"))
        if self.model.one_table and self.data.kind == "pairs" and not self.tokenizer.joint:
            found.append(
                (
                    "model.tie",
                    f"{self.model.tie} shares one matrix between both languages and needs tokenizer.joint=true; "
                    "separate vocabularies take model.tie=output or none",
                )
            )
        found += [(f"tokenizer.{key}", message) for key, message in self.tokenizer.misfits(self.data.kind)]
        if self.trainer.ranks.parallel == "fsdp" and self.optimizer.name == "adafactor":
            why = "adafactor's sums over rows and columns need whole matrices, of which each rank would hold some rows"
            found.append(("trainer.ranks.parallel", f"{why}: take ddp, or optimizer=adam, adamw or muon"))
        return found + self._metric_problems()

    def _metric_problems(self) -> Problems:
        """A validation that cannot be made, or models chosen by what it does not measure."""
        measured = {"perplexity": self.data.kind != "labels", "bleu": self.data.kind == "pairs"}
        metric, name = self.trainer.best_metric, self.trainer.validation.bleu
        if name is not None and name not in SCORES:
            return [("trainer.validation.bleu", f"must be one of {', '.join(SCORES)}, or null; not '{name}'")]
        if measured.get(metric, True):
            return []
        valid = [name for name in METRICS if measured.get(name, True)]
        return [("trainer.best_metric", f"the validation of this run measures no {metric}: take {', '.join(valid)}")]


@dataclass
class AblationOptions:
    """Where the tables of an ablation go, and how its points are trained.

    Attributes:
        root, name: the tables go to root/name; null: the recipe and the axes.
        workers: points at once on this machine, each with its share of the cores and GPUs.
        trials: how many points a search tries, where axes are intervals; null: every combination is trained.
    """

    root: str = field(metadata={"path": True})
    name: str | None
    workers: int
    trials: int | None

    def problems(self) -> Problems:
        named = {"workers": self.workers, "trials": self.trials}
        return [(k, f"must be at least 1, not {v}") for k, v in named.items() if v is not None and v < 1]


@dataclass
class AblateConfig(Config):
    """A training configuration and where the table of its variants goes."""

    ablation: AblationOptions = field(kw_only=True)

    def problems(self) -> Problems:
        refused = "is for `tkit train`; the points of a sweep become an array job by hydra/launcher=slurm"
        return super().problems() + ([] if self.cluster is None else [("cluster", refused)])


ENTRIES: dict[str, type[Config]] = {"train": Config, "tokenize": Config, "ablate": AblateConfig}
"""The top-level configurations `conf/<entry>.yaml`, each with its type."""


def flatten(data: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of plain data with their dotted keys; a list and an empty mapping are leaves."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flatten(value, f"{at}.{key}" if at else str(key))
    else:
        yield at, data


FREE_OF_WEIGHTS = ("decoding.", "generation.", "trainer.device", "trainer.threads", "trainer.precision")
"""What the commands that use a trained run may change in its configuration."""
