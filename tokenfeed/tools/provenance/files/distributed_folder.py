"""A checkpoint of torch.distributed.checkpoint: a folder in which values lie under flattened keys.

Its `.metadata` is a pickle. Only the classes that it consists of are accepted, and records stand
in for them, so that reading it calls nothing. It says where the bytes of each value are, which are
those of torch.save. Only some are read: those of a dict with the keys of a state, and those that
mention these keys, which may be a state that was not flattened.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tokenfeed.commands.printable import printable

from .checkpoint_file import DAMAGED, Entry, Keys, opened, problem_of
from .pickle_bounds import require_bounded
from .torch_file import read_saved

METADATA = (".metadata", "__0.metadata")
"""Of all ranks, or of rank 0 if each rank has saved by itself: its feed has the same state."""
_METADATA_BYTES_MAX = 1 << 30
_ENTRY_BYTES_MAX = 16 << 20
"""A state has below 1 MB, also with thousands of sources."""
_KEYS_MAX = 100

_CHECKPOINT = "torch.distributed.checkpoint"
_ACCEPTED = {
    f"{_CHECKPOINT}.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
        *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    f"{_CHECKPOINT}.filesystem": {"_StorageInfo"},
    "torch.distributed._shard.sharded_tensor.metadata": {"MEM_FORMAT_ENCODING", "TensorProperties"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"},
}
"""The classes and functions of a metadata file, by module; and torch's dtypes."""
_TORCH = re.compile("Size|device|bool|(u?int|float|bfloat|complex|q?u?int|bits)[0-9][0-9a-z_]*")


class _Record:
    """Stands in for an object of a metadata file: it keeps what the object is made of."""

    values: Mapping[str, Any]

    def __new__(cls, *parts: Any, **named: Any) -> _Record:
        """Accept the arguments of any class."""
        record = super().__new__(cls)
        record.values = named
        return record

    def __setstate__(self, values: Any) -> None:
        """Take the attributes of the object."""
        self.values = values if isinstance(values, dict) else {}


class _Refusal(pickle.UnpicklingError):
    """A metadata file names what it does not consist of."""


def _member(kind: Any, name: Any) -> _Record:
    """Stand in for a member of an enum, which Python 3.11.0 to 3.11.3 saves as an attribute of its
    class.
    """
    if not (isinstance(kind, type) and issubclass(kind, _Record)):
        raise _Refusal("builtins.getattr")
    return kind()


