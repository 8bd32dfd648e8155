"""What is in a token file: one module per format, each turning an opened file into a Layout.

A format is a module with `NAME`, `matches` and `layout`, and a line in FORMATS.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from tokenfeed.errors import InvalidCorpus

from ..files import OpenFile
from . import datatrove, llmc, megatron, npy, olmo, raw, safetensors, unsupported
from .documents import Documents
from .layout import STORED, FormatOptions, Layout, Stored

__all__ = [
    "FORMATS",
    "FORMAT_NAMES",
    "STORED",
    "Documents",
    "FormatOptions",
    "Layout",
    "Stored",
    "read_layout",
]


class Format(Protocol):
    """What a module of this folder offers."""

    NAME: str

    def matches(self, file: OpenFile, /) -> bool:
        """Say whether a file is of this format."""
        ...

    def layout(self, file: OpenFile, options: FormatOptions, /) -> Layout:
        """Return where its tokens lie.  Raises: InvalidCorpus."""
        ...


FORMATS: tuple[Format, ...] = (megatron, npy, safetensors, llmc, unsupported, datatrove, olmo, raw)
"""In the order in which they are asked: first what lies beside a file, then what it begins with,
then its name; raw, which matches anything, comes last."""


FORMAT_NAMES = tuple(sorted(form.NAME for form in FORMATS if form is not unsupported))
"""What --format may say."""


_CERTAIN = (raw, npy)
"""Of what cannot be something else by accident, nobody needs to be told how to overrule it."""


def read_layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tokens of a file lie.

    Raises: InvalidCorpus, naming the file and what is wrong with it, or what of asked is not to be
    had of it.
    """
    if options.format:
        found = next(form for form in FORMATS if form.NAME == options.format)
    else:
        found = next(form for form in FORMATS if form.matches(file))
    try:
        layout = found.layout(file, options)
        if options.format:
            layout = replace(layout, why="as --format says")
    except InvalidCorpus as error:
        if options.format or found in _CERTAIN or isinstance(error.__cause__, OSError):
            raise
        cure = f"pass --format {raw.NAME} if all of it is tokens"
        raise InvalidCorpus(error.subject, f"{error.problem} ({cure})") from error
    if options.dtype is not None and options.dtype != layout.dtype:
        raise InvalidCorpus(
            file.path, f"has {layout.dtype.name} tokens, not --dtype {options.dtype.name}"
        )
    if options.tensor is not None and layout.format != safetensors.NAME:
        raise InvalidCorpus(file.path, f"has no tensors to name, such as {options.tensor!r}")
    return layout
