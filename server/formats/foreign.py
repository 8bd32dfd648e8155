"""What holds no tokens that can be mapped, by name, and what would make some of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tokenfeed.errors import BadCorpus

from ..files import OpenFile
from .layout import Asked

NAME = "foreign"

_TEXT = "tokenize it first: a file of tokens is raw uint16 or uint32, or one of docs/formats.md"
_UNPACK = "unpack it first: what is compressed cannot be mapped"


def recognises(file: OpenFile) -> bool:
    """Say whether it begins, and where that is known ends, like something else."""
    return _kind(file) is not None


def layout(file: OpenFile, asked: Asked) -> NoReturn:
    """Raise BadCorpus: say what it is, and what to do."""
    what, cure = _kind(file) or ("no file of tokens", _TEXT)
    raise BadCorpus(file.path, f"is {what}; {cure} (--format raw takes it as tokens all the same)")


def _kind(file: OpenFile) -> tuple[str, str] | None:
    for what, is_it, cure in _KINDS:
        if is_it(file):
            return what, cure
    return None


def _begins(*magics: bytes) -> Callable[[OpenFile], bool]:
    return lambda file: file.head.startswith(magics)


def _is_gzip(file: OpenFile) -> bool:
    return file.head.startswith(b"\x1f\x8b\x08") and len(file.head) > 3 and file.head[3] < 32


def _is_arrow(file: OpenFile) -> bool:
    """A file, or a stream: a mark, and the length of its schema."""
    length = int.from_bytes(file.head[4:8], "little")
    is_stream = file.head[:4] == b"\xff" * 4 and 0 < length < 1 << 20 and length % 8 == 0
    return is_stream or file.head.startswith(b"ARROW1\0\0")


def _is_chunk(file: OpenFile) -> bool:
    """Samples behind a count and their offsets, as MosaicML's and LitData's chunks have them."""
    count, first = (int.from_bytes(file.head[at : at + 4], "little") for at in (0, 4))
    offsets_end = 8 + 4 * count
    if len(file.head) < 8 or not count or not offsets_end <= first <= file.size_bytes:
        return False
    return file.read(offsets_end - 4, 4) == file.size_bytes.to_bytes(8, "little")[:4]


def _is_text(file: OpenFile, signs_min: int = 256) -> bool:
    """Tokens have zeros, or bytes that no text has, among their first; a few may have none."""
    try:
        text = file.head.decode()
    except UnicodeDecodeError as error:
        # The last sign may be cut off.
        text = file.head[: error.start].decode() if error.start > len(file.head) - 4 else ""
    return len(text) >= signs_min and all(sign.isprintable() or sign in "\t\r\n" for sign in text)


def _is_jsonl(file: OpenFile) -> bool:
    return file.head.startswith((b'{"', b'[{"')) and _is_text(file, 16)


_KINDS: tuple[tuple[str, Callable[[OpenFile], bool], str], ...] = (
    ("parquet", _begins(b"PAR1"), _TEXT),
    ("Arrow", _is_arrow, _TEXT),
    ("a chunk of MosaicML's MDS or of LitData", _is_chunk, "write its token columns end to end"),
    ("compressed by gzip", _is_gzip, _UNPACK),
    ("compressed by zstd", _begins(b"\x28\xb5\x2f\xfd"), _UNPACK),
    ("compressed by xz", _begins(b"\xfd7zXZ\0"), _UNPACK),
    ("compressed by lz4", _begins(b"\x04\x22\x4d\x18"), _UNPACK),
    (
        "compressed by bzip2",
        lambda file: file.head[:3] == b"BZh" and file.head[4:10] == b"1AY&SY",
        _UNPACK,
    ),
    (
        "a zip archive, such as .npz or .pt",
        _begins(b"PK\x03\x04"),
        "save the array itself (numpy.save)",
    ),
    ("a pickle", _begins(b"\x80\x04\x95", b"\x80\x05\x95"), "save the array itself (numpy.save)"),
    ("a tar archive", lambda file: file.head[257:262] == b"ustar", _UNPACK),
    ("HDF5", _begins(b"\x89HDF\r\n\x1a\n"), "save the array itself (numpy.save)"),
    ("jsonl", _is_jsonl, _TEXT),
    ("text", _is_text, _TEXT),
)
"""What it is, how that is known, and what would make tokens of it."""
