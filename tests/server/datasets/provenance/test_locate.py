"""Locate: the tokens at its ranges are those of the rows, and the documents are right."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.server.datasets.provenance.corpora import (
    documents_in,
    local,
    made_rows,
    message_of,
    opened,
    stream_of,
    tokens_at,
    write_documents,
    write_mixture,
)
from tests.server.requests import batches
from tests.server.storage.documents.starts_corpora import write_lines
from tests.support.opened_files import Blocks
from tests.support.packed_corpora import Corpus, random_lengths
from tests.support.redacted_corpora import begin_erasure, write_lists
from tokenfeed.errors import (
    InvalidRequest,
    LimitExceeded,
    NotFound,
    SamplesExhausted,
    StreamMismatch,
)
from tokenfeed.server.datasets.provenance import locate as locate_module
from tokenfeed.server.datasets.provenance import sources as sources_module
from tokenfeed.server.open_local import LocalDatasets
from tokenfeed.stream.stage import Redaction
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.v1 import tokenfeed_pb2 as feed_pb
from tokenfeed.wire.request import from_message

ORDERS = [
    ("shuffled", ""),
    ("sequential", ""),
    ("random", ""),
    ("packed", ""),
    ("padded", "cut"),
    ("padded", "drop"),
    ("padded", "truncate"),
    ("blocks", ""),
]


def located(datasets: LocalDatasets, rows: feed_pb.GetBatchRequest) -> list[pb.LocatedRow]:
    """All rows of a request, page by page."""
    request, _ = from_message(rows)
    found: list[pb.LocatedRow] = []
    while len(found) < request.row_count:
        batch, row = divmod(request.first_row + len(found), rows.batch_size)
        page = feed_pb.GetBatchRequest()
        page.CopyFrom(rows)
        page.ClearField("planes")
        page.first_sample = request.position.batch_first_sample(batch)
        page.first_row, page.num_batches = row, request.end_batch - batch
        answer = datasets.provenance.locate(pb.LocateRequest(rows=page))
        assert answer.rows
        found += answer.rows
    return found


def delivered(datasets: LocalDatasets, rows: feed_pb.GetBatchRequest) -> list[list[int]]:
    """The tokens of all rows of a request."""
    blocks = Blocks(datasets, from_message(rows)[0])
    found: list[list[int]] = []
    while (block := blocks.next()) is not None:
        found += block.tokens.tolist()
    return found


def require_right(
    datasets: LocalDatasets, rows: feed_pb.GetBatchRequest, corpora: list[Corpus]
) -> None:
    """Require that all rows are those that are delivered.  corpora: of each source."""
    request, _ = from_message(rows)
    numbers = request.stream.numbers
    documents = [documents_in(corpus) for corpus in corpora]
    found, tokens = located(datasets, rows), delivered(datasets, rows)
    assert len(found) == len(tokens)
    for index, (row, expected) in enumerate(zip(found, tokens, strict=True)):
        assert row.sample == request.position.sample_of(request.first_row + index)
        source = numbers.index(row.source)
        have = []
        for one in row.ranges:
            have += tokens_at(corpora[source], one.file, one.first_token, one.end_token)
            document = one.document
            file, first, end = documents[source][document.number]
            assert (file, first, end) == (document.file, document.first_token, document.end_token)
            assert (file, first <= one.first_token < one.end_token <= end) == (one.file, True)
        assert have + [0] * row.padding_tokens == expected
        if not request.stream.sources[source].reads_documents:
            for one, following in pairwise(row.ranges):
                assert (one.file, one.end_token) == (following.file, following.first_token)


@pytest.mark.parametrize("form", ["ids", "datatrove", "megatron", "olmo", "raw"])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_tokens_at_the_ranges_are_those_of_the_rows(
    tmp_path: Path, form: str, order: tuple[str, str]
) -> None:
    """On every format and in every order, for the second of two ranks."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), form)
    stream = stream_of(order[0], long_documents=order[1])

    with local(corpus) as datasets:
        made_rows(datasets, stream)
        rows = message_of(stream, 24, batches=10, rank=1, world_size=2)
        require_right(datasets, rows, [corpus])
        if form == "ids":
            answer = datasets.provenance.locate(pb.LocateRequest(rows=rows))
            assert all(one.document.id for row in answer.rows for one in row.ranges)
            assert {file.name for file in answer.files} <= {path.name for path in corpus.paths}


