"""A second implementation of the tokenfeed protocol, written from docs/protocol.md alone.

It exists so that the tests compare the product with something that shares no code, no library and
no misreading with it: plain Python integers and loops, written to be compared with the document
line by line, not to be fast. Its results are stored in tests/golden.json; `python -m
tests.support.reference` prints them again. It must never import the product, and it changes only
where it differs from the document.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

ORDERS = ("random-1", "shuffled-1", "sequential-1")
DOCUMENT_ORDERS = ("packed-1", "padded-1")
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
    if order in ("shuffled-1", *DOCUMENT_ORDERS):
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


def _permute(x: int, count: int, seed: int, turn: int) -> int:
    """Place of x in the permutation of [0, count) that shuffled-1 has in epoch turn."""
    return _shuffled_place(seed, count, turn * count + x)


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


def part_begin(n: int, most: int, j: int) -> int:
    """First of part j of [0, n) in g parts: parts(n, most, j)."""
    g = -(-n // most)
    return j * (n // g) + min(j, n % g)


def _part_of(n: int, most: int, x: int) -> int:
    """Number of the part that has x."""
    j = 0
    while part_begin(n, most, j + 1) <= x:
        j += 1
    return j


def blocks_window(
    seed: int,
    token_counts: list[int],
    context_length: int,
    group_blocks: int,
    sample: int,
    size: int = 2**19,
) -> tuple[int, int]:
    """The same for blocks-1; group_blocks is G, context_length divides U: size, which tests make
    smaller to see whole epochs.
    """
    windows = size // context_length
    targets = [max(0, n - 1) for n in token_counts]
    blocks = [m // size for m in targets]
    left = [(m % size) // context_length for m in targets]
    in_blocks, in_rests = sum(blocks) * windows, sum(left)
    epoch, x = divmod(sample, in_blocks + in_rests)
    seeds = [mix(mix(2**33 + j) ^ seed) for j in range(4)]
    if x < in_blocks:
        count, groups = sum(blocks), -(-sum(blocks) // group_blocks)
        j = _part_of(count, group_blocks, x // windows)
        first = part_begin(count, group_blocks, j)
        part = (part_begin(count, group_blocks, j + 1) - first) * windows
        w = _permute(x - first * windows, part, seeds[1], epoch * groups + j)
        block, file = _permute(first + w // windows, count, seeds[0], epoch), 0
        while block >= blocks[file]:
            block -= blocks[file]
            file += 1
        return file, block * size + w % windows * context_length
    y, chunks = x - in_blocks, -(-in_rests // (group_blocks * windows))
    h = _part_of(in_rests, group_blocks * windows, y)
    first = part_begin(in_rests, group_blocks * windows, h)
    part = part_begin(in_rests, group_blocks * windows, h + 1) - first
    w = first + _permute(y - first, part, seeds[3], epoch * chunks + h)
    with_rest = [i for i, m in enumerate(targets) if m % size > 0]
    p = 0
    while True:
        file = with_rest[_permute(p, len(with_rest), seeds[2], epoch)]
        if w < left[file]:
            return file, blocks[file] * size + w * context_length
        w -= left[file]
        p += 1


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


# Section 4: streams of several sources.


class Stage(NamedTuple):
    """A stage: where it begins, e_i, and weight and base of each source."""

    first_sample: int
    weights: list[int]
    bases: list[int]


def stages(asked: list[tuple[int, list[int]]]) -> list[Stage]:
    """The stages that were asked for, (sample, weights of all sources) each, the first at 0."""
    first_sample, weights = asked[0]
    found = [Stage(first_sample, weights, [0] * len(weights))]
    for wanted, following in asked[1:]:
        first_sample, weights, bases = found[-1]
        while first_sample < wanted:
            left = wanted - first_sample
            blocks = max(1, left // sum(weights))
            first_sample += blocks * sum(weights)
            bases = [base + blocks * weight for base, weight in zip(bases, weights, strict=True)]
        found.append(Stage(first_sample, following, bases))
    return found


def mixture_place(seed: int, asked: list[tuple[int, list[int]]], sample: int) -> tuple[int, int]:
    """Source of a sample of a mixture, and its sample in the order of that source."""
    found = stages(asked)
    number = max(i for i, stage in enumerate(found) if stage.first_sample <= sample)
    return stage_place(seed, number, found[number], sample)


def stage_place(seed: int, number: int, stage: Stage, sample: int) -> tuple[int, int]:
    """The same for a sample of stage i, its number; seed is that of the stream."""
    first_sample, weights, bases = stage
    since = sample - first_sample
    slot = _shuffled_place(mix(mix(2**32 + number) ^ seed), sum(weights), since)
    source = 0
    while slot >= weights[source]:
        slot -= weights[source]
        source += 1
    return source, bases[source] + since // sum(weights) * weights[source] + slot


# Section 4: another context length of a stream over one dataset.


class LengthStage(NamedTuple):
    """A stage of a stream over one dataset: where it begins, e_i, its T, and its base."""

    first_sample: int
    context_length: int
    base: int


def length_stages(
    order: str,
    token_counts: list[int],
    asked: list[tuple[int, int]],
    group_blocks: int = 0,
    size: int = 2**19,
) -> list[LengthStage]:
    """The stages of the context lengths that were asked for, (sample, T) each, ascending, the first
    at 0; group_blocks and size as for blocks_window.
    """
    found = [LengthStage(0, asked[0][1], 0)]
    for wanted, following in asked[1:]:
        # Of two lengths that would begin at the same sample, the later one does.
        found = [stage for stage in found if stage.first_sample < wanted]
        first_sample, length, base = found[-1]
        if following == length:
            continue
        own = base + wanted - first_sample
        end, goes_on = _goes_on(order, token_counts, group_blocks, own, (length, following), size)
        found.append(LengthStage(first_sample + end - base, following, goes_on))
    return found


def _goes_on(
    order: str,
    token_counts: list[int],
    group_blocks: int,
    own: int,
    lengths: tuple[int, int],
    size: int,
) -> tuple[int, int]:
    """Up to which own sample a source at `own` reads at the first of two lengths, if it leaves out
    nothing, and with which one it goes on at the second one.
    """
    if order == "random-1" or own == 0:
        return own, own
    length, following = lengths
    n, later_n = (sum(place_counts(order, token_counts, each)) for each in lengths)
    epoch, x = divmod(own, n)
    end, goes_on = n, later_n
    in_blocks = sum(max(0, tokens - 1) // size for tokens in token_counts)
    if x == 0:
        end, goes_on = 0, 0
    elif order != "blocks-1":
        raise ValueError(f"{own} is within an epoch")
    elif x <= in_blocks * (size // length):
        j = _part_of(in_blocks, group_blocks, (x - 1) // (size // length))
        f = part_begin(in_blocks, group_blocks, j + 1)
        end, goes_on = f * (size // length), f * (size // following)
    return epoch * n + end, epoch * later_n + goes_on


class GrownStage(NamedTuple):
    """A stage of a mixture: its T, e_i, weight and base of each source, and how many rows of the
    length before it each source leaves out.
    """

    context_length: int
    stage: Stage
    left_out: list[int]


def grown_stages(
    sources: list[tuple[str, list[int], int]],
    asked: list[tuple[int, int | list[int]]],
    size: int = 2**19,
) -> list[GrownStage]:
    """The stages of a mixture: sources are (order, token counts, group_blocks); asked has samples,
    ascending, with a T or with the weights of all sources; the first two are both at 0.
    """
    length, weights = asked[0][1], asked[1][1]
    assert isinstance(length, int)
    assert isinstance(weights, list)
    zeros = [0] * len(weights)
    found = [GrownStage(length, Stage(0, weights, zeros), zeros)]
    for wanted, following in asked[2:]:
        length, (first_sample, weights, bases), _ = found[-1]
        n = -(-(wanted - first_sample) // sum(weights))
        begin = first_sample + n * sum(weights)
        bases = [base + n * weight for base, weight in zip(bases, weights, strict=True)]
        if isinstance(following, list):
            found.append(GrownStage(length, Stage(begin, following, bases), zeros))
            continue
        left, later = [], []
        for d, (source, own) in enumerate(zip(sources, bases, strict=True)):
            end, goes_on = _goes_on(*source, own, (length, following), size)
            if sum(weights) == 1 and weights[d]:
                begin += end - own
                end = own
            left.append(end - own)
            later.append(goes_on)
        found.append(GrownStage(following, Stage(begin, weights, later), left))
    return found


def sample_of_tokens(found: list[LengthStage], tokens: int) -> int:
    """The first sample with at least so many tokens of x before it."""
    for stage, later in itertools.pairwise([*found, None]):
        left = -(-tokens // stage.context_length)
        if later is None or stage.first_sample + left <= later.first_sample:
            return stage.first_sample + left
        tokens -= (later.first_sample - stage.first_sample) * stage.context_length
    raise AssertionError


def length_batches(
    found: list[LengthStage], batch_tokens: int, first_sample: int, rank: int, world_size: int
) -> Iterator[tuple[LengthStage, list[int | None], int]]:
    """The batches of a rank: the stage of each, the sample of each row, None where it is filled up,
    and the sample behind the batch; batch_tokens is B * T.
    """
    while True:
        i = max(i for i, stage in enumerate(found) if stage.first_sample <= first_sample)
        end = found[i + 1].first_sample if i + 1 < len(found) else 2**63
        size = batch_tokens // found[i].context_length
        begin = first_sample + rank * size
        rows = [s if s < end else None for s in range(begin, begin + size)]
        first_sample = min(first_sample + world_size * size, end)
        yield found[i], rows, first_sample


# Section 3: rows over documents.


def packed_rows(lengths: list[list[int]], context_length: int) -> list[list[list[int]]]:
    """Rows of packed-1: [file, first token, length] of each piece; lengths of the documents of each
    file.
    """
    rows: list[list[list[int]]] = []
    for file, documents in enumerate(lengths):
        begun: list[_Row] = []
        for moment, (first, n) in enumerate(_pieces_longest_first(documents, context_length)):
            fits = [row for row in begun if row.room >= n]
            if fits:
                row = min(fits, key=lambda row: (row.room, row.since))
            else:
                row = _Row(context_length + 1)
                begun.append(row)
            row.pieces.append([file, first, n])
            row.room -= n
            row.since = moment
        rows += [row.pieces for row in begun]
    return rows


def _pieces_longest_first(documents: list[int], context_length: int) -> list[tuple[int, int]]:
    """First token and length of the pieces of a file."""
    return sorted(_pieces(documents, context_length, "cut"), key=lambda piece: -piece[1])  # stable


def _pieces(documents: list[int], context_length: int, long: str) -> list[tuple[int, int]]:
    """The same in the order of the corpus."""
    pieces, begin = [], 0
    for n in documents:
        is_long = n > context_length + 1
        k = 0
        while k * context_length + 1 < n:
            end = min(k * context_length + context_length + 1, n)
            if not is_long or long == "cut" or (long == "truncate" and k == 0):
                pieces.append((begin + k * context_length, end - k * context_length))
            k += 1
        begin += n
    return pieces


def padded_rows(lengths: list[list[int]], context_length: int, long: str) -> list[list[list[int]]]:
    """Rows of padded-1, in the same form; long is cut, drop or truncate."""
    return [
        [[file, first, n]]
        for file, documents in enumerate(lengths)
        for first, n in _pieces(documents, context_length, long)
    ]


def document_rows(
    order: str, lengths: list[list[int]], context_length: int, long: str
) -> list[list[list[int]]]:
    """Rows of either order; packed-1 knows only cut."""
    if order == "padded-1":
        return padded_rows(lengths, context_length, long)
    assert (order, long) == ("packed-1", "cut")
    return packed_rows(lengths, context_length)


class _Row:
    """room: tokens that still fit.  since: when it got this room."""

    def __init__(self, room: int) -> None:
        self.room, self.since = room, 0
        self.pieces: list[list[int]] = []


# Sections 5 and 6: fingerprint, identities.


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


def rows_fingerprint(found: bytes, row_tokens: int) -> bytes:
    """Fingerprint of the same files, taken as rows."""
    lines = ["tokenfeed-rows-1", f"row_tokens={row_tokens}", f"fingerprint={found.hex()}"]
    return _sha256_of_lines(lines)


def digest(dtype: str, contents: list[bytes], token_bytes: int) -> bytes:
    """Digest, 32 bytes, of files with these contents: of all of them, however large."""
    size = sum(map(len, contents))
    ranges = [(first, min(first + 2**20, size)) for first in range(0, size, 2**20)]
    return _corpus_hash("digest", dtype, contents, token_bytes, ranges)


def _corpus_hash(
    kind: str, dtype: str, contents: list[bytes], token_bytes: int, ranges: list[tuple[int, int]]
) -> bytes:
    lines = [f"tokenfeed-{kind}-1", f"dtype={dtype}", f"files={len(contents)}"]
    lines += [f"tokens={len(file) // token_bytes}" for file in contents]
    lines += [f"content={_content_hash(b''.join(contents), ranges).hex()}"]
    return _sha256_of_lines(lines)


def _content_hash(content: bytes, ranges: list[tuple[int, int]]) -> bytes:
    hashes = [hashlib.sha256(content[first:end]).digest() for first, end in ranges]
    return hashlib.sha256(b"".join(hashes)).digest()


class Source(NamedTuple):
    """What a source has of a stage: its number, corpus, order and seed; base is its own sample with
    which the stage begins, weight its samples in a block; pieces is the pieces hash, 32 bytes, and
    only an order over documents has one; group_blocks is G, and only blocks-1 has one.
    """

    source: int
    fingerprint: bytes
    order: str
    seed: int
    base: int
    weight: int
    pieces: bytes | None = None
    group_blocks: int | None = None


def stage_identity(
    previous: bytes,
    stage: int,
    first_sample: int,
    context_length: int,
    seed: int,
    sources: Iterable[Source],
) -> bytes:
    """Identity of the rows of stage i without redactions, 32 bytes.

    previous is that of stage i - 1 (of stage 0: 32 zero bytes), first_sample is e_i, seed that of
    the stream; sources of weight 0 are left out, and their order does not matter.
    """
    present = sorted(source for source in sources if source.weight > 0)
    block_size = sum(source.weight for source in present)
    lines = [
        "tokenfeed-stage-4",
        f"previous={previous.hex()}",
        f"stage={stage}",
        f"first_sample={first_sample}",
        f"context_length={context_length}",
        f"seed={seed if block_size > 1 else 0}",
        f"sources={len(present)}",
    ]
    for source in present:
        lines += [
            f"source={source.source}",
            f"fingerprint={source.fingerprint.hex()}",
            f"order={source.order}",
            f"seed={0 if source.order == 'sequential-1' else source.seed}",
        ]
        if source.group_blocks is not None:
            lines.append(f"group_blocks={source.group_blocks}")
        lines += [f"base={source.base}", f"weight={source.weight}"]
        if source.pieces is not None:
            lines.append(f"pieces={source.pieces.hex()}")
    return _sha256_of_lines(lines)


def identity(
    order: str,
    seed: int,
    context_length: int,
    fingerprint: bytes,
    pieces: bytes | None = None,
    group_blocks: int | None = None,
) -> bytes:
    """Identity of the stream over one dataset, 32 bytes: stage 0 with source 0 alone, weight 1."""
    source = Source(0, fingerprint, order, seed, 0, 1, pieces, group_blocks)
    return stage_identity(bytes(32), 0, 0, context_length, 0, [source])


def list_hash(fill: int, ranges: list[tuple[int, int, int]]) -> bytes:
    """Hash of a list of redactions, 32 bytes: fill is a token, each range a file from 0 and its
    tokens [first, end).
    """
    lines = ["tokenfeed-redactions-1", f"fill={fill}", f"ranges={len(ranges)}"]
    lines += [f"range={file} {first} {end}" for file, first, end in sorted(ranges)]
    return _sha256_of_lines(lines)


def redacted_identity(identity: bytes, redactions: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Identity, 32 bytes, of rows of a stage that has another one without these redactions:
    (first_sample, source, list hash) of each that is in force; of none, that other one.
    """
    if not redactions:
        return identity
    lines = [
        "tokenfeed-redacted-4",
        f"stage={identity.hex()}",
        f"redactions={len(redactions)}",
    ]
    for first_sample, source, hashed in sorted(redactions):
        lines += [f"first_sample={first_sample}", f"source={source}", f"list={hashed.hex()}"]
    return _sha256_of_lines(lines)


