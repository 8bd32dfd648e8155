"""The states of feeds in the checkpoint of a trainer, whatever has written it.

A state is found by its shape, at any depth. Nothing in a checkpoint is trusted: no code in it is
run, and no tensor is read.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tokenfeed.client.feed.state import State, read_state
from tokenfeed.commands.printable import printable
from tokenfeed.errors import InvalidRequest, listed

from .files import distributed_folder, torch_file
from .files.checkpoint_file import Entry, Keys, opened, problem_of

_KEYS = ("version", "sample", "stream", "history", "planes")
_SUFFIXES = (".json", ".pt", ".pth", ".bin", ".pkl", ".ckpt", ".safetensors")
"""Of files in a folder that may have a state, as Accelerate, Lightning and Transformers name
them."""
_FILES_MAX = 1000
_DEPTH_MAX = 100
_CONTAINERS_MAX = 1_000_000
_STATES_MAX = 1000
_PICKLE = b"\x80"
_JSON_BYTES_MAX = 128 << 20
"""A state has below 1 MB; the largest other JSON beside models are logs of training."""
_HEADER_BYTES_MAX = 100_000_000
"""Of safetensors, by its own definition."""
_LENGTH = struct.Struct("<Q")
_PREFIX_BYTES = _LENGTH.size + 1
_NOT_FOUND = f"no dict with {', '.join(_KEYS)}"


class CheckpointState(NamedTuple):
    """A state of a feed.

    where: its dotted path within the checkpoint, printable; "" for the whole of it.
    """

    where: str
    state: State


def read_states(path: str | Path) -> list[CheckpointState]:
    """Return the states in a checkpoint, at least one.

    path: a file of JSON, torch.save or safetensors; or a folder with such files, or of
    torch.distributed.checkpoint, or both. Files within its folders are not looked for.
    Raises: InvalidRequest, naming the path, if it cannot be read, is refused, or has no state, or
    if a state is damaged or of another version.
    """
    path = Path(path)
    found = _in_folder(path) if os.path.isdir(path) else list(_of_shape(path, _read_file(path)))
    if not found:
        raise problem_of(path, f"has no state of a feed: {_NOT_FOUND}")
    return [_validated(path, each) for each in found]


def chosen(states: Sequence[CheckpointState], where: str | None) -> CheckpointState:
    """Return the state at a place, or the only one if the place is None.

    Raises: InvalidRequest, listing the places.
    """
    if where is None and len(states) == 1:
        return states[0]
    found = [state for state in states if state.where == where]
    if len(found) == 1:
        return found[0]
    places = listed([state.where or "''" for state in states])
    if where is None:
        raise InvalidRequest("feed", f"is missing; the checkpoint has {len(states)}: {places}")
    problem = "names several states" if found else "is no state of this checkpoint"
    raise InvalidRequest("feed", f"{printable(where)!r} {problem}; it has {places}")


def _in_folder(folder: Path) -> list[Entry]:
    """Return the states in a folder. Files that cannot be read matter only if there is none."""
    try:
        names = sorted(each.name for each in islice(folder.iterdir(), _FILES_MAX))
    except OSError as error:
        raise problem_of(folder, f"cannot be read: {error.strerror}") from None
    is_distributed = any((folder / name).exists() for name in distributed_folder.METADATA)
    files = [name for name in names if Path(name).suffix in _SUFFIXES]
    reads = [partial(distributed_folder.read_distributed, folder, _KEYS)] * is_distributed
    reads += [partial(_read_within, folder, name) for name in files]
    found: list[Entry] = []
    problems: list[InvalidRequest] = []
    for read in reads:
        try:
            found += _of_shape(folder, read())
        except InvalidRequest as error:  # noqa: PERF203 - another file may have it
            problems.append(error)
    if found:
        return found
    if problems:
        raise problems[0]
    if not reads:
        kinds = f"no .metadata of torch.distributed.checkpoint, and no {', '.join(_SUFFIXES)}"
        raise problem_of(folder, f"is no checkpoint: it has {kinds}")
    what = listed([".metadata"] * is_distributed + [printable(name) for name in files])
    raise problem_of(folder, f"has no state of a feed in {what}: {_NOT_FOUND}")


def _read_within(folder: Path, name: str) -> list[Entry]:
    return [Entry((name, *each.keys), each.value) for each in _read_file(folder / name)]


def _read_file(path: Path) -> list[Entry]:
    """Return the values of a file, by what it begins with."""
    with opened(path) as (file, _):
        prefix = file.read(_PREFIX_BYTES)
    if _is_safetensors(prefix):
        return _read_safetensors(path)
    if prefix.startswith(torch_file.ZIP):
        return torch_file.read_torch(path)
    return _read_json(path)


def _of_shape(path: Path, found: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the dicts that look like a state, in order; not those within one."""
    left = list(reversed(found))
    seen: set[int] = set()  # a container may contain itself
    state_count = 0
    while left:
        keys, value = left.pop()
        if _is_like_a_state(value):
            state_count += 1
            if state_count > _STATES_MAX:
                raise problem_of(path, f"has more than {_STATES_MAX} states of feeds")
            yield Entry(keys, dict(value))
            continue
        if not isinstance(value, (dict, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        if len(seen) > _CONTAINERS_MAX:
            raise problem_of(path, f"has more than {_CONTAINERS_MAX} dicts and lists")
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        if len(keys) < _DEPTH_MAX:
            inner = [
                Entry(_longer(keys, key), part)
                for key, part in parts
                if isinstance(part, (dict, list, tuple))
            ]
            left.extend(reversed(inner))


def _is_like_a_state(value: object) -> bool:
    # Each key is a word of GPT-2's vocabulary too, which lies in a tokenizer.json beside weights.
    return (
        isinstance(value, dict)
        and value.keys() >= set(_KEYS)
        and not isinstance(value["stream"], (int, float))
    )


def _longer(keys: Keys, key: object) -> Keys:
    return (*keys, key if isinstance(key, int) else str(key))


def _validated(path: Path, found: Entry) -> CheckpointState:
    """Return a state.  Raises: InvalidRequest if it is damaged, or of another version."""
    where = ".".join(map(printable, found.keys))
    try:
        return CheckpointState(where, read_state(found.value))
    except InvalidRequest as error:
        place = f"{printable(path)}: {where}" if where else printable(path)
        raise InvalidRequest(error.subject, f"{error.problem} ({place})") from None


def _read_json(path: Path) -> list[Entry]:
    """Return the value of a file of JSON.  Raises: InvalidRequest."""
    with opened(path) as (file, size_bytes):
        if size_bytes > _JSON_BYTES_MAX:
            problem = f"is no checkpoint of a known format, and too large for JSON: {size_bytes}"
            raise problem_of(path, f"{problem} bytes; the maximum is {_JSON_BYTES_MAX}")
        content = file.read(_JSON_BYTES_MAX)
    if not content.strip():
        raise problem_of(path, "is empty")
    try:
        return [Entry((), json.loads(content))]
    except UnicodeDecodeError:
        problem = "is neither JSON nor a file of torch.save or safetensors, or it is truncated"
        if content[:1] == _PICKLE:
            problem = "is a pickle, as torch.save wrote before torch 1.6: load it with torch, and "
            problem += "save it again"
        raise problem_of(path, problem) from None
    except RecursionError:
        raise problem_of(path, "is nested too deeply for JSON") from None
    except ValueError as error:
        raise problem_of(path, f"is not JSON: {error}") from None


def _is_safetensors(prefix: bytes) -> bool:
    """Return whether a file is one of safetensors, or the beginning of one.

    prefix: its first _PREFIX_BYTES bytes.
    """
    if len(prefix) < _PREFIX_BYTES or prefix[-1:] != b"{":
        return False
    return bool(_LENGTH.unpack_from(prefix)[0] <= _HEADER_BYTES_MAX)


def _read_safetensors(path: Path) -> list[Entry]:
    """Return the texts in the header of a file that are JSON: a state is one in its `__metadata__`.

    https://huggingface.co/docs/safetensors: 8 bytes, little-endian, are the length of the header,
    which is JSON.  Raises: InvalidRequest.
    """
    with opened(path) as (file, size_bytes):
        (header_bytes,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if header_bytes > size_bytes - _LENGTH.size:
            problem = f"is truncated: its header has {header_bytes} bytes, but the file"
            raise problem_of(path, f"{problem} {size_bytes}")
        content = file.read(header_bytes)
    try:
        header = json.loads(content)
    except (ValueError, RecursionError):
        raise problem_of(path, "has a damaged header of safetensors") from None
    texts = header.get("__metadata__", {})
    if not isinstance(texts, dict):
        raise problem_of(path, "has a damaged __metadata__ in its header of safetensors")
    found = []
    for name, text in texts.items():
        if isinstance(text, str) and text.lstrip()[:1] in ("{", "["):
            try:
                found.append(Entry((name,), json.loads(text)))
            except (ValueError, RecursionError):
                continue  # a text that is no JSON has no state
    return found
