"""A checkpoint of JSON."""

from __future__ import annotations

import json
from pathlib import Path

from .checkpoint_file import Entry, opened, problem_of

_BYTES_MAX = 128 << 20
"""A state has below 1 MB; the largest other JSON beside models are logs of training."""


def read_json(path: Path) -> list[Entry]:
    """Return the value of a file of JSON.  Raises: InvalidRequest."""
    with opened(path) as (file, size_bytes):
        if size_bytes > _BYTES_MAX:
            problem = f"is no checkpoint of a known format, and too large for JSON: {size_bytes}"
            raise problem_of(path, f"{problem} bytes; the maximum is {_BYTES_MAX}")
        content = file.read(_BYTES_MAX)
    if not content.strip():
        raise problem_of(path, "is empty")
    try:
        return [Entry((), json.loads(content))]
    except UnicodeDecodeError:
        raise problem_of(
            path, "is neither JSON nor a file of torch.save or safetensors, or it is truncated"
        ) from None
    except RecursionError:
        raise problem_of(path, "is nested too deeply for JSON") from None
    except ValueError as error:
        raise problem_of(path, f"is not JSON: {error}") from None
