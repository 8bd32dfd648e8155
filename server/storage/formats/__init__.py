"""The formats of token files: one module per format, which turns an opened file into a Layout.

A format is a module with `NAME`, `matches` and `layout`, and a line in FORMATS. Besides there are
format_options.py (options of all formats), unsupported.py (files that hold no tokens: recognized,
and refused) and document_ids.py (the ids of documents, in a file beside).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from tokenfeed.errors import InvalidCorpus

from ..layout import STORED, Documents, Layout, Stored
from ..open_file import OpenFile
from ..option_names import DTYPE, FORMAT, ROW_TOKENS
from . import datatrove, litdata, litgpt, llmc, megatron, npy, olmo, raw, safetensors, unsupported
from .format_options import ROW_TOKENS_MAX, ROW_TOKENS_MIN, FormatOptions, NoTokens

__all__ = [
    "FORMATS",
    "FORMAT_NAMES",
    "GIVEN",
    "ROW_TOKENS_MAX",
    "ROW_TOKENS_MIN",
    "STORED",
    "Documents",
    "FormatOptions",
    "Layout",
    "Stored",
    "read_layout",
    "recognize",
]


class Format(Protocol):
    """What a format module provides."""

    NAME: str

    def matches(self, file: OpenFile, /) -> bool:
        """Return whether a file has this format."""

    def layout(self, file: OpenFile, options: FormatOptions, /) -> Layout:
        """Return where its tokens are.  Raises: InvalidCorpus."""


FORMATS: tuple[Format, ...] = (
    megatron, npy, safetensors, llmc, litgpt, litdata, unsupported, datatrove, olmo, raw
)  # fmt: skip
"""In order of detection: by another file beside it, by its first bytes, by its name. raw, which
matches anything, comes last."""


FORMAT_NAMES = tuple(sorted(form.NAME for form in FORMATS if form is not unsupported))
"""The values of --format."""


GIVEN = "set by --format"
"""Why a file has a format that was not recognized."""
_CERTAIN = (raw, npy, litgpt, litdata)
"""These formats cannot match by accident, so their errors do not suggest --format raw."""


def recognize(file: OpenFile) -> Format:
    """Return the format of a file, by its first bytes, its name and what is beside it."""
    return next(form for form in FORMATS if form.matches(file))


def read_layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tokens of a file are.

    Raises: InvalidCorpus, naming the file and the problem, or the option that does not fit it.
    """
    if options.format:
        found = next(form for form in FORMATS if form.NAME == options.format)
    else:
        found = recognize(file)
    try:
        layout = found.layout(file, options)
        if options.format:
            layout = replace(layout, why=GIVEN)
    except InvalidCorpus as error:
        is_certain = found in _CERTAIN or isinstance(error, NoTokens)
        if options.format or is_certain or isinstance(error.__cause__, OSError):
            raise
        option = FORMAT.to(raw.NAME)
        problem = f"{error.problem} (pass {option} if all of it is tokens)"
        raise InvalidCorpus(error.subject, problem, *error.options, option) from error
    if options.dtype is not None and options.dtype != layout.dtype:
        given = DTYPE.to(options.dtype.name)
        problem = f"has {layout.dtype.name} tokens, not {given}; omit {DTYPE}"
        raise InvalidCorpus(file.path, problem, given, DTYPE)
    if options.tensor is not None and layout.format != safetensors.NAME:
        problem = f"is not safetensors, so it has no tensor {options.tensor!r}"
        raise InvalidCorpus(file.path, f"{problem}; omit #{options.tensor}")
    if options.row_tokens is not None and layout.token_count % options.row_tokens:
        rows = ROW_TOKENS.to(options.row_tokens)
        problem = f"has {layout.token_count} tokens, no multiple of {rows}"
        raise InvalidCorpus(file.path, problem, rows)
    if options.row_tokens is None:
        return layout
    return replace(layout, row_tokens=options.row_tokens)