def test_rows_of_a_mixture_name_their_source_and_its_own_sample(tmp_path: Path) -> None:
    """Three sources of two datasets, in a later stage; one draws the dataset of another."""
    web, books, stream, first = write_mixture(tmp_path)

    rows = message_of(stream, first + 2, batches=9)
    with local(web, books) as by_source:
        made_rows(by_source, stream)
        tokens = delivered(by_source, rows)
    with local(web, books) as datasets:
        made_rows(datasets, stream)
        found = located(datasets, rows)
    assert {row.source for row in found} == {0, 1, 2}
    for row, expected in zip(found, tokens, strict=True):
        corpus = books if row.source == 1 else web
        have = []
        for one in row.ranges:
            have += tokens_at(corpus, one.file, one.first_token, one.end_token)
        assert have + [0] * row.padding_tokens == expected
        assert row.HasField("epoch") == (row.source != 2)


@pytest.mark.parametrize("order", ["shuffled", "packed"])
def test_redacted_tokens_of_a_row_are_those_of_plane_53(tmp_path: Path, order: str) -> None:
    """Also of a stream that does not request the plane, and of rows whose tokens were erased."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), "ids")

    with opened(corpus) as dataset:
        ranges = [(0, 5, 60), (0, 61, 62), (2, 0, 200)]
        first, second = write_lists(dataset, 0, ranges, [(1, 3, 100)])
        datasets = LocalDatasets([dataset], lambda: False, polls=False)
        stream = stream_of(order)
        made_rows(datasets, stream)
        stream = replace(stream, redactions=(Redaction(8, 0, first), Redaction(16, 0, second)))
        rows = message_of(stream, 16, batches=30)
        blocks = Blocks(datasets, from_message(rows)[0])
        expected = []
        while (block := blocks.next()) is not None:
            (plane,) = block.planes
            numbers = plane.content.view("<u4").reshape(-1, 2).tolist()
            ends = (plane.row_lengths.cumsum() // 8).tolist()
            expected += [numbers[first:end] for first, end in pairwise([0, *ends])]
        found = located(datasets, rows)
        marks = [[[one.first_token, one.end_token] for one in row.redacted] for row in found]
        assert marks == expected
        assert any(marks)
        assert not all(marks)
        begin_erasure(dataset)
        assert located(datasets, rows) == found
        rows.stream.redactions[1].list_hash = bytes(32)
        with pytest.raises(StreamMismatch, match="has no list"):
            located(datasets, rows)
        plain = message_of(replace(stream, redactions=()), 16, batches=30)
        assert not any(row.redacted for row in located(datasets, plain))


@pytest.mark.parametrize("order", ["shuffled", "packed"])
def test_erased_tokens_of_a_row_are_marked_unless_a_redaction_replaces_them(
    tmp_path: Path, order: str
) -> None:
    """A row that GetBatch refuses would look like an ordinary one."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), "ids")
    wanted = [(0, 5, 62), (2, 0, 200)]

    with opened(corpus) as dataset:
        (listed,) = write_lists(dataset, 0, wanted)
        datasets = LocalDatasets([dataset], lambda: False, polls=False)
        stream = stream_of(order)
        made_rows(datasets, stream)
        plain = message_of(stream, 16, batches=30)
        before = located(datasets, plain)
        assert not any(row.deleted for row in before)
        begin_erasure(dataset)
        made_rows(datasets, stream)  # looks at the list, which is read once a second otherwise
        redacted = message_of(
            replace(stream, redactions=(Redaction(8, 0, listed),)), 16, batches=30
        )
        replaced = located(datasets, redacted)
        assert not any(row.deleted for row in replaced)
        found = located(datasets, plain)
        marks = [[(one.first_token, one.end_token) for one in row.deleted] for row in found]
        assert marks == [
            [(one.first_token, one.end_token) for one in row.redacted] for row in replaced
        ]
        assert any(marks)
        assert not all(marks)
        for row in found:
            del row.deleted[:]
        assert found == before


