"""python -m tests.server.storage.formats.fuzz: reads damaged files of every format.

Most are valid files with a few bytes changed, cut off, doubled or inserted. The result has to be a
layout within the file, or an error that names a file. If it is neither, or if a file needs too much
memory or more than a few seconds, the command prints the input and fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, example, given, seed, settings
from hypothesis import strategies as st

from tests.server.storage.formats.writing import (
    litdata_chunk,
    litdata_index,
    litgpt_header,
    llmc_header,
    megatron_index,
)
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.storage.door import open_file
from tokenfeed.server.storage.formats import FormatOptions, Layout, llmc, read_layout
from tokenfeed.server.storage.open_file import OpenFile

MEMORY_BYTES = 512 << 20
"""On top of what the process uses at the start."""
SECONDS = 5.0
"""For one file."""

TOKENS = np.arange(1, 40, dtype="<u2")


@dataclass(frozen=True)
class Seeds:
    """A valid file of tokens, by its name, and the files beside it, by suffix, or by /NAME."""

    name: str
    files: dict[str, bytes]


def valid_files() -> list[Seeds]:
    """One of each format."""
    index = megatron_index([10, 9, 20], [0, 20, 38], [0, 2, 3])
    array = struct.pack("<8sH", b"\x93NUMPY\x01\x00", 118)
    array += b"{'descr': '<u2', 'fortran_order': False, 'shape': (39,), }".ljust(117) + b"\n"
    ids = {"dtype": "U16", "shape": [3, 13], "data_offsets": [0, 78]}
    tensors = json.dumps({"ids": ids}).encode()
    plain = TOKENS.tobytes()
    return [
        Seeds("raw.bin", {"": plain}),
        Seeds("llmc.bin", {"": llmc_header(TOKENS.size) + plain}),
        Seeds("litgpt.bin", {"": litgpt_header(TOKENS.size) + plain}),
        Seeds(
            "litdata.bin",
            {
                "": litdata_chunk([TOKENS[:10], TOKENS[10:]]),
                "/index.json": litdata_index("no_header_tensor:20", {"litdata.bin": TOKENS.size}),
            },
        ),
        Seeds("megatron.bin", {"": plain, ".idx": index}),
        Seeds("numpy.npy", {"": array + plain}),
        Seeds(
            "tensors.safetensors",
            {"": len(tensors).to_bytes(8, "little") + tensors + plain},
        ),
        Seeds(
            "trove.ds",
            {
                "": plain,
                ".ds.index": np.array([10, 39], "<u8").tobytes(),
                ".ds.metadata": b"gpt2|2\n39\n39 T",
            },
        ),
        Seeds("olmo.npy", {"": plain, ".csv.gz": gzip.compress(b"0,10,a\n10,39,b\n", mtime=0)}),
        Seeds("chunk.bin", {"": np.array([1, 12, 14, 7], "<u4").tobytes()}),
    ]


NUMBERS = [
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    2**15,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


@st.composite
def damaged(draw: st.DrawFn, valid: list[Seeds]) -> Seeds:
    """Return valid files with some damage in one of them."""
    found = draw(st.sampled_from(valid))
    which = draw(st.sampled_from(sorted(found.files)))
    content = bytearray(found.files[which])
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, min(len(content), 1100))))
        kind = draw(st.sampled_from(["number", "bytes", "cut", "double", "insert"]))
        if kind == "number":
            width = draw(st.sampled_from([1, 2, 4, 8]))
            number = draw(st.sampled_from(NUMBERS)) % (1 << 8 * width)
            content[at : at + width] = number.to_bytes(width, "little")
        elif kind == "bytes":
            new = draw(st.binary(min_size=1, max_size=8))
            content[at : at + len(new)] = new
        elif kind == "cut":
            del content[at:]
        elif kind == "double":
            content[at:at] = content[at : at + draw(st.integers(1, 64))]
        else:
            content[at:at] = draw(st.sampled_from([b"(" * 3000, b"[" * 3000, b"9" * 5000, b"\n"]))
    return replace(found, files=found.files | {which: bytes(content)})


def check(folder: Path, files: Seeds, seconds: float) -> str:
    """Read a file as a server does.  Returns: its format, or "refused".  Raises: AssertionError."""
    stem = folder / files.name
    for path in folder.iterdir():
        path.unlink()
    for suffix, content in files.files.items():
        is_name = suffix.startswith("/")
        path = folder / suffix[1:] if is_name else stem.with_suffix(suffix) if suffix else stem
        path.write_bytes(content)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    refusal = None
    try:
        with open_file(str(stem)) as file:
            layout = read_layout(file, FormatOptions())
        documents = _ends(layout)
    except InvalidCorpus as error:
        refusal = error
    except Hung:
        raise Hung(f"still reading {files} after {seconds} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if refusal is not None:
        assert str(folder) in refusal.subject, refusal
        assert refusal.problem
        assert not isinstance(refusal.__cause__, MemoryError), refusal
        return "refused"
    assert layout.token_count >= 1
    assert layout.first_byte >= 0
    assert layout.first_byte + layout.content_bytes <= len(files.files[""])
    assert documents == sorted(documents)
    assert all(0 <= end <= layout.token_count for end in documents)
    return layout.format


def _ends(layout: Layout) -> list[int]:
    if layout.documents is None:
        return []
    ends = [end for block in layout.documents.ends() for end in block.tolist()]
    assert len(ends) == layout.documents.count
    return ends


def plant_hang() -> None:
    """Plant a bug: a header of the wrong length is read for ever."""
    right = llmc.layout

    def waiting(file: OpenFile, options: FormatOptions) -> Layout:
        while 4 <= len(file.head) < 1024:
            pass
        return right(file, options)

    llmc.layout = waiting  # type: ignore[assignment]


def plant_belief() -> None:
    """Plant a bug: llm.c's header is not checked."""
    right = llmc.layout

    def believing(file: OpenFile, options: FormatOptions) -> Layout:
        if len(file.head) < 1024:
            return right(file, options)
        count = int(np.frombuffer(file.head, "<i4", 3)[2])
        return Layout(llmc.NAME, TOKENS.dtype, 1024, count, "planted")

    llmc.layout = believing  # type: ignore[assignment]