def in_force(
    redactions: Sequence[tuple[int, int, bytes]], sources: Iterable[Source], sample: int
) -> list[tuple[int, int, bytes]]:
    """The redactions of a stream that count for a sample of a stage with these sources."""
    numbers = [source.source for source in sources if source.weight > 0]
    return sorted(each for each in redactions if each[0] <= sample and each[1] in numbers)


def pieces_hash(
    context_length: int, long: str, delimiter: int | None, lengths: list[list[int]]
) -> bytes:
    """Pieces hash, 32 bytes: lengths are the tokens of each document of each file, in order."""
    files = [[n for n in file if n > 0] for file in lengths]
    sizes = [n.to_bytes(8, "little") for file in files for n in file]
    lines = [
        "tokenfeed-pieces-1",
        f"context_length={context_length}",
        f"long={long}",
        f"delimiter={'none' if delimiter is None else delimiter}",
        f"files={len(files)}",
    ]
    lines += [f"documents={len(file)}" for file in files]
    lines += [f"lengths={hashlib.sha256(b''.join(sizes)).hexdigest()}"]
    return _sha256_of_lines(lines)


def _sha256_of_lines(lines: list[str]) -> bytes:
    return hashlib.sha256("".join(line + "\n" for line in lines).encode("ascii")).digest()


