"""Every example of docs/protocol.md is what the second implementation computes.

Authors of a client try the examples of the page first: one wrong digit costs a day.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tests.support import reference

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()

TOKENS = bytes.fromhex("010002000300")
FINGERPRINT = reference.fingerprint("uint16", [TOKENS], 2)
IDENTITY = reference.identity("random-1", 7, 2, FINGERPRINT)
MASK = reference.plane_fingerprint(51, [bytes.fromhex("000101")])
PLACE = (0, 0, 1, 1, 0, 1)
"""First sample, first row, rows, batch size, rank and world size of the example of section 10."""
MASK_PLANE = reference.Plane(51, MASK, [1], b"\6")
MANY_TOKENS = b"".join((i % 2**16).to_bytes(2, "little") for i in range(2**19 + 1))
TWO_FILES = [MANY_TOKENS[:6], MANY_TOKENS[6:]]
"""Two blocks, 3 tokens in the first file and all others in the second."""


CHANGED = [(0, [2, 1]), (7, [1, 1]), (10, [1, 2])]
EARLIER = (2, [2, 2])
"""The changes of section 4: the third is asked for one sample behind the begin of the second."""


def section(number: int) -> str:
    """A section of the page, each run of white space as one space, so that lines are no borders."""
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, number
    return re.sub(r"\s+", " ", found[0])


def stages() -> list[bytes]:
    """The identities of the three stages of the example of section 6, from their values there."""
    one = reference.Source(0, FINGERPRINT, "shuffled-1", 7, 0, 70)
    two = reference.Source(1, bytes(32), "sequential-1", 0, 0, 30)
    first = reference.stage_identity(bytes(32), 0, 0, 2, 7, [one, two])
    later = [two._replace(base=300, weight=1)]
    second = reference.stage_identity(first, 1, 1000, 2, 7, later)
    last = [one._replace(base=1400, weight=2)]
    return [first, second, reference.stage_identity(second, 2, 1500, 1, 7, last)]


def content_hash() -> str:
    """Of the example of section 5, from the words of the page alone."""
    one_block = hashlib.sha256(TOKENS).digest()
    return hashlib.sha256(one_block).hexdigest()


def two_blocks_hashes() -> tuple[str, str, str]:
    """Content hash, from the words of the page alone, fingerprint and digest of two files."""
    blocks = [MANY_TOKENS[: 2**20], MANY_TOKENS[2**20 :]]
    hashes = b"".join(hashlib.sha256(block).digest() for block in blocks)
    return (
        hashlib.sha256(hashes).hexdigest(),
        reference.fingerprint("uint16", TWO_FILES, 2).hex(),
        reference.digest("uint16", TWO_FILES, 2).hex(),
    )


def test_the_mixed_word_and_the_places_are_those_on_the_page() -> None:
    """Of each order that uses the seed, and of two epochs."""
    text = section(3)

    assert f"`mix(0)` is `{reference.mix(0):#x}`" in text
    for order, place_count, first, last in (
        ("random-1", 1000, 0, 9),
        ("shuffled-1", 10, 0, 9),
        ("shuffled-1", 10, 10, 19),
    ):
        found = [
            reference.place(order, 7, place_count, sample) for sample in range(first, last + 1)
        ]
        places = ", ".join(map(str, found))
        assert f"| `{order}` | {place_count} | {first} ... {last} | {places} |" in text


def test_the_windows_of_blocks_are_those_on_the_page() -> None:
    """Of whole blocks and of rests, of two epochs, and of two groups."""
    text, corpus = section(3), [1_600_000, 524_289, 300_000, 1, 700_000]
    found = [reference.blocks_window(7, corpus, 2**17, 16, sample) for sample in range(25)]
    one_file = [20 * 2**19 + 1]
    blocks = [reference.blocks_window(7, one_file, 2**19, 16, s)[1] // 2**19 for s in range(20)]

    assert "files of 1,600,000, 524,289, 300,000, 1 and 700,000 tokens" in text
    assert "They have 12, 4, 2, 0 and 5 windows" in text
    assert reference.place_counts("blocks-1", corpus, 2**17) == [12, 4, 2, 0, 5]
    for samples, windows in (
        ("Samples 0 ... 4 begin at (file, token)", found[:5]),
        ("of which three are of rests, at", found[20:]),
    ):
        assert f"{samples} {listed(windows)}" in text
    assert f"samples 0 ... 19 are its blocks {', '.join(map(str, blocks))}." in text


def test_the_samples_of_the_stages_are_those_on_the_page() -> None:
    """In both of them."""
    asked = [(0, [2, 1]), (7, [1, 1])]
    text = section(4)

    assert reference.stages(asked)[1] == (9, [1, 1], [6, 3])
    assert "Stage 1 begins at sample 9, with the bases 6 and 3." in text
    for first, last in ((0, 8), (9, 12)):
        found = [reference.mixture_place(7, asked, sample) for sample in range(first, last + 1)]
        sources, own = (", ".join(map(str, each)) for each in zip(*found, strict=True))
        assert f"| {first} ... {last} | {sources} | {own} |" in text


def test_the_changes_of_the_stages_begin_where_the_page_says() -> None:
    """Behind the stage that begins at the asked sample, and after an earlier one has moved it."""
    begins = [stage.first_sample for stage in reference.stages(CHANGED)]
    moved = [stage.first_sample for stage in reference.stages([CHANGED[0], EARLIER, CHANGED[1]])]

    assert begins == [0, 9, 11]
    assert moved == [0, 3, 7]
    for example in (
        "A change to the weights 1 and 2 at sample 9 begins at 11, since stage 1 begins at 9.",
        "a further change to the weights 2 and 2 at sample 2 begins at 3, and moves the begin of "
        "the former one from 9 to 7.",
    ):
        assert example in section(4)


def test_other_context_lengths_begin_where_the_page_says() -> None:
    """Without this another client repeats tokens behind the change."""
    asked = [(0, 512), (1, 1024), (20_000, 4096)]

    found = reference.length_stages("blocks-1", [40 * 2**19 + 1], asked, 16)

    assert found == [(0, 512, 0), (14_336, 1024, 7168), (20_992, 4096, 3456)]
    for _, _, base in found[1:]:
        assert f"with the base {base}." in section(4)
    for begin, _, _ in found[1:]:
        assert f"begins at sample {begin}, with" in section(4)


def test_the_sources_of_a_mixture_go_on_at_another_length_where_the_page_says() -> None:
    """Without this another client leaves out other rows, or none."""
    a = ("blocks-1", [40 * 2**19 + 1], 16)
    b = ("blocks-1", [3 * 2**19, 0, 17 * 2**19 + 5, 1000, 50 * 2**19 + 300_000], 32)

    found = reference.grown_stages([a, b], [(0, 512), (0, [3, 1]), (1, 1024), (200_001, 4096)])

    for length, (begin, weights, bases), left in found[1:]:
        assert (length, weights) in [(1024, [3, 1]), (4096, [3, 1])]
        example = f"stage begins at sample {begin}, with the bases {bases[0]} and {bases[1]}; "
        assert f"{example}{left[0]} and {left[1]} rows are left out." in section(4)


def test_the_fingerprints_are_those_on_the_page() -> None:
    """Of one file with three tokens, and of two files and two blocks."""
    text = section(5)
    content, fingerprint, digest = two_blocks_hashes()

    assert f"(`{TOKENS.hex()}`) has the content hash `{content_hash()}`" in text
    assert f"the fingerprint `{FINGERPRINT.hex()}`" in text
    assert reference.blocks(len(MANY_TOKENS)) == [(0, 2**20), (2**20, 2**20 + 2)]
    assert f"The content hash is `{content}`, the fingerprint `{fingerprint}`" in text
    assert f"and the digest `{digest}`" in text


def test_the_spread_blocks_are_those_on_the_page() -> None:
    """Of a content that is too large to be hashed in full."""
    blocks = reference.blocks(2**30 + 2)

    assert len(blocks) == 4096
    assert f"1 and 4094 begin at the bytes {blocks[1][0]} and {blocks[4094][0]}." in section(5)


def test_the_packed_rows_are_those_on_the_page() -> None:
    """The pieces of five documents, row by row."""
    rows = reference.packed_rows([[9, 3, 1, 4, 2]], 4)
    text = "; ".join(
        f"{number}: " + " and ".join(f"({first}, {length})" for _, first, length in pieces)
        for number, pieces in enumerate(rows)
    )

    samples = [reference.place("packed-1", 7, len(rows), sample) for sample in range(8)]
    assert f"In `packed-1` they form the rows {text}." in section(3)
    text = ", ".join(map(str, samples))
    assert f"With seed 7, samples 0 ... 7 of `packed-1` are the rows {text}." in section(3)


def test_the_padded_rows_are_those_on_the_page() -> None:
    """With each value of long_documents."""
    cut, dropped, truncated = (
        listed([tuple(row[0][1:]) for row in reference.padded_rows([[9, 3, 1, 4, 2]], 4, long)])
        for long in ("cut", "drop", "truncate")
    )

    assert f"with first token and length, are {cut}." in section(3)
    assert f"With `truncate` its rows are {truncated};" in section(3)
    assert f"with `drop` they are {dropped}." in section(3)


def listed(pieces: list[tuple[int, ...]]) -> str:
    *first, last = map(str, pieces)
    return f"{', '.join(first)} and {last}"


def test_the_lines_of_an_identity_are_those_on_the_page() -> None:
    """From the page alone: the hash of the lines that it shows."""
    shown = re.search(r"the lines\nare\n\n((?: {8}\S+\n)+)", PAGE)
    assert shown
    lines = "".join(f"{line.strip()}\n" for line in shown[1].splitlines())

    assert lines.startswith("tokenfeed-stage-4\nprevious=" + 64 * "0" + "\nstage=0\n")
    assert hashlib.sha256(lines.encode()).digest() == IDENTITY


def test_the_identities_are_those_on_the_page() -> None:
    """Of one dataset, of stages, over documents, and of redacted rows."""
    text = section(6)
    list_hash = reference.list_hash(0, [(0, 1, 2)])
    redacted = reference.redacted_identity(IDENTITY, [(5, 0, list_hash)])
    pieces = reference.pieces_hash(2, "cut", None, [[5, 1], [3]])
    packed = reference.identity("packed-1", 7, 2, FINGERPRINT, pieces)

    assert f"and the identity is `{IDENTITY.hex()}`." in text
    blocks = reference.identity("blocks-1", 7, 2, FINGERPRINT, group_blocks=1024)
    assert f"the seed of the source, and the identity is `{blocks.hex()}`." in text
    for row, found in zip(
        (
            "| 0 | 0 | 2 | source 0: weight 70, base 0; source 1: weight 30, base 0 |",
            "| 1 | 1000 | 2 | source 1: weight 1, base 300 |",
            "| 2 | 1500 | 1 | source 0: weight 2, base 1400 |",
        ),
        stages(),
        strict=True,
    ):
        assert f"{row} `{found.hex()}` |" in text
    assert f"give the list hash `{list_hash.hex()}` and the identity `{redacted.hex()}`" in text
    assert f"and of 3 in file 1, give `{pieces.hex()}`" in text
    assert f"the stream over this one dataset has the identity `{packed.hex()}`" in text


def test_the_requests_are_those_on_the_page() -> None:
    """Byte for byte, as the stub of any language writes them."""
    text = section(7).replace(" ", "")
    first, *_ = stages()
    dataset = reference.Asked(
        0, [reference.AskedSource(0, "", "shuffled-1", 7)], reference.AskedStage(2)
    )
    later = reference.Asked(
        0,
        [reference.AskedSource(1, "b", "sequential-1")],
        reference.AskedStage(2, 1, 1000, first, ((1, 1, 300),)),
    )
    batches = reference.AskedBatches(4, 1000, rank=1, world_size=2, end_sample=1500)

    for message in (
        reference.batch_request(dataset, reference.AskedBatches(1, num_batches=1)),
        reference.batch_request(later, batches),
        reference.rows_request(dataset, [5, 0]),
    ):
        assert message.hex() in text
        assert message.hex() in in_golden_vectors(reference.golden())


def test_the_fingerprints_of_planes_are_those_on_the_page() -> None:
    """Of a mask, of a stage with it, and of where documents begin."""
    text = section(9)
    stage = reference.stage_plane_fingerprint(51, [(0, MASK)])
    starts = reference.plane_fingerprint(50, [reference.document_entries([0, 2])])
    files = [reference.document_entries(found) for found in ([0, 300, 2**32 + 7], [], [0])]
    of_three_files = reference.plane_fingerprint(50, files)
    of_nothing = reference.plane_fingerprint(50, [b"", b""])

    assert f"has the entries `000101` and the plane 51 of fingerprint `{MASK.hex()}`" in text
    assert f"the plane of the stage has `{stage.hex()}`" in text
    assert f"tokens 0 and 2, has the plane 50 of fingerprint `{starts.hex()}`" in text
    assert reference.mask_entries([False, True, True]).hex() == "000101"
    assert f"`entries=1`), has the fingerprint `{of_three_files.hex()}`" in text
    assert f"two files without any entry has `{of_nothing.hex()}`" in text


def test_the_checksums_and_the_message_are_those_on_the_page() -> None:
    """Without and with a mask, and every byte of a frame."""
    text = section(10)
    checksum = reference.frame_checksum(IDENTITY, *PLACE, TOKENS)
    with_mask = reference.frame_checksum(IDENTITY, *PLACE, TOKENS, [MASK_PLANE])
    message = reference.frame_message(IDENTITY, 0, 0, 1, 2, with_mask, TOKENS, [MASK_PLANE])

    assert f"of a request with B = 1: `{checksum:#010x}`" in text
    assert f"asked for as well: `{with_mask:#010x}`" in text
    assert "(content `06`)" in text
    assert MASK_PLANE.content == reference.loss_mask_row([False, True, True], 0, 2)
    assert "`123456789` it is 0xE3069283" in text
    assert reference.crc32c(b"123456789") == 0xE3069283
    assert message.hex() in text.replace(" ", "")


def test_the_checksum_of_single_rows_is_that_on_the_page() -> None:
    """It covers the list of samples in place of a position."""
    text = section(10)
    content = bytes(range(14))
    identity = reference.identity(
        "sequential-1", 0, 2, reference.fingerprint("uint16", [content], 2)
    )
    tokens = b"".join(reference.rows([content], 2, "sequential-1", 0, 2, [2, 0]))

    assert f"give the identity `{identity.hex()}`" in text
    assert f"are the tokens `{tokens.hex()}`" in text
    checksum = reference.listed_checksum(identity, [2, 0], 0, 2, tokens)
    assert f"they have the checksum `{checksum:#010x}`" in text
    numbers = [int.from_bytes(content[i : i + 2], "little") for i in range(0, 14, 2)]
    assert f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]} (" in text


def test_no_other_hash_is_on_the_page() -> None:
    """An example that is added is held to the second implementation as well."""
    on_the_page = set(re.findall(r"\b[0-9a-f]{64}\b", PAGE))
    computed = {
        content_hash(),
        reference.rows_fingerprint(FINGERPRINT, 3).hex(),
        *(found.hex() for found in (FINGERPRINT, IDENTITY, MASK, *stages())),
        bytes(32).hex(),
        *two_blocks_hashes(),
    }

    unknown = on_the_page - computed - in_golden_vectors(reference.golden())
    assert unknown == set()


def in_golden_vectors(value: object) -> set[str]:
    """Every text in the golden vectors, however deep."""
    if isinstance(value, dict):
        return in_golden_vectors(list(value.values()))
    if isinstance(value, list):
        return set().union(*map(in_golden_vectors, value))
    return {value} if isinstance(value, str) else set()


def test_the_example_of_each_formula_is_among_the_golden_vectors() -> None:
    """The vectors contain the examples of the page."""
    vectors = in_golden_vectors(reference.golden())
    numbers = {case["checksum"] for case in reference.golden()["plane_checksums"]}

    for text in (section(6), section(9)):
        assert set(re.findall(r"\b[0-9a-f]{64}\b", text)) <= vectors
    assert reference.frame_checksum(IDENTITY, *PLACE, TOKENS, [MASK_PLANE]) in numbers


def keys(value: object) -> set[str]:
    """Every key of a record, however deep."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def test_the_page_names_every_topic_of_the_golden_vectors_and_every_key() -> None:
    """And no other."""
    rows = re.findall(r"^\| `(\w+)` \| \d+ \| (.*) \|$", PAGE, flags=re.MULTILINE)

    named = {topic: set(re.findall(r"`(\w+)`", text)) for topic, text in rows}

    assert named == {topic: keys(records) for topic, records in reference.golden().items()}