PLANTS = {"belief": plant_belief, "hang": plant_hang}


class Hung(KeyboardInterrupt):
    """A file takes too long; such an input is not minimized."""


def _hung(number: int, frame: object) -> None:
    raise Hung


def main() -> int:
    """Run.  Returns: 0, or 1 after printing an input that was handled badly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=PLANTS, help="a bug that has to be found")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one file")
    arguments = parser.parse_args()
    if arguments.plant:
        PLANTS[arguments.plant]()
    signal.signal(signal.SIGALRM, _hung)
    outcomes: dict[str, int] = {}
    valid = valid_files()
    with tempfile.TemporaryDirectory() as folder:
        _limit_memory()
        folder_check = partial(check, Path(folder), seconds=arguments.seconds)
        test = _test(arguments.examples, arguments.seed, folder_check, valid, outcomes)
        try:
            test()
        except (Exception, Hung) as error:  # noqa: BLE001 - any error is a finding
            print(f"FOUND with --seed {arguments.seed}: {type(error).__name__}: {error}")
            print(*getattr(error, "__notes__", ()), sep="\n")
            return 1
    print(f"seed {arguments.seed}, {sum(outcomes.values())} inputs: {outcomes}")
    return 0


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _test(
    examples: int,
    number: int,
    check: Callable[[Seeds], str],
    valid: list[Seeds],
    outcomes: dict[str, int],
) -> Callable[[], None]:
    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    @given(damaged(valid))
    def run(files: Seeds) -> None:
        outcome = check(files)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    for files in valid:
        run = example(files)(run)
    return run


if __name__ == "__main__":
    sys.exit(main())