# Section 9: planes.


class Plane(NamedTuple):
    """A plane of a frame: its field number, fingerprint (32 bytes), the bytes of content of each
    row, and these contents one after another.
    """

    kind: int
    fingerprint: bytes
    row_bytes: list[int]
    content: bytes


def mask_entries(learned: list[bool]) -> bytes:
    """Entries of plane 51 of a file: whether each of its tokens is a training target."""
    return bytes(learned)


def document_entries(starts: list[int]) -> bytes:
    """Entries of plane 50 of a file: the tokens that its documents begin with."""
    return b"".join(start.to_bytes(8, "little") for start in starts)


def plane_fingerprint(kind: int, entries: list[bytes]) -> bytes:
    """Fingerprint, 32 bytes, of plane 50 or 51, given the entries of each file; of planes 52 and
    53, which have none, 32 zero bytes.
    """
    if kind in (52, 53):
        return bytes(32)
    entry_bytes = {50: 8, 51: 1}[kind]
    content = b"".join(entries)
    lines = ["tokenfeed-plane-1", f"plane={kind}", f"files={len(entries)}"]
    lines += [f"entries={len(file) // entry_bytes}" for file in entries]
    lines += [f"content={_content_hash(content, blocks(len(content))).hex()}"]
    return _sha256_of_lines(lines)


def stage_plane_fingerprint(kind: int, sources: Iterable[tuple[int, bytes]]) -> bytes:
    """Fingerprint, 32 bytes, of plane 50 or 51 of a stage of several sources: (number, fingerprint
    of its plane) of each source that has it; of planes 52 and 53, 32 zero bytes.
    """
    if kind in (52, 53):
        return bytes(32)
    present = sorted(sources)
    lines = ["tokenfeed-stage-plane-1", f"plane={kind}", f"sources={len(present)}"]
    for source, fingerprint in present:
        lines += [f"source={source}", f"fingerprint={fingerprint.hex()}"]
    return _sha256_of_lines(lines)


def document_starts_row(starts: list[int], first_token: int, context_length: int) -> bytes:
    """Content of plane 50 of a row from first_token of its file on, in which documents begin with
    the tokens starts.
    """
    places = [start - first_token for start in sorted(starts)]
    inside = [place for place in places if 1 <= place <= context_length]
    return b"".join(place.to_bytes(4, "little") for place in inside)


