"""A NumPy array saved by numpy.save: 1-D, or 2-D rows laid end to end."""

from __future__ import annotations

import io
import shlex
import warnings
from tokenize import TokenError

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..layout import STORED, Layout
from ..open_file import OpenFile
from .format_options import FormatOptions

NAME = "npy"

_MAGIC = b"\x93NUMPY"
_FAILURES = (ValueError, SyntaxError, TypeError, KeyError, RecursionError, TokenError)
"""What numpy may raise for a header that is not a valid literal."""
_HEADER_BYTES_MAX = 1 << 14
"""NumPy writes 128 bytes, and reads more than 10,000 only on request."""


def matches(file: OpenFile) -> bool:
    """Return whether it begins with NumPy's magic."""
    return file.head.startswith(_MAGIC)


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the array is.  Raises: InvalidCorpus unless it holds tokens in C order."""
    shape, fortran, dtype, first_byte = _header(file)
    if options.are_flags and dtype.name in ("bool", "int8"):
        dtype = np.dtype("uint8")  # of a mask
    if dtype.name not in STORED:
        raise InvalidCorpus(
            file.path, f"is an array of {dtype}; tokens are integers of 1 to 8 bytes"
        )
    if len(shape) not in (1, 2):
        raise InvalidCorpus(file.path, f"has shape {shape}; tokens are 1-D, or 2-D rows")
    fortran = fortran and len(shape) == 2
    if dtype.newbyteorder("<") != dtype or fortran:
        problem = "in Fortran order" if fortran else "big-endian"
        raise InvalidCorpus(
            file.path, f"is {problem}; convert it: {_conversion(file.path, dtype.name)}"
        )
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        raise InvalidCorpus(file.path, f"has shape {shape}, so it has no tokens")
    held = file.size_bytes - first_byte
    if held != count * dtype.itemsize:
        raise InvalidCorpus(
            file.path,
            f"its header records {count} {dtype.name} tokens ({count * dtype.itemsize} bytes), but "
            f"{held} bytes follow; it may be truncated",
        )
    return Layout(NAME, STORED[dtype.name], first_byte, count, f"header of a {shape} array")


def _header(file: OpenFile) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
    """Return shape, whether it is in Fortran order, type, and the first byte of the array."""
    # Behind magic and version: the size of the rest, in two bytes, or in four since version 2.
    rest_bytes = int.from_bytes(file.head[8 : 10 if file.head[6:7] == b"\1" else 12], "little")
    size_bytes = min(file.size_bytes, _HEADER_BYTES_MAX, 12 + rest_bytes)
    stream = io.BytesIO(file.read(0, size_bytes))
    try:
        with warnings.catch_warnings():
            # They are about headers that Python 2 wrote.
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(stream)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"version {version}")
            # Version 3 differs from 2 only in the names of fields, which tokens do not have.
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            else:
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    except _FAILURES as error:
        problem = f"has a header that numpy cannot read: {' '.join(str(error).split())[:100]}"
        raise InvalidCorpus(file.path, problem) from error
    # Python refuses to print an integer of thousands of digits, so the error does not name it.
    if not all(type(length) is int and 0 <= length < 1 << 63 for length in shape):
        raise InvalidCorpus(file.path, "has a length in its shape that is not in [0, 2^63)")
    return shape, fortran, dtype, stream.tell()


def _conversion(path: str, dtype: str) -> str:
    code = (
        f"import numpy as np; np.save('converted.npy', np.load({path!r}).ravel().astype('{dtype}'))"
    )
    return f"python -c {shlex.quote(code)}"
