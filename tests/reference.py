"""A second implementation of the tokenfeed protocol, written from docs/protocol.md alone.

It exists so that the tests hold the product against something that shares no code, no library and
no author's misreading with it: plain Python integers and loops, made to be compared with the
document line by line, not to be fast. Its results are kept in tests/golden.json; `python -m
tests.reference` prints them anew. It must never import the product, and it changes only where it
departs from the document.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

ORDERS = ("random-1", "shuffled-1", "sequential-1")
WORD = 2**64 - 1


# Section 3: orders.


def mix(z: int) -> int:
    """Output function of SplitMix64: a word in [0, 2^64) to a word."""
    z = (z + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def place(order: str, seed: int, place_count: int, sample: int) -> int:
    """Place in [0, place_count) of a sample in [0, 2^63); seed in [0, 2^64), place_count at least
    1.
    """
    if order == "random-1":
        return _random_place(seed, place_count, sample)
    if order == "shuffled-1":
        return _shuffled_place(seed, place_count, sample)
    if order == "sequential-1":
        return sample % place_count
    raise ValueError(f"order: unknown: {order}")


def _random_place(seed: int, place_count: int, sample: int) -> int:
    outer = mix(mix(0) ^ seed)
    inner = mix(mix(1) ^ seed)
    return mix(mix(sample ^ outer) ^ inner) * place_count // 2**64


def _shuffled_place(seed: int, place_count: int, sample: int) -> int:
    epoch, x = divmod(sample, place_count)
    rounds = 24 if place_count <= 64 else 12
    a = math.isqrt(place_count - 1) + 1  # the smallest integer with a * a >= N, for N of at least 1
    a += a % 2
    b = (place_count + a - 1) // a
    keys = [mix(mix(mix(j) ^ seed) ^ epoch) for j in range(rounds)]
    while True:
        left, right = divmod(x, b)
        for j, key in enumerate(keys):
            if j % 2 == 0:
                left = (left + ((mix(right ^ key) >> 32) * a >> 32)) % a
            else:
                right = (right + ((mix(left ^ key) >> 32) * b >> 32)) % b
        x = left * b + right
        if x < place_count:
            return x


# Sections 1 and 2: samples, places, rows.


def place_counts(order: str, token_counts: list[int], context_length: int) -> list[int]:
    """Places of each file, given its tokens; context_length is T >= 1."""
    if order == "random-1":
        return [max(0, n - context_length) for n in token_counts]
    return [max(0, n - 1) // context_length for n in token_counts]


def window(
    order: str, seed: int, token_counts: list[int], context_length: int, sample: int
) -> tuple[int, int]:
    """File index and token offset in that file at which the T + 1 tokens of a sample begin."""
    counts = place_counts(order, token_counts, context_length)
    p = place(order, seed, sum(counts), sample)
    file = 0
    while p >= counts[file]:
        p -= counts[file]
        file += 1
    return file, p if order == "random-1" else p * context_length


def sample_of(
    first_sample: int, batch_size: int, rank: int, world_size: int, stream_row: int
) -> int:
    """Sample of stream row k * B + r, which is row r of batch k, on a rank in [0, world_size)."""
    k, r = divmod(stream_row, batch_size)
    return first_sample + k * world_size * batch_size + rank * batch_size + r


def rows(
    files: list[bytes],
    token_bytes: int,
    order: str,
    seed: int,
    context_length: int,
    samples: Iterable[int],
) -> list[bytes]:
    """The T + 1 tokens of each sample, little-endian as in the files, of token_bytes (2 or 4) bytes
    each.
    """
    token_counts = [len(file) // token_bytes for file in files]
    result = []
    for sample in samples:
        file, offset = window(order, seed, token_counts, context_length, sample)
        result.append(
            files[file][offset * token_bytes : (offset + context_length + 1) * token_bytes]
        )
    return result


# Sections 4 and 5: fingerprint, identity.


def blocks(content_bytes: int) -> list[tuple[int, int]]:
    """The blocks [first, end) of the content that the fingerprint hashes, in bytes."""
    if content_bytes <= 2**30:
        return [
            (first, min(first + 2**20, content_bytes)) for first in range(0, content_bytes, 2**20)
        ]
    firsts = [i * (content_bytes - 4096) // 4095 for i in range(4096)]
    return [(first, first + 4096) for first in firsts]


def fingerprint(dtype: str, contents: list[bytes], token_bytes: int) -> bytes:
    """Fingerprint, 32 bytes, of files with these contents; dtype is uint16 or uint32, token_bytes 2
    or 4.
    """
    ranges = blocks(sum(map(len, contents)))
    return _corpus_hash("fingerprint", dtype, contents, token_bytes, ranges)


def digest(dtype: str, contents: list[bytes], token_bytes: int) -> bytes:
    """Digest, 32 bytes, of files with these contents: of all of them, however large."""
    size = sum(map(len, contents))
    ranges = [(first, min(first + 2**20, size)) for first in range(0, size, 2**20)]
    return _corpus_hash("digest", dtype, contents, token_bytes, ranges)


def _corpus_hash(
    kind: str, dtype: str, contents: list[bytes], token_bytes: int, ranges: list[tuple[int, int]]
) -> bytes:
    content = b"".join(contents)
    hashes = [hashlib.sha256(content[first:end]).digest() for first, end in ranges]
    lines = [f"tokenfeed-{kind}-1", f"dtype={dtype}", f"files={len(contents)}"]
    lines += [f"tokens={len(file) // token_bytes}" for file in contents]
    lines += [f"content={hashlib.sha256(b''.join(hashes)).hexdigest()}"]
    return _sha256_of_lines(lines)


def identity(order: str, seed: int, context_length: int, fingerprint: bytes) -> bytes:
    """Identity of a stream, 32 bytes."""
    seed_used = 0 if order == "sequential-1" else seed
    lines = [
        "tokenfeed-identity-1",
        f"order={order}",
        f"seed={seed_used}",
        f"context_length={context_length}",
    ]
    return _sha256_of_lines([*lines, f"fingerprint={fingerprint.hex()}"])


def _sha256_of_lines(lines: list[str]) -> bytes:
    return hashlib.sha256("".join(line + "\n" for line in lines).encode("ascii")).digest()


# Section 7: checksum.


def _crc_table() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        yield value


_CRC_TABLE = list(_crc_table())


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C, in [0, 2^32), of data after bytes of which it is crc (0: of none)."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def frame_checksum(
    identity: bytes,
    first_sample: int,
    first_row: int,
    row_count: int,
    batch_size: int,
    rank: int,
    world_size: int,
    tokens: bytes,
) -> int:
    """Checksum, in [0, 2^32), of a frame; batch_size, rank and world_size are those of the
    request.
    """
    numbers = (first_sample, first_row, row_count, batch_size, rank, world_size)
    header = identity + b"".join(number.to_bytes(8, "little") for number in numbers)
    return crc32c(tokens, crc32c(header))


# Golden vectors.


def golden() -> dict[str, list[dict[str, Any]]]:
    """Vectors of every function, by topic: lists of flat records; bytes are in hexadecimal."""
    return {
        "places": list(_golden_places()),
        "windows": list(_golden_windows()),
        "fingerprints": list(_golden_fingerprints()),
        "identities": list(_golden_identities()),
        "blocks": list(_golden_blocks()),
        "crc32c": [
            {"data": data.hex(), "crc32c": crc32c(data)}
            for data in (b"", b"123456789", bytes(range(256)))
        ],
        "checksums": list(_golden_checksums()),
    }


def _golden_places() -> Iterator[dict[str, Any]]:
    for order in ORDERS:
        for seed in (0, 1, 1337, 2**32 + 1, 2**64 - 1):
            for count in (1, 2, 3, 5, 7, 64, 65, 1000, 2**30 + 1, 2**40 + 12345, 2**62 + 1):
                samples = [0, 1, 2, 3, 4, count - 1, count, 2**32 - 1, 2**32, 2**32 + 1]
                samples += [2**53 - 1, 2**53 + 1, 2**62, 2**63 - 1]
                places = [place(order, seed, count, sample) for sample in samples]
                yield {
                    "order": order,
                    "seed": seed,
                    "place_count": count,
                    "samples": samples,
                    "places": places,
                }


def _golden_windows() -> Iterator[dict[str, Any]]:
    token_counts, context_length = [10, 3, 25, 4, 100], 4
    samples = [*range(8), 32, 33, 34, 122, 123, 2**32, 2**63 - 1]
    for order in ORDERS:
        for seed in (0, 1337):
            yield {
                "order": order,
                "seed": seed,
                "token_counts": token_counts,
                "context_length": context_length,
                "place_counts": place_counts(order, token_counts, context_length),
                "samples": samples,
                "windows": [
                    window(order, seed, token_counts, context_length, sample) for sample in samples
                ],
            }


def _golden_fingerprints() -> Iterator[dict[str, Any]]:
    content = bytes(range(40))
    for dtype, token_bytes in (("uint16", 2), ("uint32", 4)):
        for contents in (
            [content],
            [content[:16], content[16:]],
            [content[:16], b"", content[16:]],
        ):
            yield {
                "dtype": dtype,
                "token_bytes": token_bytes,
                "contents": [file.hex() for file in contents],
                "fingerprint": fingerprint(dtype, contents, token_bytes).hex(),
            }


def _golden_identities() -> Iterator[dict[str, Any]]:
    guard = fingerprint("uint16", [bytes(range(40))], 2)
    for order in ORDERS:
        for seed in (0, 1337, 2**64 - 1):
            for context_length in (4, 2048):
                yield {
                    "order": order,
                    "seed": seed,
                    "context_length": context_length,
                    "fingerprint": guard.hex(),
                    "identity": identity(order, seed, context_length, guard).hex(),
                }


def _golden_blocks() -> Iterator[dict[str, Any]]:
    for size in (1, 2, 4096, 2**20 - 1, 2**20, 2**20 + 1, 2**30, 2**30 + 1, 10**12):
        result = blocks(size)
        yield {
            "content_bytes": size,
            "count": len(result),
            "first_three": result[:3],
            "last_two": result[-2:],
        }


def _golden_checksums() -> Iterator[dict[str, Any]]:
    name = identity("random-1", 1337, 4, fingerprint("uint16", [bytes(range(40))], 2))
    for first_sample, first_row, row_count, batch_size, rank, world_size in (
        (0, 0, 1, 1, 0, 1),
        (24, 3, 7, 4, 1, 2),
        (2**63 - 2**53, 2**20 - 1, 2, 2**20, 2**32 - 1, 2**32),
    ):
        tokens = bytes(i * 37 % 256 for i in range(row_count * 5 * 2))
        yield {
            "identity": name.hex(),
            "first_sample": first_sample,
            "first_row": first_row,
            "row_count": row_count,
            "batch_size": batch_size,
            "rank": rank,
            "world_size": world_size,
            "tokens": tokens.hex(),
            "checksum": frame_checksum(
                name, first_sample, first_row, row_count, batch_size, rank, world_size, tokens
            ),
        }


if __name__ == "__main__":
    print(json.dumps(golden(), indent=1))