def loss_mask_row(learned: list[bool], first_token: int, context_length: int) -> bytes:
    """Content of plane 51 of a row from first_token of its file on."""
    content = bytearray((context_length + 8) // 8)
    for j in range(context_length + 1):
        if learned[first_token + j]:
            content[j // 8] |= 1 << (j % 8)
    return bytes(content)


def piece_starts_row(pieces: list[list[int]]) -> bytes:
    """Content of plane 50 of a row of pieces, [file, first token, length] each."""
    content, begin = b"", 0
    for _, _, n in pieces[:-1]:
        begin += n
        content += begin.to_bytes(4, "little")
    return content


def token_counts_row(pieces: list[list[int]]) -> bytes:
    """Content of plane 52 of a row of pieces."""
    return sum(n for _, _, n in pieces).to_bytes(4, "little")


# Sections 6 and 9: redacted rows.


class RedactionList(NamedTuple):
    """A list of redactions: each range is a file from 0 and its tokens [first, end)."""

    fill: int
    ranges: list[tuple[int, int, int]]


def fills(pieces: list[list[int]], lists: list[RedactionList]) -> list[int | None]:
    """The fill of each token of a row without its padding; None where nothing replaces it.

    pieces are [file, first token, length] each, one for a window; lists are those in force for the
    source of the row, by ascending first_sample.
    """
    found: list[int | None] = []
    for file, first, n in pieces:
        for token in range(first, first + n):
            fill = None
            for one in lists:
                if any(f == file and begin <= token < end for f, begin, end in one.ranges):
                    fill = one.fill
            found.append(fill)
    return found


def redacted_row(
    tokens: list[int], pieces: list[list[int]], lists: list[RedactionList]
) -> tuple[list[int], bytes]:
    """The T + 1 tokens of a row as they are sent, and the content of its plane 53."""
    found = fills(pieces, lists)
    found += [None] * (len(tokens) - len(found))
    sent = [t if fill is None else fill for t, fill in zip(tokens, found, strict=True)]
    content = b""
    for j, fill in enumerate(found):
        if fill is not None and (j == 0 or found[j - 1] is None):
            content += j.to_bytes(4, "little")
        if fill is not None and (j + 1 == len(found) or found[j + 1] is None):
            content += (j + 1).to_bytes(4, "little")
    return sent, content


# Section 10: checksum. And section 8: a frame on the wire.


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
    planes: list[Plane] | None = None,
) -> int:
    """Checksum, in [0, 2^32), of a frame; batch_size, rank and world_size are those of the
    request, and planes are None where it names none.
    """
    numbers = (first_sample, first_row, row_count, batch_size, rank, world_size)
    header = identity + b"".join(number.to_bytes(8, "little") for number in numbers)
    return crc32c(_plane_bytes(planes), crc32c(tokens, crc32c(header)))


def listed_checksum(
    identity: bytes,
    samples: list[int],
    first_row: int,
    row_count: int,
    tokens: bytes,
    planes: list[Plane] | None = None,
) -> int:
    """Checksum, in [0, 2^32), of a frame of GetRows; samples are all those of the request."""
    hashed = hashlib.sha256(b"".join(sample.to_bytes(8, "little") for sample in samples)).digest()
    header = identity + hashed + first_row.to_bytes(8, "little") + row_count.to_bytes(8, "little")
    return crc32c(_plane_bytes(planes), crc32c(tokens, crc32c(header)))


def _plane_bytes(planes: list[Plane] | None) -> bytes:
    if planes is None:
        return b""
    data = len(planes).to_bytes(4, "little")
    for plane in sorted(planes):
        data += plane.kind.to_bytes(4, "little") + plane.fingerprint
        data += len(plane.row_bytes).to_bytes(8, "little")
        data += b"".join(length.to_bytes(4, "little") for length in plane.row_bytes)
        data += len(plane.content).to_bytes(8, "little") + plane.content
    return data


def frame_message(
    identity: bytes,
    first_sample: int,
    first_row: int,
    row_count: int,
    token_bytes: int,
    checksum: int,
    tokens: bytes,
    planes: list[Plane] | None = None,
) -> bytes:
    """A frame as a message, its fields by ascending number and the tokens last; what is 0 or empty
    is left out.
    """
    numbers = (first_sample, first_row, row_count, token_bytes)
    message = b"".join(_number(field, number) for field, number in enumerate(numbers, 1))
    if checksum:
        message += _varint(5 << 3 | 5) + checksum.to_bytes(4, "little")
    message += _bytes(6, identity)
    for plane in sorted(planes or []):
        lengths = b"".join(_varint(length) for length in plane.row_bytes)
        parts = _bytes(1, lengths) + _bytes(2, plane.content) + _bytes(3, plane.fingerprint)
        message += _bytes(plane.kind, parts)
    return message + _bytes(100, tokens)


def _varint(value: int) -> bytes:
    result = b""
    while value > 0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value if value else b""


# Section 7: requests on the wire.


class AskedSource(NamedTuple):
    """A message Source: dataset is its name; a value that is 0 or empty is left out."""

    number: int
    dataset: str = ""
    order: str = ""
    seed: int = 0
    long_documents: str = ""
    expected_digest: bytes = b""
    group_blocks: int | None = None


class AskedStage(NamedTuple):
    """A message Stage: shares are (number of the source, weight, base)."""

    context_length: int
    index: int = 0
    first_sample: int = 0
    previous_identity: bytes = b""
    shares: tuple[tuple[int, int, int], ...] = ()


class Asked(NamedTuple):
    """What both requests have: redactions are (first_sample, source, list hash), planes are (kind,
    expected fingerprint).
    """

    seed: int
    sources: Sequence[AskedSource]
    stage: AskedStage
    redactions: Sequence[tuple[int, int, bytes]] = ()
    planes: Sequence[tuple[int, bytes]] = ()
    declined_planes: Sequence[int] = ()
    expected_identity: bytes = b""


class AskedBatches(NamedTuple):
    """The other fields of a GetBatchRequest, without hints; None is unset."""

    batch_size: int
    first_sample: int = 0
    first_row: int = 0
    num_batches: int | None = None
    rank: int = 0
    world_size: int | None = None
    end_sample: int | None = None


def stream_message(asked: Asked) -> bytes:
    """A message Stream, its fields by ascending number; what is 0 or empty is left out."""
    message = _number(1, asked.seed)
    for source in asked.sources:
        message += _message(
            2,
            _number(1, source.number),
            _bytes(2, source.dataset.encode()),
            _bytes(3, source.order.encode()),
            _number(4, source.seed),
            _bytes(5, source.long_documents.encode()),
            _bytes(6, source.expected_digest),
            _number(7, source.group_blocks or 0),
        )
    stage = asked.stage
    message += _message(
        3,
        _number(1, stage.context_length),
        _number(2, stage.index),
        _number(3, stage.first_sample),
        _bytes(4, stage.previous_identity),
        *(_message(5, *map(_number, (1, 2, 3), share)) for share in stage.shares),
    )
    for first_sample, source, hashed in asked.redactions:
        message += _message(4, _number(1, first_sample), _number(2, source), _bytes(3, hashed))
    return message


def batch_request(asked: Asked, batches: AskedBatches) -> bytes:
    """A GetBatchRequest without hints, its fields by ascending number."""
    optional = {5: batches.num_batches, 7: batches.world_size, 8: batches.end_sample}
    fields = {1: _number(1, batches.batch_size), 2: _message(2, stream_message(asked))}
    fields |= {3: _number(3, batches.first_sample), 4: _number(4, batches.first_row)}
    fields |= {6: _number(6, batches.rank)}
    for field, value in optional.items():
        fields[field] = b"" if value is None else _varint(field << 3) + _varint(value)
    return b"".join(fields[field] for field in sorted(fields)) + _planes_asked(9, asked)


def rows_request(asked: Asked, samples: list[int]) -> bytes:
    """A GetRowsRequest without hints, its fields by ascending number."""
    listed = _bytes(2, b"".join(map(_varint, samples)))
    return _message(1, stream_message(asked)) + listed + _planes_asked(3, asked)


def _planes_asked(field: int, asked: Asked) -> bytes:
    """Three fields: the planes, the declined ones, and the expected identity."""
    message = b""
    for kind, fingerprint in asked.planes:
        message += _message(field, _number(1, kind), _bytes(2, fingerprint))
    declined = b"".join(map(_varint, asked.declined_planes))
    return message + _bytes(field + 1, declined) + _bytes(field + 2, asked.expected_identity)


def _message(field: int, *parts: bytes) -> bytes:
    """A message within a message, which is written even if it is empty."""
    content = b"".join(parts)
    return _varint(field << 3 | 2) + _varint(len(content)) + content


# Section 13: test vectors.


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
        "redactions": list(_golden_redactions()),
        "packed_rows": list(_golden_packed_rows()),
        "pieces": list(_golden_pieces()),
        "planes": list(_golden_planes()),
        "plane_checksums": list(_golden_plane_checksums()),
        "mixture_samples": list(_golden_mixture_samples()),
        "length_changes": list(_golden_length_changes()),
        "mixture_length_changes": list(_golden_mixture_length_changes()),
        "padded_rows": list(_golden_padded_rows()),
        "row_samples": list(_golden_row_samples()),
        "redacted_rows": list(_golden_redacted_rows()),
        "rows_checksums": list(_golden_rows_checksums()),
        "requests": list(_golden_requests()),
    }


