"""Files that cannot be served: the error names the kind and the cure."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import read
from tokenfeed.errors import InvalidCorpus
from tokenfeed.wire import crc32c

TEXT = json.dumps({"text": "Once upon a time, ünïcode " * 9}) + "\n"


def tarred(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("x"))


def chunk(path: Path) -> None:
    """As MosaicML's writer and LitData's lay samples out."""
    config, samples = b'{"format": "mds"}', [b"one", b"two!"]
    first = 4 + 4 * (len(samples) + 1) + len(config)
    ends = np.cumsum([first, *map(len, samples)]).astype("<u4")
    path.write_bytes(struct.pack("<I", 2) + ends.tobytes() + config + b"".join(samples))


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")


def tfrecord(path: Path) -> None:
    """As tf.io.TFRecordWriter frames a record."""
    length = struct.pack("<Q", 20)
    crc = crc32c.extend(0, length)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    path.write_bytes(length + struct.pack("<I", masked) + bytes(24))


def database(path: Path) -> None:
    with sqlite3.connect(path) as opened:
        opened.execute("create table x (y)")


def arrays() -> bytes:
    file = io.BytesIO()
    np.savez(file, tokens=np.arange(9))
    return file.getvalue()


FOREIGN = {
    "parquet": lambda path: path.write_bytes(b"PAR1" + bytes(200)),
    "a tar archive": tarred,
    "a pickle": lambda path: path.write_bytes(pickle.dumps(list(range(50)))),
    "a chunk of MosaicML's MDS, or of LitData without an index.json of tokens": chunk,
    "a zip archive": zipped,
    "Arrow": lambda path: path.write_bytes(b"ARROW1\0\0" + bytes(50)),
    "Arrow, a stream": lambda path: path.write_bytes(b"\xff" * 4 + b"\xd0\2\0\0" + bytes(50)),
    "HDF5": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50)),
    "compressed by gzip": lambda path: path.write_bytes(gzip.compress(TEXT.encode())),
    "compressed by bzip2": lambda path: path.write_bytes(bz2.compress(TEXT.encode())),
    "compressed by xz": lambda path: path.write_bytes(lzma.compress(TEXT.encode())),
    "compressed by zstd": lambda path: path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20)),
    "compressed by lz4": lambda path: path.write_bytes(b"\x04\x22\x4d\x18" + bytes(20)),
    "jsonl": lambda path: path.write_text(TEXT * 10),
    "text": lambda path: path.write_text("Första raden\n" * 400),
    "text, with spaces of another language": lambda path: path.write_text(
        "\u3000\u7b2c\u4e00\xa0\u884c" * 400
    ),
    "jsonl, with a mark of its encoding": lambda path: path.write_text("\ufeff" + TEXT * 10),
    "an index or mask of tokens": lambda path: path.write_bytes(b"MMIDIDX\0\0" + bytes(200)),
    "Feather or ORC": lambda path: path.write_bytes(b"FEA1" + bytes(50)),
    "compressed by 7z": lambda path: path.write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(50)),
    "TFRecord": tfrecord,
    "a model of llama.cpp": lambda path: path.write_bytes(b"GGUF" + bytes(50)),
    "a model of fastText": lambda path: path.write_bytes(b"\xba\x16\x4f\x2f" + bytes(50)),
    "vectors of word2vec": lambda path: path.write_bytes(b"2 8\nin " + bytes(range(200, 232)) * 2),
    "a database of SQLite": database,
    "a database of LMDB": lambda path: path.write_bytes(bytes(16) + b"\xde\xc0\xef\xbe" * 9),
    "a PDF": lambda path: path.write_bytes(b"%PDF-1.7\n" + bytes(50)),
    "an image": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50)),
    "a zip archive, of arrays": lambda path: path.write_bytes(arrays()),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_it_is_named_and_comes_with_a_cure(tmp_path: Path, what: str) -> None:
    """Whatever its name is; --format overrides the decision."""
    path = tmp_path / "train.bin"
    FOREIGN[what](path)

    with pytest.raises(InvalidCorpus) as caught:
        read(path)

    assert caught.value.problem.startswith(f"is {what.partition(',')[0]}")
    assert "pass --format raw if all of it is tokens" in caught.value.problem
    assert read(path, "|u1", form="raw").token_count == path.stat().st_size


@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_not_taken_for_anything_else(tmp_path: Path, seed: int) -> None:
    """Neither real vocabularies nor bytes in uint16."""
    random = np.random.default_rng(seed)
    path = tmp_path / "train.bin"
    for high in (256, 50_257, 65_536):
        for size in (1, 2, 10, 5000):
            random.integers(0, high, size).astype("<u2").tofile(path)
            assert read(path).format == "raw"
    np.frombuffer(TEXT.encode() * 50, np.uint8).astype("<u2").tofile(path)
    assert read(path).format == "raw"


def test_a_packed_file_of_modalities_is_known_by_its_name(tmp_path: Path) -> None:
    """It begins with a length."""
    path = tmp_path / "x.pbin"
    path.write_bytes(struct.pack("<QI", 2000, 2) + bytes(2100))

    with pytest.raises(InvalidCorpus, match="is packed by modalities; read its tokens with its"):
        read(path)


@pytest.mark.parametrize("name", ["x.ds.index", "x.ds.metadata", "x.ds.loss"])
def test_a_companion_of_tokens_is_not_served_without_them(tmp_path: Path, name: str) -> None:
    """As after an incomplete copy."""
    path = tmp_path / name
    path.write_bytes(bytes(80))

    with pytest.raises(InvalidCorpus, match="the file of tokens itself is missing"):
        read(path)
