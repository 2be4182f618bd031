"""`tkit convert`: foreign models to run folders, and run folders to foreign models."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer_kit.config.build import build_model, build_objective
from transformer_kit.config.compose import compose
from transformer_kit.config.plain import typed
from transformer_kit.config.run_folder import ENVIRONMENT, LABELS, RESULT, read_result
from transformer_kit.config.saved import FILE, dump, load_run
from transformer_kit.config.schema import Config
from transformer_kit.data.llama2c_tokenizer import Llama2cTokenizer, specials_of
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizers_folder import Model, read_tokenizers
from transformer_kit.data.tokenizers_imported import description
from transformer_kit.errors import CheckpointError, ConfigError, DataError, RunError
from transformer_kit.interop import files, llama2c
from transformer_kit.interop.foreign import Foreign
from transformer_kit.interop.layout import Layout
from transformer_kit.interop.layouts import LAYOUTS, layout_named, layout_of
from transformer_kit.interop.options import Plain
from transformer_kit.interop.tables import dropped
from transformer_kit.logs import get_logger
from transformer_kit.tasks.foreign_tokenizer import tokenizer_files
from transformer_kit.tasks.load import TOKENIZER, run_labels, run_tokenizers, run_weights
from transformer_kit.training.checkpoint import MODEL
from transformer_kit.training.files import sha256
from transformer_kit.training.weights import load_tensors, save_tensors, unique_tensors

log = get_logger(__name__)

HF, LLAMA2C = "hf:", "llama2c:"
IMPORTED = "imported"
GROUPS = {
    "decoder_only": ("causal_lm", "text"),
    "encoder_only": ("masked_lm", "text"),
    "encoder_decoder": ("translation", "parallel"),
}
"""The objective and the data that a model of each family is given."""
WITHOUT_BOS = ("gpt2",)  # documents of these begin with their first token
PACKAGES = ("torch", "safetensors", "tokenizers", "sentencepiece", "transformer-kit")


@dataclass(frozen=True)
class Foreigner:
    """A foreign model, read.

    Attributes:
        layout: the name of its layout.
        options: of our model.
        state: by our names.
        tokenizers: its own.
        labels: names of its classes; None where it is no classifier.
        ends: whether its documents end with EOS.
    """

    layout: str
    options: Plain
    state: dict[str, Tensor]
    tokenizers: Tokenizers
    labels: list[str] | None = None
    ends: bool = True


def import_model(source: str, output: Path, tokenizer: Path | None = None) -> Path:
    """Make a run folder of a foreign model.

    Args:
        source: `hf:FOLDER` or `llama2c:FILE`.
        output: the run folder to make; nothing may be there.
        tokenizer: the tokenizer's file, which `llama2c:` needs.

    Returns:
        The run folder.

    Raises:
        TkitError: the model cannot be read or held, or there is something at `output`; nothing is written then.
    """
    _refuse_existing(output)
    if source.startswith(HF):
        found = _read_folder(Path(source.removeprefix(HF)))
    else:
        found = _read_llama2c(Path(source.removeprefix(LLAMA2C)), tokenizer)
    config = _config(found, output)
    parameters = _check(found, config)
    with _whole(output) as folder:
        _write_run(folder, found, config, parameters)
    log.info("%s: a %s model of %s parameters", output, found.layout, f"{parameters:,}")
    return output


def export_model(run: Path, output: Path, layout: str | None = None, checkpoint: str | None = None) -> Path:
    """Make a folder that other libraries read of a run.

    Args:
        run: the run folder.
        output: the folder to make; nothing may be there.
        layout: its name; None takes the one that the run came from, or else the first that can hold the model.
        checkpoint: see `load`.

    Returns:
        The folder.

    Raises:
        TkitError: no layout can hold the model, with the reasons; nothing is written then.
    """
    _refuse_existing(output)
    config, tokenizers = load_run(run, check=False), run_tokenizers(run)
    if tokenizers is None:
        raise RunError(f"{run} has no tokenizer yet: its training has not started")
    _check_classifier(config)
    state = load_tensors(run_weights(run, config, checkpoint))
    options = config.plain()["model"]
    chosen, hf_config, tensors = _written(run, state, options, layout)
    hf_config |= _ids(tokenizers, chosen.family) | _labels(run) | {"dtype": "float32"}
    with _whole(output) as folder:
        files.write_folder(folder, hf_config, tensors)
        written, why = tokenizer_files(tokenizers, chosen.names.layout)
        for name, content in written.items():
            (folder / name).write_bytes(content)
    if why:
        log.warning("%s: the tokenizer is not written: %s", output, why)
    log.info("%s: %s layout, %d tensors", output, chosen.names.layout, len(tensors))
    return output


def _read_folder(folder: Path) -> Foreigner:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; hf: reads a local one with config.json")
    hf_config = files.read_config(folder)
    layout = layout_of(hf_config)
    tensors = files.read_tensors(folder)
    options = layout.model_options(hf_config, tensors.keys())
    for name in dropped(tensors, layout.names):
        log.warning("%s: %s is left out: no model here has this head", folder, name)
    extent = layout.extent(Foreign(hf_config, layout.names.layout))
    state = layout.from_hf(tensors, hf_config)
    about = Model(layout.names.layout, hf_config, extent.source, extent.target)
    labels = _named_labels(hf_config, extent.classes) if extent.classes else None
    return Foreigner(layout.names.layout, options, state, read_tokenizers(folder, about), labels)


def _read_llama2c(path: Path, tokenizer: Path | None) -> Foreigner:
    if tokenizer is None:
        raise ConfigError("llama2c: needs its tokenizer: give --tokenizer FILE.bin")
    options, state = llama2c.read_file(path)
    rows = len(state["embedding.weight"])
    try:
        model = tokenizer.read_bytes()
    except OSError as error:
        raise DataError(f"{tokenizer}: cannot be read: {error.strerror}") from None
    made = Llama2cTokenizer(model, description("llama2c", specials_of(rows)))
    if len(made.table) > rows:
        raise DataError(f"{tokenizer}: {len(made.table)} pieces; the model has {rows} rows")
    return Foreigner("llama2c", options, state, Tokenizers.one(made), ends=False)


def _named_labels(hf_config: Mapping[str, Any], classes: int) -> list[str]:
    names = hf_config.get("id2label")
    names = names if isinstance(names, Mapping) else {}
    return [str(names.get(str(number), f"LABEL_{number}")) for number in range(classes)]


def _config(found: Foreigner, output: Path) -> Config:
    """A complete configuration with the model in it."""
    family, labels = found.options["family"], found.labels
    objective, data = GROUPS[family] if labels is None else ("classification", "labels")
    plain = compose("train", [f"objective={objective}", f"data={data}"], check=False).plain()
    plain["model"] = found.options
    place = output.absolute()
    plain["run"] |= {"root": str(place.parent), "name": place.name}
    if data == "text":
        longest = found.options["max_length"] - (2 if family == "encoder_only" else 0)
        length = max(1, min(plain["data"]["length"], longest))
        bos = found.layout not in WITHOUT_BOS
        plain["data"] |= {"length": length, "pack": family == "decoder_only", "bos": bos, "eos": found.ends}
        # Without EOS the next BOS is the end of a document, which a model learns where it sees across.
        masked = plain["data"]["mask_documents"] and found.ends
        plain["data"]["mask_documents"] = masked and family == "decoder_only"
    if labels is not None:
        plain["objective"] |= {"pooling": "first", "pooler": True}
    return typed(Config, plain, [], [], check=False)


def _check(found: Foreigner, config: Config) -> int:
    """Build the model without memory and compare; the number of its parameters."""
    source, target = found.tokenizers.source, found.tokenizers.target
    objective = build_objective(config.objective, specials=target.specials)
    built = build_model(config.model, source.vocab_size, target.vocab_size, device="meta")
    built = objective.adapt(built, None if found.labels is None else len(found.labels))
    own = {name: tuple(tensor.shape) for name, tensor in unique_tensors(built).items()}
    read = {name: tuple(tensor.shape) for name, tensor in found.state.items()}
    wrong = [name for name in own.keys() | read.keys() if own.get(name) != read.get(name)]
    if wrong:
        name = min(wrong)
        raise CheckpointError(f"{name}: {read.get(name, 'missing')} was read, the model has {own.get(name, 'none')}")
    return sum(tensor.numel() for tensor in found.state.values())


def _write_run(folder: Path, found: Foreigner, config: Config, parameters: int) -> None:
    (folder / FILE).write_text(dump(config.plain()), encoding="utf-8")
    found.tokenizers.save(folder / TOKENIZER)
    save_tensors(folder / MODEL, found.state)
    if found.labels is not None:
        _dump(folder / LABELS, found.labels)
    versions = {name: metadata.version(name) for name in PACKAGES}
    _dump(folder / ENVIRONMENT, {TOKENIZER: found.tokenizers.fingerprint, "packages": versions})
    model = {"kind": IMPORTED, "layout": found.layout, "sha256": sha256(folder / MODEL)}
    _dump(folder / RESULT, {"status": IMPORTED, "parameters": parameters, "model": model})


def _dump(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _written(
    run: Path, state: Mapping[str, Tensor], options: Plain, name: str | None
) -> tuple[Layout, Plain, dict[str, Tensor]]:
    """The layout that holds the model, with what it writes."""
    origin = ((read_result(run) or {}).get("model") or {}).get("layout")
    if name is not None:
        candidates: Sequence[Layout] = [layout_named(name)]
    elif origin in LAYOUTS:
        candidates = [LAYOUTS[origin]]
    else:
        candidates = [layout for layout in LAYOUTS.values() if layout.family == options["family"]]
    problems = []
    for layout in candidates:
        try:
            return (layout, *layout.to_hf(state, options))
        except ConfigError as error:
            problems += error.problems
    raise ConfigError(problems)


def _check_classifier(config: Config) -> None:
    """Refuse a classifier that does not pool as BERT and RoBERTa do, which no option of the model says.

    Raises:
        ConfigError: it pools another way.
    """
    if config.data.kind != "labels":
        return
    objective = config.objective
    pooling, first = objective.get("pooling"), config.model.family == "encoder_only"
    if not objective.get("pooler") or pooling not in (("first", None) if first else ("first",)):
        raise ConfigError(
            f"objective.pooling={pooling}, objective.pooler={objective.get('pooler')}: a classifier of the bert and "
            "roberta layouts takes the first state and puts a pooler behind it"
        )


def _ids(tokenizers: Tokenizers, family: str) -> Plain:
    """The special ids that a foreign configuration says."""
    specials = tokenizers.target.specials
    found = {"pad_token_id": specials.pad, "bos_token_id": specials.bos, "eos_token_id": specials.eos}
    return found | ({"decoder_start_token_id": specials.start} if family == "encoder_decoder" else {})


def _labels(run: Path) -> Plain:
    """The names of a classifier's classes."""
    labels = run_labels(run)
    if labels is None:
        return {}
    named = {str(number): label for number, label in enumerate(labels)}
    return {"id2label": named, "label2id": {label: number for number, label in enumerate(labels)}}


def _refuse_existing(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise RunError(f"{output} is there already; give another -o, or remove it")


@contextmanager
def _whole(output: Path) -> Iterator[Path]:
    """A temporary folder that becomes `output` when the block ends well, and vanishes when it does not."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise RunError(f"{output.parent}: cannot be written ({error.strerror}); give another -o") from None
    try:
        yield made
        made.chmod(0o755)  # mkdtemp's folders are private
        _refuse_existing(output)
        made.rename(output)
    except OSError as error:
        raise RunError(f"{output}: cannot be written ({error.strerror}); free some space, or give another -o") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