# The corpus of the examples of the document: one file with the uint16 tokens 1, 2, 3.
_EXAMPLE = fingerprint("uint16", [b"\1\0\2\0\3\0"], 2)


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
    yield from _golden_block_windows()


def _golden_block_windows() -> Iterator[dict[str, Any]]:
    """Files below a block, of exactly k blocks and one token more or less, and without a rest; no
    whole block, and no rest; groups of different sizes; chunks of rests.
    """
    size = 2**19
    mixed = [
        3 * size,
        5,
        0,
        3 * size + 1,
        size,
        40 * size + 777,
        size + 1,
        size + 2,
        300_000,
        1,
        4097,
    ]
    for token_counts, context_length, group_blocks in (
        (mixed, 2048, 16),
        (mixed, size, 32),
        (mixed, 1, 2**20),
        ([3 * size + 1, size + 1], 4096, 16),
        ([300_000 + 7 * k for k in range(100)], 2048, 16),
        ([10**8, 10**9, 10**11], 1024, 1024),
    ):
        counts = place_counts("blocks-1", token_counts, context_length)
        whole = sum(max(0, n - 1) // size for n in token_counts) * (size // context_length)
        samples = [*range(6), whole - 1, whole, whole + 1, sum(counts) - 1, sum(counts)]
        samples += [sum(counts) + whole, 2**32 + 1, 2**53 + 1, 2**62, 2**63 - 1]
        samples += [mix(k) % sum(counts) for k in range(8)]
        samples = [sample for sample in samples if sample >= 0]
        for seed in (7, 2**64 - 1):
            yield {
                "order": "blocks-1",
                "seed": seed,
                "group_blocks": group_blocks,
                "token_counts": token_counts,
                "context_length": context_length,
                "place_counts": counts,
                "samples": samples,
                "windows": [
                    blocks_window(seed, token_counts, context_length, group_blocks, sample)
                    for sample in samples
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


class Memo(NamedTuple):
    """A stage of a vector: in_force are the redactions that count for its rows."""

    first_sample: int
    context_length: int
    sources: list[Source]
    in_force: Sequence[tuple[int, int, bytes]] = ()


def _golden_identities() -> Iterator[dict[str, Any]]:
    """One record for each stage, those of a stream one after another."""
    guard = fingerprint("uint16", [bytes(range(40))], 2)
    for order in ORDERS:
        for seed in (0, 1337, 2**64 - 1):
            for context_length in (4, 2048):
                yield from _identities(
                    seed, Memo(0, context_length, [Source(0, guard, order, seed, 0, 1)])
                )
    yield from _identities(*EXAMPLE_STREAM)
    pieces = [pieces_hash(T, "cut", None, [[5, 1], [3]]) for T in (2, 4)]
    yield from _identities(7, Memo(0, 2, [Source(0, _EXAMPLE, "packed-1", 7, 0, 1, pieces[0])]))
    # By number, not as text, where "10" would come before "2"; weight 0 is left out. The seed of
    # the stream counts only where a block has more than one sample.
    shuffled, random = (
        Source(0, _EXAMPLE, "shuffled-1", 2**64 - 1, 0, 3),
        Source(0, _EXAMPLE, "random-1", 5, 2**62, 0),
    )
    yield from _identities(
        2**64 - 1,
        Memo(0, 2048, [_idle(0, 7), shuffled._replace(source=1)]),
        Memo(2**62, 2048, [_idle(2, 1), _idle(10, 2**20 - 1), random]),
        Memo(2**62 + 2**20, 2047, [_idle(2, 1, base=1)]),
        Memo(
            2**63 - 1,
            2,
            [Source(3, _EXAMPLE, "padded-1", 2**63, 2**63 - 1, 2**20, pieces[0])],
        ),
    )
    # One source with another context length: other pieces, and a base in rows of that length.
    documents = Source(2**32 - 1, _EXAMPLE, "packed-1", 1, 0, 1, pieces[0])
    yield from _identities(
        3, Memo(0, 2, [documents]), Memo(900, 4, [documents._replace(base=450, pieces=pieces[1])])
    )
    lists = [list_hash(0, [(0, 1, 2)]), list_hash(7, [(0, 0, 3)])]
    both = [Source(0, _EXAMPLE, "random-1", 7, 0, 1), _idle(1, 1)]
    of_both = [(0, 1, lists[0]), (5, 0, lists[0]), (5, 0, lists[1])]
    yield from _identities(
        7,
        Memo(0, 2, both, of_both),
        # Source 1 is paused, and so its redaction does not count.
        Memo(1000, 2, [both[0]._replace(base=500)], [*of_both[1:], (1000, 0, lists[0])]),
    )
    # The blocks of a group follow the seed of the source.
    for group_blocks in (16, 1024, 2**20):
        grouped = Source(0, _EXAMPLE, "blocks-1", 7, 0, 1, None, group_blocks)
        yield from _identities(7, Memo(0, 2, [grouped]))
    yield from _identities(7, Memo(0, 2048, [grouped._replace(weight=3, base=5), _idle(1, 2)]))


def _identities(seed: int, *stages: Memo) -> Iterator[dict[str, Any]]:
    previous = bytes(32)
    for index, (first_sample, context_length, sources, redactions) in enumerate(stages):
        found = stage_identity(previous, index, first_sample, context_length, seed, sources)
        yield {
            "seed": seed,
            "previous": previous.hex(),
            "stage": index,
            "first_sample": first_sample,
            "context_length": context_length,
            "sources": [_in_hexadecimal(source) for source in sources],
            "stage_identity": found.hex(),
            "redactions": [
                {"first_sample": begin, "source": number, "list": hashed.hex()}
                for begin, number, hashed in redactions
            ],
            "identity": redacted_identity(found, redactions).hex(),
        }
        previous = found


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


def _idle(source: int, weight: int, base: int = 0) -> Source:
    """A source of another fingerprint, with a seed that its order does not use."""
    return Source(source, bytes(32), "sequential-1", 12345, base, weight)


EXAMPLE_STREAM = (
    7,
    Memo(0, 2, [Source(0, _EXAMPLE, "shuffled-1", 7, 0, 70), _idle(1, 30)]),
    Memo(1000, 2, [_idle(1, 1, base=300)]),
    Memo(1500, 1, [Source(0, _EXAMPLE, "shuffled-1", 7, 1400, 2)]),
)
"""The example of section 6: the seed of the stream, and its three stages."""


def _in_hexadecimal(values: Source | Plane | AskedSource) -> dict[str, Any]:
    """The fields of a record; one that is None is left out."""
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in values._asdict().items()
        if value is not None
    }


def _golden_length_changes() -> Iterator[dict[str, Any]]:
    """Within groups, within the rests, at the end of an epoch, in late epochs; files without a
    whole block, and without a rest; orders that change at once, and at the end of an epoch.
    """
    size = 2**19
    files = [[40 * size + 1], [3 * size, 0, 17 * size + 5, 1000, 50 * size + 300_000], [size] * 5]
    blocks = [
        [(0, 512), (1, 1024), (20_000, 4096)],
        [(0, 4096), (9000, 512), (80_000, 2**18), (200_000, 1024)],
        [(0, 2048), (2**40 + 1, 1), (2**53 + 1, 64)],
    ]
    cases = [("blocks-1", 16, counts, asked) for counts in files for asked in blocks]
    cases.append(("random-1", 0, [10_000, 5], [(0, 64), (1, 48), (2**53 + 1, 1000)]))
    epochs = [(0, 4), (36 * 5, 8), (36 * 5 + 18 * 2**40, 3)]
    cases += [(order, 0, [100, 3, 49], epochs) for order in ("sequential-1", "shuffled-1")]
    for order, group_blocks, counts, asked in cases:
        found = length_stages(order, counts, asked, group_blocks)
        yield {
            "order": order,
            **({"group_blocks": group_blocks} if group_blocks else {}),
            "token_counts": counts,
            "asked": [sample for sample, _ in asked],
            "context_lengths": [length for _, length in asked],
            "first_samples": [stage.first_sample for stage in found],
            "bases": [stage.base for stage in found],
        }


def _golden_mixture_length_changes() -> Iterator[dict[str, Any]]:
    """Within groups of some sources and the rests of others, of sources that pause or come later,
    and beyond 2^53; before and behind other weights; a source alone, which reads its group.
    """
    size = 2**19
    a = ("blocks-1", [40 * size + 1], 16)
    b = ("blocks-1", [3 * size, 0, 17 * size + 5, 1000, 50 * size + 300_000], 32)
    c, d = ("random-1", [10_000_000, 5], 0), ("shuffled-1", [90_001], 0)
    cases: list[tuple[list[tuple[str, list[int], int]], list[tuple[int, int | list[int]]]]] = [
        ([a, b], [(0, 512), (0, [3, 1]), (1, 1024), (200_001, 4096)]),
        ([a, b, c], [(0, 4096), (0, [7, 2, 1]), (2**53, [1, 0, 5]), (2**53 + 9, 8192)]),
        ([a, b], [(0, 2048), (0, [1, 0]), (5, 1024), (40_000, [2, 3]), (50_001, 2**15)]),
        ([a, d], [(0, 512), (0, [1, 0]), (3, 1024), (30_000, [1, 1]), (30_173, 2048)]),
    ]
    for sources, asked in cases:
        found = grown_stages(sources, asked)
        yield {
            "orders": [order for order, _, _ in sources],
            "token_counts": [counts for _, counts, _ in sources],
            "group_blocks": [blocks for _, _, blocks in sources],
            "asked": [sample for sample, _ in asked[1:]],
            "context_lengths": [each.context_length for each in found],
            "weights": [each.stage.weights for each in found],
            "first_samples": [each.stage.first_sample for each in found],
            "bases": [each.stage.bases for each in found],
            "left_out": [each.left_out for each in found],
        }


def _golden_mixture_samples() -> Iterator[dict[str, Any]]:
    """One record for each mixture: its stages as they were asked for, and where samples are."""
    cases: list[list[tuple[int, list[int]]]] = [
        [(0, [1])],
        [(0, [2, 1])],
        [(0, [70, 20, 10]), (1000, [5, 0, 5]), (1001, [0, 1, 0]), (5000, [334, 333, 333])],
        [(0, [1, 2**20 - 1]), (2**53 - 1, [3, 4]), (2**62 + 1, [1, 0])],
        [(0, [*range(100)]), (2**32, [*range(99, -1, -1)])],
    ]
    for asked in cases:
        for seed in (0, 7, 2**64 - 1):
            found = stages(asked)
            samples = [0, 1, 2, 3, 99, 100, 2**32 + 1, 2**53 - 1, 2**53 + 1, 2**62, 2**63 - 1]
            for stage in found:
                samples += [max(0, stage.first_sample - 1), stage.first_sample]
            places = [mixture_place(seed, asked, sample) for sample in samples]
            yield {
                "seed": seed,
                "asked": [sample for sample, _ in asked],
                "weights": [weights for _, weights in asked],
                "first_samples": [stage.first_sample for stage in found],
                "bases": [stage.bases for stage in found],
                "samples": samples,
                "sources": [source for source, _ in places],
                "source_samples": [own for _, own in places],
            }


def _golden_redactions() -> Iterator[dict[str, Any]]:
    name = identity("random-1", 7, 2, _EXAMPLE)
    nothing: list[tuple[int, int, int]] = []
    for redactions in (
        [(5, 0, 0, [(0, 1, 2)])],
        [(5, 0, 50256, [(0, 0, 3), (0, 4, 5), (2, 0, 2**40)])],
        [(5, 0, 0, [(0, 1, 2)]), (5, 1, 0, [(0, 1, 2)]), (2**63 - 1, 0, 2**32 - 1, nothing)],
    ):
        lists = [list_hash(fill, ranges) for _, _, fill, ranges in redactions]
        in_force = [
            (redaction[0], redaction[1], hashed)
            for redaction, hashed in zip(redactions, lists, strict=True)
        ]
        yield {
            "identity": name.hex(),
            "redactions": [
                {
                    "first_sample": first_sample,
                    "source": source,
                    "fill": fill,
                    "ranges": ranges,
                    "list": hashed.hex(),
                }
                for (first_sample, source, fill, ranges), hashed in zip(
                    redactions, lists, strict=True
                )
            ],
            "redacted_identity": redacted_identity(name, in_force).hex(),
        }


def _golden_packed_rows() -> Iterator[dict[str, Any]]:
    """The example; several files, one of them without a piece; long documents; equal lengths."""
    for context_length, lengths in (
        (4, [[9, 3, 1, 4, 2]]),
        (1, [[3, 0, 2], [], [1, 1], [5]]),
        (16, [[mix(k) % 60 for k in range(80)], [mix(k) % 9 for k in range(100)]]),
        (128, [[200, 2, 3, 2, 129, 128, 257, 64, 64, 64]]),
    ):
        found = packed_rows(lengths, context_length)
        yield {"context_length": context_length, "lengths": lengths, "rows": found}


def _golden_padded_rows() -> Iterator[dict[str, Any]]:
    """The example of packed_rows; documents of T, T + 1 and T + 2 tokens; no piece at all."""
    for context_length, lengths in (
        (4, [[9, 3, 1, 4, 2]]),
        (1, [[3, 0, 2], [], [1, 1], [5]]),
        (16, [[15, 16, 17, 18, 33, 34, 1], [mix(k) % 60 for k in range(40)]]),
    ):
        for long in ("cut", "drop", "truncate"):
            yield {
                "context_length": context_length,
                "long": long,
                "lengths": lengths,
                "rows": padded_rows(lengths, context_length, long),
            }


def _golden_row_samples() -> Iterator[dict[str, Any]]:
    """Rows of samples of both orders, in several epochs, with what follows from their pieces."""
    lengths = [[9, 3, 1, 4, 2], [], [mix(k) % 40 for k in range(30)]]
    for order, long in (
        ("packed-1", "cut"),
        ("padded-1", "cut"),
        ("padded-1", "drop"),
        ("padded-1", "truncate"),
    ):
        for seed in (7, 2**64 - 1):
            yield _row_samples(order, seed, 16, long, lengths)


def _row_samples(
    order: str, seed: int, context_length: int, long: str, lengths: list[list[int]]
) -> dict[str, Any]:
    rows = document_rows(order, lengths, context_length, long)
    samples = [0, 1, 2, len(rows) - 1, len(rows), 2**32 + 1, 2**53 + 1, 2**63 - 1]
    places = [place(order, seed, len(rows), sample) for sample in samples]
    found = [rows[number] for number in places]
    pieces = pieces_hash(context_length, long, None, lengths)
    return {
        "order": order,
        "seed": seed,
        "context_length": context_length,
        "long": long,
        "lengths": lengths,
        "row_count": len(rows),
        "samples": samples,
        "rows": found,
        "document_starts": [piece_starts_row(row).hex() for row in found],
        "token_counts": [token_counts_row(row).hex() for row in found],
        "pieces_hash": pieces.hex(),
        "identity": identity(order, seed, context_length, _EXAMPLE, pieces).hex(),
    }


def _golden_pieces() -> Iterator[dict[str, Any]]:
    """The pieces hash, and the identity of a stream over one dataset with it."""
    for context_length, long, delimiter, lengths in (
        (2, "cut", None, [[5, 1], [3]]),
        (2, "cut", None, [[1, 5], [3]]),
        (2, "drop", 0, [[5, 1], [3]]),
        (2, "truncate", 50256, [[5], [1, 3]]),
        (2**32 - 2, "cut", 2**32 - 1, [[], [2**40 - 1, 256, 1, 65537], []]),
    ):
        found = pieces_hash(context_length, long, delimiter, lengths)
        yield {
            "context_length": context_length,
            "long": long,
            "delimiter": "none" if delimiter is None else delimiter,
            "lengths": lengths,
            "pieces_hash": found.hex(),
            "order": "padded-1",
            "seed": 7,
            "fingerprint": _EXAMPLE.hex(),
            "identity": identity("padded-1", 7, context_length, _EXAMPLE, found).hex(),
        }


def _golden_planes() -> Iterator[dict[str, Any]]:
    """Planes of a dataset, by their entries, and of a stage, by its sources."""
    masks = [[mask_entries([False, True, True])], [mask_entries([True] * 5), b"", b"\0"]]
    starts = [
        [document_entries([0, 2])],
        [document_entries([0, 300, 2**32 + 7]), b"", document_entries([0])],
        [b"", b""],
    ]
    for kind, corpora in ((51, masks), (50, starts)):
        for entries in corpora:
            yield {
                "plane": kind,
                "entries": [file.hex() for file in entries],
                "fingerprint": plane_fingerprint(kind, entries).hex(),
            }
    mask = plane_fingerprint(51, masks[0])
    for kind, sources in ((51, [(0, mask)]), (51, [(2, bytes(32)), (10, mask)]), (50, [(0, mask)])):
        yield {
            "plane": kind,
            "sources": [
                {"source": number, "fingerprint": value.hex()} for number, value in sources
            ],
            "fingerprint": stage_plane_fingerprint(kind, sources).hex(),
        }


def _golden_plane_checksums() -> Iterator[dict[str, Any]]:
    """The example; one row without a document that begins in it; and all planes of three rows."""
    example = identity("random-1", 7, 2, _EXAMPLE), b"\1\0\2\0\3\0"
    alone = (0, 0, 1, 1, 0, 1)
    yield _plane_checksum(*example, alone, [_mask([False, True, True], [0], 2)])
    yield _plane_checksum(*example, alone, [_starts([0], [0], 2)])
    tokens = bytes(range(20))
    name = identity("sequential-1", 0, 9, fingerprint("uint16", [tokens], 2))
    learned = [j in (0, 3, 7, 8, 9) for j in range(10)]
    yield _plane_checksum(name, tokens, alone, [_mask(learned, [0], 9)])
    content = bytes(range(14))
    name = identity("sequential-1", 0, 2, fingerprint("uint16", [content], 2))
    tokens = b"".join(rows([content], 2, "sequential-1", 0, 2, range(3)))
    planes = [
        _starts([0, 3, 4], [0, 2, 4], 2),
        _mask([False, True, True, True, False, False, False], [0, 2, 4], 2),
        Plane(52, plane_fingerprint(52, []), [4] * 3, b"\3\0\0\0" * 3),
    ]
    yield _plane_checksum(name, tokens, (0, 0, 3, 4, 0, 1), planes)
    yield _plane_checksum(name, tokens, (2**63 - 2**53, 2, 3, 4, 2**32 - 1, 2**32), planes)
    yield _plane_checksum(*_redacted_frame())


def _redacted_frame() -> tuple[bytes, bytes, tuple[int, int, int, int, int, int], list[Plane]]:
    """Two rows from sample 5 on with a redaction in force: the second has none of its tokens."""
    content = bytes(range(14))
    in_force = RedactionList(0, [(0, 4, 6)])
    name = identity("sequential-1", 0, 2, fingerprint("uint16", [content], 2))
    name = redacted_identity(name, [(5, 0, list_hash(*in_force))])
    found = []
    for row, first in zip(rows([content], 2, "sequential-1", 0, 2, (5, 6)), (4, 0), strict=True):
        tokens = [int.from_bytes(row[i : i + 2], "little") for i in range(0, 6, 2)]
        found.append(redacted_row(tokens, [[0, first, 3]], [in_force]))
    sent = b"".join(t.to_bytes(2, "little") for tokens, _ in found for t in tokens)
    runs = [run for _, run in found]
    plane = Plane(53, plane_fingerprint(53, []), list(map(len, runs)), b"".join(runs))
    return name, sent, (5, 0, 2, 4, 0, 1), [plane]


def _golden_rows_checksums() -> Iterator[dict[str, Any]]:
    """The example; a part of a list with a sample twice; the same with all planes."""
    yield _rows_checksum(*ROWS_EXAMPLE, None)
    content = bytes(range(14))
    name = identity("sequential-1", 0, 2, fingerprint("uint16", [content], 2))
    samples = [2**63 - 1, 0, 2, 2, 1, 5]
    found = rows([content], 2, "sequential-1", 0, 2, samples[1:5])
    yield _rows_checksum(name, samples, 1, 4, b"".join(found), None)
    firsts = [2 * (sample % 3) for sample in samples[1:5]]
    planes = [
        _starts([0, 3, 4], firsts, 2),
        _mask([False, True, True, True, False, False, False], firsts, 2),
        Plane(53, plane_fingerprint(53, []), [0] * 4, b""),
    ]
    yield _rows_checksum(name, samples, 1, 4, b"".join(found), planes)


ROWS_EXAMPLE = (
    identity("sequential-1", 0, 2, fingerprint("uint16", [bytes(range(14))], 2)),
    [2, 0],
    0,
    2,
    b"".join(rows([bytes(range(14))], 2, "sequential-1", 0, 2, [2, 0])),
)
"""The example of GetRows of section 10: identity, samples, first row, rows and tokens."""


def _rows_checksum(
    name: bytes,
    samples: list[int],
    first_row: int,
    row_count: int,
    tokens: bytes,
    planes: list[Plane] | None,
) -> dict[str, Any]:
    return {
        "identity": name.hex(),
        "samples": samples,
        "first_row": first_row,
        "row_count": row_count,
        "tokens": tokens.hex(),
        "planes": [_in_hexadecimal(plane) for plane in planes or []],
        "checksum": listed_checksum(name, samples, first_row, row_count, tokens, planes),
    }


EXAMPLE_REQUESTS: list[tuple[Asked, AskedBatches | list[int]]] = [
    (Asked(0, [AskedSource(0, "", "shuffled-1", 7)], AskedStage(2)), AskedBatches(1, 0, 0, 1)),
    (
        Asked(
            0,
            [AskedSource(1, "b", "sequential-1")],
            AskedStage(
                2,
                1,
                1000,
                stage_identity(bytes(32), 0, 0, 2, 7, EXAMPLE_STREAM[1].sources),
                ((1, 1, 300),),
            ),
        ),
        AskedBatches(4, 1000, 0, None, 1, 2, 1500),
    ),
    (Asked(0, [AskedSource(0, "", "shuffled-1", 7)], AskedStage(2)), [5, 0]),
]
"""The examples of section 7: a stream over one dataset, stage 1 of the example of section 6, and
single rows.
"""


def _golden_requests() -> Iterator[dict[str, Any]]:
    """The examples, and requests with all fields."""
    number, hashed = 2**32 - 1, bytes(range(32))
    full = Asked(
        2**64 - 1,
        [
            AskedSource(0, "web", "padded-1", 1, "drop", hashed),
            AskedSource(number, "w\u00f6rter", "random-1", 2**64 - 1, "", bytes(32)),
        ],
        AskedStage(2048, number, 2**62, hashed, ((0, 1, 2**62), (number, 2**20 - 1, 0))),
        [(0, 0, hashed), (2**62 + 1, number, bytes(32))],
        [(51, hashed), (53, b"")],
        [50, 2**32 - 1],
        hashed[::-1],
    )
    everything = AskedBatches(2**20, 2**63 - 1, 2**20 - 1, 2**64 - 1, 2**32 - 1, 2**32, 2**63)
    nothing = AskedBatches(1, num_batches=0, end_sample=0)
    for asked, of_call in (
        *EXAMPLE_REQUESTS,
        (full, everything),
        (EXAMPLE_REQUESTS[0][0], nothing),
        (full, [2**63 - 1, 2**62 + 1, 2**63 - 1]),
        (Asked(0, [AskedSource(0, "", "blocks-1", 7)], AskedStage(2048)), AskedBatches(1)),
        (Asked(0, [AskedSource(0, "b", "blocks-1", 7, group_blocks=64)], AskedStage(2)), [5, 0]),
    ):
        is_rows = isinstance(of_call, list)
        found = rows_request(asked, of_call) if is_rows else batch_request(asked, of_call)
        yield _request(asked, of_call, found)


def _request(asked: Asked, of_call: AskedBatches | list[int], found: bytes) -> dict[str, Any]:
    """The fields as they are named in the contract, those of the stream under `stream`."""
    stage = asked.stage._asdict() | {
        "shares": [
            {"source": source, "weight": weight, "base": base}
            for source, weight, base in asked.stage.shares
        ]
    }
    fields = {"samples": of_call} if isinstance(of_call, list) else of_call._asdict()
    return {
        "stream": {
            "seed": asked.seed,
            "sources": [_in_hexadecimal(source) for source in asked.sources],
            "stage": stage | {"previous_identity": asked.stage.previous_identity.hex()},
            "redactions": [
                {"first_sample": begin, "source": source, "list_hash": hashed.hex()}
                for begin, source, hashed in asked.redactions
            ],
        },
        **{name: value for name, value in fields.items() if value is not None},
        "planes": [
            {"kind": kind, "expected_fingerprint": guard.hex()} for kind, guard in asked.planes
        ],
        "declined_planes": list(asked.declined_planes),
        "expected_identity": asked.expected_identity.hex(),
        "message": found.hex(),
    }


def _golden_redacted_rows() -> Iterator[dict[str, Any]]:
    """Windows and rows of pieces: both ends of a row, runs that touch, lists that overlap."""
    everything = RedactionList(9, [(0, 0, 100), (1, 0, 100)])
    two = [RedactionList(0, [(0, 3, 6), (1, 0, 1)]), RedactionList(7, [(0, 5, 8), (0, 10, 11)])]
    for row_tokens, pieces, lists in (
        (5, [[0, 2, 5]], []),
        (5, [[0, 2, 5]], [RedactionList(0, [(0, 2, 3), (0, 4, 5), (0, 6, 7)])]),
        (5, [[0, 2, 5]], [RedactionList(0, [(0, 0, 2), (0, 7, 9), (1, 2, 7)])]),
        (5, [[0, 2, 5]], two),
        (5, [[0, 2, 5]], two[::-1]),
        (5, [[0, 2, 5]], [everything]),
        (8, [[0, 2, 4], [0, 9, 2]], two),
        (8, [[1, 0, 3], [1, 2, 3]], [RedactionList(2**32 - 1, [(1, 2, 3)])]),
        (8, [[1, 0, 3], [1, 5, 3]], [everything, two[0]]),
    ):
        used = [100 * file + first + i for file, first, n in pieces for i in range(n)]
        tokens = used + [0] * (row_tokens - len(used))
        sent, content = redacted_row(tokens, pieces, lists)
        yield {
            "row_tokens": row_tokens,
            "pieces": pieces,
            "tokens": tokens,
            "lists": [{"fill": fill, "ranges": ranges} for fill, ranges in lists],
            "sent": sent,
            "redacted": content.hex(),
        }


def _starts(starts: list[int], first_tokens: list[int], context_length: int) -> Plane:
    """Plane 50 of rows of a corpus of one file, whose documents begin with the tokens starts."""
    contents = [document_starts_row(starts, first, context_length) for first in first_tokens]
    guard = plane_fingerprint(50, [document_entries(starts)])
    return Plane(50, guard, [len(content) for content in contents], b"".join(contents))


def _mask(learned: list[bool], first_tokens: list[int], context_length: int) -> Plane:
    """Plane 51 of rows of a corpus of one file."""
    contents = [loss_mask_row(learned, first, context_length) for first in first_tokens]
    guard = plane_fingerprint(51, [mask_entries(learned)])
    return Plane(51, guard, [len(content) for content in contents], b"".join(contents))


def _plane_checksum(
    name: bytes, tokens: bytes, place: tuple[int, int, int, int, int, int], planes: list[Plane]
) -> dict[str, Any]:
    first_sample, first_row, row_count, batch_size, rank, world_size = place
    return {
        "identity": name.hex(),
        "first_sample": first_sample,
        "first_row": first_row,
        "row_count": row_count,
        "batch_size": batch_size,
        "rank": rank,
        "world_size": world_size,
        "tokens": tokens.hex(),
        "planes": [_in_hexadecimal(plane) for plane in planes],
        "checksum": frame_checksum(name, *place, tokens, planes),
    }


if __name__ == "__main__":
    print(json.dumps(golden(), indent=1))
