"""Files without tokens that can be served: recognizes them, and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from tokenfeed.errors import InvalidCorpus
from tokenfeed.wire import crc32c

from ..open_file import OpenFile
from .format_options import FormatOptions, is_chunk

NAME = "unsupported"

_TEXT = "tokenize it first with tokenfeed ingest"
_COLUMN = "ingest its text (tokenfeed ingest), or write its tokens to a file: docs/formats.md"
_UNPACK = "unpack it first: compressed files cannot be mapped"
_OWN_READER = "read its tokens with its own loader, and write them to a file: docs/formats.md"
_NO_TOKENS = "it holds no tokens; name the files of tokens, by a glob where others lie beside them"
_PAGE = "perhaps what a server said instead of the file; download it again"
LFS = b"version https://git-lfs"
_SAVE = "save the array itself (numpy.save)"
_JPEGS = (b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xe1", b"\xff\xd8\xff\xdb")
_VECTORS = re.compile(rb"[1-9][0-9]{0,8} [1-9][0-9]{0,4}\n\S+ ")
_PICKLES = (b"\x02\x8a\nl", b"\x02}q", b"\x02]q", b"\x03}q", b"\x03]q", b"\x04\x95", b"\x05\x95")


def matches(file: OpenFile) -> bool:
    """Return whether its first bytes, or its name, are those of a file that cannot be served."""
    if file.head.startswith(_MAGICS):
        return True
    # any() of a generator takes twice as long, which ten thousand files make felt.
    for is_it in _TESTS:
        if is_it(file):
            return True
    return False


def layout(file: OpenFile, options: FormatOptions) -> NoReturn:
    """Raise InvalidCorpus, which says what the file is, and what to do."""
    known = [(what, cure) for what, magics, cure in _BEGINNINGS if file.head.startswith(magics)]
    known += [(what, cure) for what, is_it, cure in _OTHERS if is_it(file)]
    what, cure = known[0]
    raise InvalidCorpus(file.path, f"is {what}; {cure}")


def _is_gzip(file: OpenFile) -> bool:
    return file.head.startswith(b"\x1f\x8b\x08") and len(file.head) > 3 and file.head[3] < 32


def _is_arrow(file: OpenFile) -> bool:
    """A file, or a stream: a marker and the length of its schema."""
    length = int.from_bytes(file.head[4:8], "little")
    is_stream = file.head[:4] == b"\xff" * 4 and 0 < length < 1 << 20 and length % 8 == 0
    return is_stream or file.head.startswith(b"ARROW1\0\0")


def _is_tfrecord(file: OpenFile) -> bool:
    """A length, and its masked CRC-32C."""
    if len(file.head) < 12 or int.from_bytes(file.head[:8], "little") > file.size_bytes - 16:
        return False
    found = crc32c.extend(0, file.head[:8])
    masked = ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return file.head[8:12] == masked.to_bytes(4, "little")


def _is_lmdb(file: OpenFile) -> bool:
    return file.head[16:20] == b"\xde\xc0\xef\xbe"


def _is_vectors(file: OpenFile) -> bool:
    """How many words and how long their vectors are, as text; then binary."""
    return _VECTORS.match(file.head) is not None


def _is_text(file: OpenFile, chars_min: int = 256) -> bool:
    """The first bytes of nearly all token files include zeros, or bytes that no text has."""
    try:
        text = file.head.decode()
    except UnicodeDecodeError as error:
        # The last character may be cut off.
        text = file.head[: error.start].decode() if error.start > len(file.head) - 4 else ""
    return len(text) >= chars_min and all(char >= " " or char in "\t\r\n\f" for char in text)


def _is_jsonl(file: OpenFile) -> bool:
    begins = file.head.removeprefix(b"\xef\xbb\xbf").startswith((b'{"', b'[{"'))
    return begins and _is_text(file, 16)


def _is_companion(file: OpenFile) -> bool:
    endings = (".ds.index", ".ds.metadata", ".ds.loss")
    return file.head.startswith(b"MMIDIDX") or file.path.endswith(endings)


_BEGINNINGS: tuple[tuple[str, tuple[bytes, ...], str], ...] = (
    ("parquet", (b"PAR1",), _COLUMN),
    ("a pointer of Git LFS", (LFS,), "fetch the file itself: git lfs pull"),
    ("a page of HTML", (b"<!DOCTYPE html", b"<!doctype html", b"<html"), _PAGE),
    ("Avro", (b"Obj\x01",), _COLUMN),
    ("compressed by zstd", (b"\x28\xb5\x2f\xfd",), _UNPACK),
    ("compressed by xz", (b"\xfd7zXZ\0",), _UNPACK),
    ("compressed by lz4", (b"\x04\x22\x4d\x18",), _UNPACK),
    ("compressed by bzip2", tuple(b"BZh%d1AY&SY" % level for level in range(1, 10)), _UNPACK),
    ("a zip archive, such as .npz or .pt", (b"PK\x03\x04",), _SAVE),
    ("a pickle", tuple(b"\x80" + rest for rest in _PICKLES), _SAVE),
    ("compressed by 7z", (b"7z\xbc\xaf\x27\x1c",), _UNPACK),
    ("Feather or ORC", (b"FEA1", b"ORC\x0a", b"ORC\x08"), _COLUMN),
    ("HDF5", (b"\x89HDF\r\n\x1a\n",), _SAVE),
    ("a model of llama.cpp", (b"GGUF", b"ggml", b"lmgg", b"tjgg"), _NO_TOKENS),
    ("a database of SQLite", (b"SQLite format 3\0",), _COLUMN),
    ("compressed by snappy", (b"\xff\x06\0\0sNaPpY",), _UNPACK),
    ("a RAR archive", (b"Rar!\x1a\x07",), _UNPACK),
    ("a PDF", (b"%PDF-",), "write its text to a file, and ingest that (tokenfeed ingest)"),
    ("an image", (b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", *_JPEGS), _NO_TOKENS),
    ("sound or video", (b"RIFF", b"OggS", b"fLaC", b"ID3\x03", b"ID3\x04"), _NO_TOKENS),
    ("an index of fairseq", (b"TNTIDX\0\0",), _NO_TOKENS),
    ("a model of fastText", (b"\xba\x16\x4f\x2f",), _NO_TOKENS),
)
"""What it is, its first bytes, and what to do."""
_MAGICS = tuple(magic for _, magics, _ in _BEGINNINGS for magic in magics)

_OTHERS: tuple[tuple[str, Callable[[OpenFile], bool], str], ...] = (
    ("an index or mask of tokens", _is_companion, "the file of tokens itself is missing"),
    ("Arrow", _is_arrow, _COLUMN),
    (
        "a chunk of MosaicML's MDS, or of LitData without an index.json of tokens",
        is_chunk,
        _COLUMN,
    ),
    ("compressed by gzip", _is_gzip, _UNPACK),
    ("TFRecord", _is_tfrecord, _OWN_READER),
    ("a database of LMDB", _is_lmdb, _OWN_READER),
    ("packed by modalities", lambda file: file.path.endswith(".pbin"), _OWN_READER),
    ("vectors of word2vec", _is_vectors, _NO_TOKENS),
    ("a tar archive", lambda file: file.head[257:262] == b"ustar", _UNPACK),
    ("jsonl", _is_jsonl, _TEXT),
    ("text", _is_text, _TEXT),
)
"""Those for which more than the first bytes has to be compared."""
_TESTS = tuple(is_it for _, is_it, _ in _OTHERS)
