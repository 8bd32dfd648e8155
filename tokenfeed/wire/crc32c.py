"""CRC-32C (Castagnoli), without the GIL for large buffers.

The extension module of google_crc32c holds the GIL while it computes. So large buffers go to the C
library behind it, called by ctypes, which releases the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import google_crc32c
import numpy as np
import numpy.typing as npt

from ..errors import TokenfeedError

_LARGE_BYTES = 1 << 14
_CHECK = (b"123456789", 0xE3069283)
"""A message and its CRC-32C (RFC 3720, B.4, and every catalogue of CRCs)."""


def extend(crc: int, content: bytes | npt.NDArray[np.generic]) -> int:
    """Return the CRC of the bytes of `crc` followed by content, in [0, 2^32).

    crc: of what comes before; 0 for nothing.  content: bytes, or a C-contiguous array.
    """
    if _library is None or isinstance(content, bytes) or content.nbytes < _LARGE_BYTES:
        # The C extension accepts any contiguous buffer; its type stub allows only bytes.
        return google_crc32c.extend(crc, content)  # type: ignore[no-any-return,arg-type,unused-ignore]
    if not content.flags.c_contiguous:
        raise ValueError("the array is not C-contiguous")
    return _library(crc, content.ctypes.data, content.nbytes)


def require_fast() -> None:
    """Raise TokenfeedError if the checksum library uses pure Python, which is a hundred times
    slower than the network.
    """
    if google_crc32c.implementation != "c":
        raise TokenfeedError(
            "google-crc32c", "its C extension does not load; reinstall it from a wheel"
        )


def _load_library() -> Callable[[int, int, int], int] | None:
    """Return crc32c_extend(crc, address, size) of the C library; None if it cannot be found."""
    try:
        from google_crc32c import _crc32c

        # A lookup by the handle of a module also searches the libraries that it is linked to.
        function = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    function.restype = ctypes.c_uint32
    function.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    message, expected = _CHECK
    return function if function(0, message, len(message)) == expected else None


_library = _load_library()
