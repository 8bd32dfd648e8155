"""Every format, served: what a client gets is what a naive reader finds in the files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from client import RemoteBatches
from tests.conftest import Serve
from tests.server.storage.formats.writing import llmc_header, megatron_index
from tests.support.offline import received_rows
from tests.support.reference import place

T = 16
Write = Callable[[Path, np.ndarray], str]


def raw(folder: Path, tokens: np.ndarray) -> str:
    tokens.astype("<u2").tofile(folder / "train.bin")
    return "train.bin"


def llmc(folder: Path, tokens: np.ndarray, magic: int = 20240520, dtype: str = "<u2") -> str:
    header = llmc_header(tokens.size, magic=magic, version={"<u2": 1, "<u4": 7}[dtype])
    (folder / "a.bin").write_bytes(header + tokens.astype(dtype).tobytes())
    return "a.bin"


def llama3(folder: Path, tokens: np.ndarray) -> str:
    return llmc(folder, tokens + 100_000, 20240801, "<u4")


def megatron(folder: Path, tokens: np.ndarray, code: int = 8, dtype: str = "<u2") -> str:
    stored = tokens.astype(dtype)
    lengths = np.array([part.size for part in np.array_split(stored, 7)])
    pointers = (np.cumsum(lengths) - lengths) * stored.itemsize
    index = megatron_index(lengths, pointers, [0, 3, 7], code)
    (folder / "text_document.idx").write_bytes(index)
    stored.tofile(folder / "text_document.bin")
    return "text_document.idx"


def megatron_int32(folder: Path, tokens: np.ndarray) -> str:
    return megatron(folder, tokens, 4, "<i4").replace(".idx", ".bin")


def megatron_int64_above_16_bits(folder: Path, tokens: np.ndarray) -> str:
    return megatron(folder, tokens + 70_000, 5, "<i8")


def megatron_uint8(folder: Path, tokens: np.ndarray) -> str:
    return megatron(folder, tokens % 256, 1, "|u1")


def datatrove(folder: Path, tokens: np.ndarray) -> str:
    library = pytest.importorskip("datatrove.pipeline.tokens.tokenizer", exc_type=ImportError)
    file = library.TokenizedFile(str(folder), "000_x.ds", save_final_metadata=True, token_size=4)
    for part in np.array_split(tokens, 5):
        file.write(part.tolist(), None)
    file.close()
    return "000_x.ds"


def olmo(folder: Path, tokens: np.ndarray) -> str:
    tokens.astype("<u2").tofile(folder / "part-0.npy")
    with gzip.open(folder / "part-0.csv.gz", "wt") as lines:
        lines.write(f"0,10,id\n10,{tokens.size},id\n")
    return "part-0.npy"


def npy(folder: Path, tokens: np.ndarray) -> str:
    np.save(folder / "x.npy", tokens.astype("<i8").reshape(-1, 50))
    return "x.npy"


def safetensors(folder: Path, tokens: np.ndarray) -> str:
    library = pytest.importorskip("safetensors.numpy", exc_type=ImportError)
    arrays = {"ids": tokens.astype("<i4"), "mask": np.ones(tokens.size, "<i4")}
    library.save_file(arrays, folder / "x.safetensors")
    return "x.safetensors#ids"


FORMATS: dict[str, tuple[Write, int, str]] = {
    "raw": (raw, 0, "uint16"),
    "llm.c": (llmc, 0, "uint16"),
    "llm.c, Llama 3": (llama3, 100_000, "uint32"),
    "Megatron, by its index": (megatron, 0, "uint16"),
    "Megatron, int32": (megatron_int32, 0, "uint16"),
    "Megatron, int64": (megatron_int64_above_16_bits, 70_000, "uint32"),
    "Megatron, uint8": (megatron_uint8, -256, "uint16"),
    "datatrove": (datatrove, 0, "uint32"),
    "OLMo": (olmo, 0, "uint16"),
    "NumPy, 2-D": (npy, 0, "uint16"),
    "safetensors": (safetensors, 0, "uint16"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_client_gets_the_tokens_of_the_file(serve: Serve, tmp_path: Path, name: str) -> None:
    """No header, no padding, and nothing cut to fewer bits."""
    write, offset, served_as = FORMATS[name]
    tokens = np.random.default_rng(5).integers(0, 50_257, 2000)
    path = write(tmp_path, tokens)
    expected = tokens % 256 if offset < 0 else tokens + offset
    server = serve("--data", f"train={tmp_path / path}")

    windows = (tokens.size - 1) // T
    with RemoteBatches(
        server.address, 5, T, order="shuffled", seed=3, num_batches=windows // 5
    ) as feed:
        rows = received_rows(feed)

    starts = [place("shuffled-1", 3, windows, sample) * T for sample in range(windows // 5 * 5)]
    assert rows.tolist() == [expected[start : start + T + 1].tolist() for start in starts]
    assert f"served={served_as} " in server.stderr


def test_an_epoch_over_a_thousand_shards_visits_each_window_once(
    serve: Serve, tmp_path: Path
) -> None:
    """Each a pair of Megatron's; windows never run from one into the next."""
    windows = set()
    for index in range(1000):
        folder = tmp_path / "shards"
        folder.mkdir(exist_ok=True)
        tokens = np.arange(3 * T + 1) + 49 * index
        made = megatron(folder, tokens)
        for suffix in (".idx", ".bin"):
            (folder / made).with_suffix(suffix).rename(folder / f"{index:04}{suffix}")
        windows |= {tuple(tokens[start : start + T + 1].tolist()) for start in (0, T, 2 * T)}
    server = serve("--data", tmp_path / "shards")

    with RemoteBatches(server.address, 50, T, order="shuffled", num_batches=60) as feed:
        rows = [tuple(row) for row in received_rows(feed).tolist()]

    assert len(rows) == len(set(rows)) == 3000
    assert set(rows) == windows


def test_the_served_width_is_no_part_of_the_identity(serve: Serve, tmp_path: Path) -> None:
    """A stream resumes on a server of the same file in another width."""
    np.save(tmp_path / "x.npy", np.arange(5000, dtype="<i4"))
    narrow = serve("--data", tmp_path / "x.npy")
    wide = serve("--data", tmp_path / "x.npy", "--vocab-size", "100000")
    assert "served=uint16" in narrow.stderr
    assert "served=uint32" in wide.stderr

    with RemoteBatches(narrow.address, 4, T, num_batches=10) as feed:
        first = [next(feed) for _ in range(5)]
        state = feed.state_dict()
    with RemoteBatches(wide.address, 4, T, num_batches=10) as feed:
        feed.load_state_dict(state)
        rest = list(feed)
    with RemoteBatches(wide.address, 4, T, num_batches=10) as feed:
        assert (received_rows(feed) == received_rows([*first, *rest])).all()
