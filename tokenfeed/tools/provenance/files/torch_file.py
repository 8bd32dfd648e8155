"""A checkpoint of torch.save: plain values are read, tensors stay on disk, and no code is run.

torch itself reads it, with weights_only, and is imported only here.
"""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from tokenfeed.commands.extras import missing
from tokenfeed.commands.printable import printable
from tokenfeed.errors import InvalidRequest

from .checkpoint_file import DAMAGED, Entry, opened, problem_of
from .pickle_bounds import require_bounded

ZIP = b"PK\x03\x04"
"""What files of torch.save begin with, since torch 1.6."""
_VALUES_BYTES_MAX = 256 << 20
"""Of the values of a file, without tensors."""
_DAMAGED = "is damaged, truncated, or no file of torch.save"
_REFUSED = re.compile(r"(?:GLOBAL|global|class):? ([\w.]+\.\w+)")


def read_torch(path: Path) -> list[Entry]:
    """Return the value of a file of torch.save.  Raises: InvalidRequest."""
    with opened(path) as (file, _):
        _require_plain(path, file)
    # By its name, so that torch maps the file: no tensor is read.
    return [Entry((), _load(path, path, mmap=True))]


def read_saved(path: Path, content: bytes) -> Any:
    """Return the value of bytes of torch.save.  path: for errors.  Raises: InvalidRequest."""
    file = io.BytesIO(content)
    _require_plain(path, file)
    file.seek(0)
    return _load(path, file)


def _load(path: Path, file: Path | BinaryIO, *, mmap: bool = False) -> Any:
    """Return what torch.load returns with weights_only.

    path: for errors.  file: is a zip file, never one of tar, which torch before 2.6 reads without
    weights_only.
    """
    try:
        import torch
    except ImportError as error:
        raise problem_of(path, f"is a file of torch.save; {missing(error, 'torch')}") from None
    except OSError as error:
        raise problem_of(path, f"is of torch.save; torch cannot be imported: {error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what else may be in it
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except DAMAGED as error:
        raise _refusal(path, error) from None


def _refusal(path: Path, error: BaseException) -> InvalidRequest:
    """Return what to say of a file that torch does not read."""
    match = _REFUSED.search(str(error))
    if match:
        name = printable(match[1] or match[2])[:100]
        problem = f"is refused: it contains {name}, but only plain values and tensors are read"
        cure = "no code in a checkpoint is run. Save the state by itself, for example as JSON"
        return problem_of(path, f"{problem}, and {cure}")
    return problem_of(path, _DAMAGED)


def _require_plain(path: Path, file: BinaryIO) -> None:
    """Raise InvalidRequest if a zip file has code of TorchScript, which torch before 2.6 runs in
    spite of weights_only, or if its values take much memory: its records may be compressed.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            found = [each for each in archive.infolist() if each.filename.endswith(".pkl")]
            if any(each.filename.endswith("constants.pkl") for each in found):
                problem = "is refused: it is a program of TorchScript, and no checkpoint"
                raise problem_of(path, problem)
            size_bytes = sum(each.file_size for each in found)
            if size_bytes > _VALUES_BYTES_MAX:
                problem = f"has {size_bytes} bytes of values besides its tensors"
                raise problem_of(path, f"{problem}; the maximum is {_VALUES_BYTES_MAX}")
            for each in found:
                require_bounded(path, archive.read(each))
    except DAMAGED:
        raise problem_of(path, _DAMAGED) from None
