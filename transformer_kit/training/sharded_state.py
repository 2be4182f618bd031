"""The optimizer's state of a model that is spread over ranks, through torch.distributed.checkpoint (DCP).

- Each rank writes the rows that it holds into a file of its own; `.metadata` says which rows lie where, so that any
  number of ranks, or one process alone, reads what it needs. The weights themselves go into one whole file as always.
- Rank 0 makes the folder, the manifest with the hashes that all ranks tell, and the one rename: a checkpoint is there
  for all ranks or for none.
- `.metadata` is a pickle: only the classes that describe tensors are let in, and only plain file names. Tensors load
  with `weights_only=True`.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from transformer_kit.errors import CheckpointError
from transformer_kit.training.checkpoint import METADATA, CheckpointStore, without_crc
from transformer_kit.training.files import Entry, flush, is_plain, sha256
from transformer_kit.training.shards import is_sharded

T = TypeVar("T")
Moments = Mapping[str, Mapping[str, Tensor]]
Group = dist.ProcessGroup | None

_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    *((f"{_DCP}.metadata", name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((f"{_DCP}.metadata", name) for name in ("ChunkStorageMetadata", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    *(("torch", name) for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")),
}


# -- writing -----------------------------------------------------------------------------------------------------------


def save_together(
    store: CheckpointStore,
    weights: Mapping[str, Tensor],
    moments: Moments,
    state: Mapping[str, Any],
    averaged: Mapping[str, Tensor] | None,
    group: Group,
) -> bool:
    """Write one checkpoint by all ranks of a group, which make this call together; is it there now?

    Args:
        store: rank 0's is asked.
        weights, averaged: whole tensors on rank 0; elsewhere they are not read.
        moments: what `optimizer_state` gives on each rank, or a snapshot of it.
        group: of gloo, and used by nobody else meanwhile; None: this process alone.
    """
    if _rank(group):
        folder = _told(None, group)
        if folder is not None:
            with suppress(OSError):  # rank 0 hears of it, and says it
                save_shards(folder, moments, group)
        return bool(_told(None, group))
    asked, path = False, None

    def write(folder: Path) -> dict[str, Entry]:
        nonlocal asked
        asked = True
        return save_shards(_told(folder, group), moments, group)

    try:
        path = store.save(weights, None, state, averaged, write)
    finally:
        if not asked:
            _told(None, group)
        _told(path is not None, group)
    return path is not None


def save_shards(folder: Path, moments: Moments, group: Group) -> dict[str, Entry]:
    """Write the parts of the optimizer's state that the ranks of a group hold into a folder, and flush them to disk.

    Returns:
        Size and hash of the files of all ranks by name, on each rank.

    Raises:
        OSError: on all ranks, where one could not write.
    """
    rank, problem = _rank(group), None
    entries: dict[str, Entry] = {}
    flat = {f"{name}/{key}": value for name, values in moments.items() for key, value in values.items()}
    try:
        with warnings.catch_warnings(action="ignore"), without_crc():  # it warns that there is one process alone
            writer = FileSystemWriter(folder, sync_files=True, overwrite=False)
            save(flat, storage_writer=writer, process_group=group, no_dist=group is None)
        names = sorted(path.name for path in folder.glob(f"__{rank}_*.distcp"))
        for name in names if rank else [*names, METADATA]:
            entries[name] = Entry((folder / name).stat().st_size, sha256(folder / name))
        flush(folder)
    except CheckpointException as error:
        problem = "; ".join(f"rank {number}: {_line(failure[0])}" for number, failure in error.failures.items())
    except Exception as error:  # the others wait for what this rank has to say
        problem = f"rank {rank}: {_line(error)}"
    found = _gathered((entries, problem), group)
    for _, problem in found:
        if problem is not None:
            raise OSError(problem)
    return {name: entry for each, _ in found for name, entry in each.items()}


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# -- reading -----------------------------------------------------------------------------------------------------------


def load_shards(folder: Path, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """What `optimizer_state` gave on the ranks that wrote the folder, spread as the model's parameters are now.

    Each rank reads the rows that it holds, by itself; one process with whole parameters reads all. Nothing is sent.

    Raises:
        CheckpointError: the files hold more than tensors, or cannot be read.
    """
    metadata = _read_metadata(folder / METADATA)
    parameters = dict(model.named_parameters())
    found: dict[str, Any] = {}
    try:
        for key, kept in metadata.state_dict_metadata.items():
            assert isinstance(kept, TensorStorageMetadata)
            found[key] = _room(kept, parameters.get(key.rpartition("/")[0]))
        with warnings.catch_warnings(action="ignore"):  # that every rank reads alone
            load(found, storage_reader=_Reader(folder, metadata), no_dist=True)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"{folder}: cannot be read ({_line(first)})") from None
    except (OSError, RuntimeError, ValueError, KeyError, AssertionError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({_line(error)})") from None
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in found.items():
        name, _, kind = key.rpartition("/")
        moments.setdefault(name, {})[kind] = value
    return moments


def _room(kept: TensorStorageMetadata, parameter: Tensor | None) -> Tensor:
    """An empty tensor for a value: spread as its parameter where it has that shape, else whole, on the CPU."""
    if parameter is not None and is_sharded(parameter) and parameter.shape == kept.size:
        return torch.zeros_like(parameter, dtype=kept.properties.dtype, requires_grad=False)
    return torch.zeros(kept.size, dtype=kept.properties.dtype)


class _Narrow(pickle.Unpickler):
    """Takes the classes that describe tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _read_metadata(path: Path) -> Metadata:
    """What lies where.

    Raises:
        CheckpointError: it is missing, or holds anything else.
    """
    refused = CheckpointError(f"{path}: cannot be read: it holds more than a description of tensors")
    try:
        with path.open("rb") as file:
            found = _Narrow(file).load()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception:  # a pickle may fail in any way
        raise refused from None
    if not isinstance(found, Metadata) or not isinstance(found.state_dict_metadata, dict):
        raise refused
    if not all(isinstance(kept, TensorStorageMetadata) for kept in found.state_dict_metadata.values()):
        raise refused
    if not isinstance(found.storage_data, dict):
        raise refused
    for place in found.storage_data.values():
        if not isinstance(place, _StorageInfo) or place.transform_descriptors:
            raise refused
        if not isinstance(place.relative_path, str) or "/" in place.relative_path or not is_plain(place.relative_path):
            raise CheckpointError(f"{path}: names {place.relative_path!r}, which is no plain name inside its folder")
    return found


class _Reader(FileSystemReader):
    """Reads the files of a folder whose description was read already."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        self._metadata = metadata

    def read_metadata(self) -> Metadata:
        return self._metadata


# -- among the ranks of a group ----------------------------------------------------------------------------------------


def _rank(group: Group) -> int:
    return 0 if group is None else dist.get_rank(group)


def _told(value: Any, group: Group) -> Any:
    """Rank 0's value, on each."""
    held = [value]
    if group is not None:
        dist.broadcast_object_list(held, src=dist.get_global_rank(group, 0), group=group)
    return held[0]


def _gathered(value: T, group: Group) -> list[T]:
    """The values of all ranks, in their order, on each."""
    if group is None:
        return [value]
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found
