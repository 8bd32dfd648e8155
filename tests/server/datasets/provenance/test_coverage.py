"""Coverage: its ranges have the tokens of the samples' rows, all of them and no other."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.server.datasets.provenance.corpora import (
    documents_in,
    local,
    made_rows,
    message_of,
    stream_of,
    write_documents,
    write_mixture,
)
from tests.server.datasets.provenance.test_locate import ORDERS, located
from tests.support.packed_corpora import Corpus, random_lengths
from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.server.datasets.provenance import coverage as coverage_module
from tokenfeed.server.datasets.provenance import sources as sources_module
from tokenfeed.server.open_local import LocalDatasets
from tokenfeed.stream.stage import Redaction, Share
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.wire.request import stream_message


def covered(
    datasets: LocalDatasets, stream: Stream, samples: list[range]
) -> list[pb.CoverageResponse]:
    """All pages."""
    asked = pb.CoverageRequest(
        stream=stream_message(stream),
        samples=[pb.SampleSpan(first_sample=one.start, end_sample=one.stop) for one in samples],
    )
    pages = []
    while True:
        pages.append(datasets.provenance.coverage(asked))
        if not pages[-1].HasField("next_place"):
            return pages
        assert pages[-1].next_place > asked.first_place
        asked.first_place = pages[-1].next_place


def require_right(
    datasets: LocalDatasets, stream: Stream, corpus: Corpus, samples: list[range]
) -> list[pb.CoverageResponse]:
    """Require that all pages together have the tokens of the rows of samples."""
    pages = covered(datasets, stream, samples)
    rows = [
        row
        for one in samples
        for row in located(datasets, message_of(stream, one.start, one.stop, batch_size=1))
    ]
    expected = Counter(
        (one.file, token)
        for row in rows
        for one in row.ranges
        for token in range(one.first_token, one.end_token)
    )
    ranges = [one for page in pages for one in page.ranges]
    tokens = Counter(
        (one.file, token) for one in ranges for token in range(one.first_token, one.end_token)
    )
    assert tokens.keys() == expected.keys()
    assert sum(page.row_count for page in pages) == len(rows)
    documents = documents_in(corpus)
    for one in ranges:
        holding = [
            number
            for number, (file, first, end) in enumerate(documents)
            if file == one.file and max(first, one.first_token) < min(end, one.end_token)
        ]
        assert holding
        assert one.first_document <= holding[0]
        assert holding[-1] < one.end_document
        between = range(one.first_document, one.end_document)
        empty = {n for n in between if documents[n][1] == documents[n][2]}
        assert set(between) - empty == set(holding)
    if len(pages) == 1 and stream.source.order.HAS_EPOCHS:
        # Disjoint, and as few as possible.
        found = sorted((one.file, one.first_token, one.end_token) for one in ranges)
        assert all(a[0] < b[0] or a[2] < b[1] for a, b in pairwise(found))
    return pages


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("form", ["ids", "raw"])
def test_the_ranges_have_the_tokens_of_all_rows_and_no_other(
    tmp_path: Path, form: str, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of scattered samples, of nearly an epoch, and of a whole one; in pages of any size."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), form)
    stream = stream_of(order[0], long_documents=order[1])

    with local(corpus) as datasets:
        made_rows(datasets, stream)
        probe = covered(datasets, stream, [range(1)])[0]
        count = probe.places if stream.source.order.HAS_EPOCHS else 150
        begin = 3 * count
        for samples in (
            [range(begin, begin + 2), range(begin + 7, begin + 8)],
            [range(begin + 1, begin + 30), range(begin + 31, begin + count)],
            [range(begin, begin + count)],
        ):
            require_right(datasets, stream, corpus, samples)
            for name, limit in (("SPANS_MAX", 40), ("_PLACES_MAX", 10), ("_SORTED_MAX", 0)):
                with monkeypatch.context() as patched:
                    patched.setattr(coverage_module, name, limit)
                    require_right(datasets, stream, corpus, samples)
            with monkeypatch.context() as patched:
                patched.setattr(sources_module, "INDEX_FILES_MAX", 1)
                pages = require_right(datasets, stream, corpus, samples)
            assert all(len({one.file for one in page.ranges}) <= 1 for page in pages)


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_ranges_of_files_of_rows_end_with_their_rows(tmp_path: Path, order: str) -> None:
    """A whole epoch has each token of a file once, its last one too."""
    corpus = write_documents(tmp_path, [[40, 11], [60, 25], [17]], "ids")

    with local(corpus, row_tokens=17) as datasets:
        for samples in ([range(9, 18)], [range(1, 3), range(5, 6)]):
            require_right(datasets, stream_of(order), corpus, samples)


def test_a_whole_epoch_is_one_range_for_each_file(tmp_path: Path) -> None:
    """What an auditor reads is short."""
    corpus = write_documents(tmp_path, [[100, 61], [40], [10], [90]], "ids")

    with local(corpus) as datasets:
        (page,) = covered(datasets, stream_of("shuffled"), [range(17, 34)])
    assert page.places == page.row_count == 17
    assert [(one.file, one.first_token, one.end_token, one.row_count) for one in page.ranges] == [
        (0, 0, 161, 10),
        (1, 0, 33, 2),
        (3, 0, 81, 5),
    ]
    assert [file.name for file in page.files] == ["0.ds", "1.ds", "3.ds"]


def test_draws_are_listed_one_by_one(tmp_path: Path) -> None:
    """They come in the order of the samples, so that pages need no memory of each other."""
    corpus = write_documents(tmp_path, [[300], [200]], "ids")

    with local(corpus) as datasets:
        (page,) = covered(datasets, stream_of("random"), [range(5, 9), range(20, 21)])
        rows = located(datasets, message_of(stream_of("random"), 5, 9, batch_size=1))
    assert (page.places, page.row_count, len(page.ranges)) == (5, 5, 5)
    for one, row in zip(page.ranges, rows, strict=False):
        assert (one.file, one.first_token) == (row.ranges[0].file, row.ranges[0].first_token)


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_the_last_samples_are_covered(tmp_path: Path, order: str) -> None:
    """Near 2^63 an end is no int64 any more, and 2^63 draws are more than one counts with."""
    corpus = write_documents(tmp_path, [[300], [200]], "ids")
    stream = stream_of(order)

    with local(corpus) as datasets:
        require_right(
            datasets, stream, corpus, [range(2**63 - 3, 2**63 - 2), range(2**63 - 1, 2**63)]
        )
        if order == "random":
            asked = pb.CoverageRequest(
                stream=stream_message(stream), samples=[pb.SampleSpan(end_sample=2**63)]
            )
            began = time.monotonic()
            page = datasets.provenance.coverage(asked)
            assert (page.places, page.row_count <= 65536) == (2**63, True)
            asked.first_place = 2**63 - 2
            page = datasets.provenance.coverage(asked)
            assert (page.row_count, page.HasField("next_place")) == (2, False)
            assert time.monotonic() - began < 5


def test_samples_that_are_no_spans_of_one_epoch_are_refused(tmp_path: Path) -> None:
    """By a sentence that says what they have to be."""
    corpus = write_documents(tmp_path, [[300], [200]], "ids")
    stream = stream_of("shuffled")

    def spans(*bounds: tuple[int, int]) -> list[pb.SampleSpan]:
        return [pb.SampleSpan(first_sample=first, end_sample=end) for first, end in bounds]

    with local(corpus) as datasets:
        for samples, problem in (
            ([], "0 spans"),
            (spans((3, 3)), "ascend"),
            (spans((3, 5), (5, 6)), "ascend"),
            (spans((3, 5), (1, 2)), "ascend"),
            (spans((0, 2**63 + 1)), "ascend"),
            (spans((0, 31)), "epochs 0 to 1"),
            (spans(*((2 * n, 2 * n + 1) for n in range(65537))), "65537 spans"),
        ):
            with pytest.raises(InvalidRequest, match=f"^samples: .*{problem}"):
                datasets.provenance.coverage(
                    pb.CoverageRequest(stream=stream_message(stream), samples=samples)
                )
        asked = pb.CoverageRequest(stream=stream_message(stream), samples=spans((0, 1)))
        for beyond in (30, 2**64 - 1):
            asked.first_place = beyond
            assert datasets.provenance.coverage(asked) == pb.CoverageResponse(places=30)


def test_a_stage_of_several_sources_has_no_coverage(tmp_path: Path) -> None:
    """Its sources have, each in its own order from the beginning; redactions change no place."""
    web, books, stream, first = write_mixture(tmp_path)

    with local(web, books) as datasets:
        made_rows(datasets, stream)
        alone = stream_of("shuffled", name="web")
        stage = alone.stage
        for wrong, field in (
            (stream, "stream"),
            (alone.with_stages([replace(stage, index=1)]), "stream"),
            (alone.with_stages([replace(stage, first_sample=first)]), "stream"),
            (alone.with_stages([replace(stage, shares=(Share(0, 2, 0),))]), "stream"),
            (alone.with_stages([replace(stage, shares=(Share(0, 1, 5),))]), "stream"),
            (replace(alone, redactions=(Redaction(0, 0, bytes(32)),)), "redactions"),
        ):
            message = stream_message(wrong)
            message.stage.previous_identity = bytes(32)
            asked = pb.CoverageRequest(stream=message, samples=[pb.SampleSpan(end_sample=1)])
            with pytest.raises(InvalidRequest, match=f"^{field}: "):
                datasets.provenance.coverage(asked)
        asked = pb.CoverageRequest(
            stream=stream_message(alone), samples=[pb.SampleSpan(end_sample=1)]
        )
        assert datasets.provenance.coverage(asked).row_count == 1
        asked.expected_identity = bytes(31) + b"1"
        with pytest.raises(StreamMismatch, match=r"^expected_identity: "):
            datasets.provenance.coverage(asked)