def test_pages_are_cut_where_they_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ranges, by indices that have to be read, by bytes: the rows stay the same."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), "ids")
    stream = stream_of("shuffled")

    with local(corpus) as datasets:
        rows = message_of(stream, 0, batches=10)
        whole = located(datasets, rows)
        answer = datasets.provenance.locate(pb.LocateRequest(rows=rows))
        assert len(answer.rows) == 40
        for module, name, limit in (
            (locate_module, "PAGE_RANGES", 30),
            (locate_module, "PAGE_RANGES", 1),
            (locate_module, "ROWS_MAX", 7),
            (locate_module, "_ANSWER_BYTES", 500),
            (sources_module, "INDEX_BYTES_MAX", 1000),
            (sources_module, "INDEX_FILES_MAX", 1),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(module, name, limit)
                assert located(datasets, rows) == whole
                answer = datasets.provenance.locate(pb.LocateRequest(rows=rows))
                assert 1 <= len(answer.rows) < 40
        monkeypatch.setattr(locate_module, "PAGE_RANGES", 2)
        monkeypatch.setattr(locate_module, "RANGES_MAX", 2)
        with pytest.raises(LimitExceeded, match="ranges of tokens, above the limit"):
            located(datasets, rows)


def test_tokens_of_no_document_have_none(tmp_path: Path) -> None:
    """OLMo's index may leave tokens out; the window has them nevertheless."""
    path = tmp_path / "0.npy"
    write_documents(tmp_path, [[20]], "unknown")
    (tmp_path / "0.bin").rename(path)
    write_lines(path, [(2, 5), (5, 5), (9, 12)])

    with local(Corpus("train", (path,), ((20,),))) as datasets:
        rows = message_of(stream_of("sequential", 15), batches=1, batch_size=1)
        (row,) = datasets.provenance.locate(pb.LocateRequest(rows=rows)).rows
    found = [
        (one.first_token, one.end_token, one.document.number if one.HasField("document") else None)
        for one in row.ranges
    ]
    assert found == [(0, 2, None), (2, 5, 0), (5, 9, None), (9, 12, 2), (12, 16, None)]


def test_unknown_documents_are_left_out(tmp_path: Path) -> None:
    """A window is one range then."""
    corpus = write_documents(tmp_path, [[40], [35]], "unknown")

    with local(corpus) as datasets:
        rows = message_of(stream_of("shuffled"), batches=2, batch_size=2)
        for row, expected in zip(located(datasets, rows), delivered(datasets, rows), strict=True):
            (one,) = row.ranges
            assert not one.HasField("document")
            assert tokens_at(corpus, one.file, one.first_token, one.end_token) == expected


def test_names_of_files_are_safe_to_show(tmp_path: Path) -> None:
    """A control character in a name would move a terminal's cursor, or forge a line of a log."""
    write_documents(tmp_path, [[40]], "unknown")
    path = (tmp_path / "0.bin").rename(tmp_path / "a\n\x1b[1mb.bin")

    with local(Corpus("train", (path,), ((40,),))) as datasets:
        rows = message_of(stream_of("shuffled"), batches=1, batch_size=2)
        (file,) = datasets.provenance.locate(pb.LocateRequest(rows=rows)).files
    assert file.name == "a\\n\\x1b[1mb.bin"


def test_a_request_for_all_rows_there_are_is_answered_in_pages(tmp_path: Path) -> None:
    """2^63 rows: bounded, and at once."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), "ids")

    with local(corpus) as datasets:
        for stream in stream_of("shuffled"), stream_of("random"), stream_of("packed"):
            made_rows(datasets, stream)
            rows = message_of(stream, end_sample=2**63, batch_size=2**20)
            began = time.monotonic()
            answer = datasets.provenance.locate(pb.LocateRequest(rows=rows))
            assert 1 <= len(answer.rows) <= 1024
            assert time.monotonic() - began < 5
            last = message_of(stream, 2**63 - 1, end_sample=2**63, batch_size=1)
            (row,) = datasets.provenance.locate(pb.LocateRequest(rows=last)).rows
            assert row.sample == 2**63 - 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"batch_size": 0}, InvalidRequest),
        ({"context_length": 0}, InvalidRequest),
        ({"context_length": 2**40}, InvalidRequest),
        ({"dataset": "other"}, NotFound),
        ({"order": "other-1"}, NotFound),
        ({"first_sample": 2**63}, SamplesExhausted),
        ({"expected_digest": b"1" * 32}, StreamMismatch),
        ({"expected_identity": b"1" * 32}, StreamMismatch),
    ],
)
def test_a_request_is_checked_as_by_get_batch(
    tmp_path: Path, change: dict[str, object], error: type[Exception]
) -> None:
    """What GetBatch would refuse has no rows."""
    corpus = write_documents(tmp_path, [[40]], "unknown")
    right = {"batch_size": 4, "context_length": 16, "order": "shuffled-1", "num_batches": 1}

    with local(corpus) as datasets:
        assert datasets.provenance.locate(pb.LocateRequest(rows=batches(**right))).rows
        with pytest.raises(error):
            datasets.provenance.locate(pb.LocateRequest(rows=batches(**right | change)))
        with pytest.raises(InvalidRequest):
            datasets.provenance.locate(pb.LocateRequest())


def test_nothing_is_located_if_nothing_is_requested(tmp_path: Path) -> None:
    """No batches are no rows."""
    corpus = write_documents(tmp_path, [[40]], "ids")

    with local(corpus) as datasets:
        rows = message_of(stream_of("shuffled"), batches=0)
        answer = datasets.provenance.locate(pb.LocateRequest(rows=rows))
    assert answer == pb.LocateResponse()