class _Reader(pickle.Unpickler):
    """Reads a metadata file without calling anything that it names."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._records: dict[str, type[_Record]] = {}

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return what stands in for a class."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("builtins", "getattr"):
            return _member
        is_accepted = name in _ACCEPTED.get(module, ())
        if not is_accepted and not (module == "torch" and _TORCH.fullmatch(name)):
            raise _Refusal(f"{module}.{name}")
        return self._records.setdefault(name, type(name, (_Record,), {}))


@dataclass(frozen=True, slots=True)
class _Entry:
    """The bytes of a value: keys that lead to it, file within the folder, and place in it."""

    keys: Keys
    file: str
    first_byte: int
    size_bytes: int


def read_distributed(folder: Path, state_keys: Sequence[str]) -> list[Entry]:
    """Return the values of a checkpoint's folder that may be states.

    state_keys: the keys that a state has at least.  Raises: InvalidRequest.
    """
    entries = _entries(folder)
    by_parent: dict[Keys, dict[str | int, _Entry]] = {}
    for entry in entries:
        by_parent.setdefault(entry.keys[:-1], {})[entry.keys[-1]] = entry
    flattened = {
        keys: parts for keys, parts in by_parent.items() if keys and parts.keys() >= set(state_keys)
    }
    found = [
        Entry(keys, {key: read_saved(folder, _content(folder, one)) for key, one in parts.items()})
        for keys, parts in flattened.items()
    ]
    for entry in entries:
        if entry.keys[:-1] not in flattened and entry.size_bytes <= _ENTRY_BYTES_MAX:
            content = _content(folder, entry)
            if all(key.encode() in content for key in state_keys):
                found.append(Entry(entry.keys, read_saved(folder, content)))
    return found


def _entries(folder: Path) -> list[_Entry]:
    """Return where the values are that are no tensors."""
    path = next(each for name in METADATA if os.path.lexists(each := folder / name))
    metadata = _metadata(path)
    try:
        kinds, places = metadata["state_dict_metadata"], metadata["storage_data"]
        keys = metadata.get("planner_data") or {}
        values = {
            index.values["fqn"]: place.values
            for index, place in places.items()
            if type(kinds.get(index.values["fqn"])).__name__ == "BytesStorageMetadata"
        }
        entries = [_entry(path, _keys(keys, name), place) for name, place in values.items()]
    except DAMAGED:
        raise problem_of(path, "is no metadata of torch.distributed.checkpoint") from None
    return entries


def _metadata(path: Path) -> Mapping[str, Any]:
    """Return the attributes of the metadata."""
    with opened(path) as (file, size_bytes):
        if size_bytes > _METADATA_BYTES_MAX:
            problem = f"has {size_bytes} bytes; the maximum is {_METADATA_BYTES_MAX}"
            raise problem_of(path, problem)
        try:
            content = file.read(size_bytes)
            require_bounded(path, content)
            metadata = _Reader(io.BytesIO(content)).load()
        except _Refusal as error:
            problem = f"is refused: it names {printable(error)[:100]}, which is no part of a"
            raise problem_of(path, f"{problem} checkpoint, and no code in one is run") from None
        except DAMAGED:
            raise problem_of(path, "is damaged or truncated") from None
    if type(metadata).__name__ != "Metadata" or not isinstance(metadata, _Record):
        raise problem_of(path, "is no metadata of torch.distributed.checkpoint")
    return metadata.values


def _keys(flattened: Any, name: str) -> Keys:
    """Return the keys that lead to a value: its name itself, if the checkpoint is not flattened."""
    keys = flattened.get(name) if isinstance(flattened, dict) else None
    if isinstance(keys, (tuple, list)) and 0 < len(keys) <= _KEYS_MAX:
        return tuple(key if isinstance(key, int) else str(key) for key in keys)
    return (str(name),)


def _entry(path: Path, keys: Keys, place: Mapping[str, Any]) -> _Entry:
    """Return where a value is.  Raises: InvalidRequest if it is outside of the folder."""
    file, first_byte, size_bytes = place["relative_path"], place["offset"], place["length"]
    name = ".".join(map(printable, keys))
    if place.get("transform_descriptors"):
        problem = f"has {name} compressed by an extension of its writer, which is not read"
        raise problem_of(path, f"{problem}; save the state by itself, for example as JSON")
    if not isinstance(file, str) or not {type(first_byte), type(size_bytes)} <= {int}:
        raise problem_of(path, f"has a damaged place of {name}")
    if PurePath(file).is_absolute() or ".." in PurePath(file).parts:
        problem = f"is refused: it has {name} in {printable(file)[:100]}, outside of the folder"
        raise problem_of(path, problem)
    return _Entry(keys, file, first_byte, size_bytes)


def _content(folder: Path, entry: _Entry) -> bytes:
    """Return the bytes of a value."""
    path = folder / entry.file
    name = ".".join(map(printable, entry.keys))
    with opened(path) as (file, file_bytes):
        first, size = entry.first_byte, entry.size_bytes
        if not 0 <= first <= first + size <= file_bytes:
            raise problem_of(path, f"is truncated, or its folder's metadata is wrong about {name}")
        if size > _ENTRY_BYTES_MAX:
            problem = f"has {size} bytes for {name}; the maximum of a state is {_ENTRY_BYTES_MAX}"
            raise problem_of(path, problem)
        file.seek(first)
        return file.read(size)
