"""Find: its rows are those that a plan of all samples finds, and no other."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.server.datasets.provenance.corpora import (
    documents_in,
    finding,
    local,
    made_rows,
    message_of,
    opened,
    stream_of,
    write_documents,
    write_mixture,
)
from tests.server.datasets.provenance.test_locate import ORDERS, located
from tests.support.packed_corpora import Corpus, random_lengths
from tests.support.redacted_corpora import begin_erasure, write_lists
from tokenfeed.errors import InvalidRequest, NotFound, SamplesExhausted, StreamMismatch
from tokenfeed.server.datasets.provenance import find as find_module
from tokenfeed.server.open_local import LocalDatasets
from tokenfeed.stream.stage import Corpus as KnownCorpus
from tokenfeed.stream.stage import Redaction
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.v1 import tokenfeed_pb2 as feed_pb
from tokenfeed.wire.request import stream_message

Spans = list[tuple[int, int]]
Wanted = list[tuple[int, int, int]]
"""File, first token and end of ranges."""


def found_rows(datasets: LocalDatasets, asked: pb.FindRequest) -> dict[int, Spans]:
    """Samples, and where they have tokens, of all pages; each sample once."""
    rows: dict[int, Spans] = {}
    while True:
        answer = datasets.provenance.find(asked)
        assert asked.first_candidate < max(answer.candidates, 1)
        for row in answer.rows:
            assert row.sample not in rows
            rows[row.sample] = [(one.first_token, one.end_token) for one in row.spans]
        if not answer.HasField("next_candidate"):
            return rows
        assert answer.next_candidate > asked.first_candidate
        asked.first_candidate = answer.next_candidate


def by_force(
    datasets: LocalDatasets, request: feed_pb.GetBatchRequest, source: int, wanted: Wanted
) -> dict[int, Spans]:
    """The same, from where all rows come from."""
    rows = {}
    for row in located(datasets, request):
        spans: Spans = []
        at = 0
        for one in row.ranges if row.source == source else ():
            hits = [
                (max(first, one.first_token), min(end, one.end_token))
                for file, first, end in wanted
                if file == one.file
            ]
            for first, end in sorted(hits):
                begin = at + first - one.first_token
                if first < end and spans and spans[-1][1] == begin:
                    spans[-1] = (spans[-1][0], begin + end - first)
                elif first < end:
                    spans.append((begin, begin + end - first))
            at += one.end_token - one.first_token
        if spans:
            rows[row.sample] = spans
    return rows


def merged(spans: Spans) -> Spans:
    """Spans of which none touch."""
    found: Spans = []
    for first, end in spans:
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


def require_right(
    datasets: LocalDatasets, stream: Stream, corpus: Corpus, samples: range, source: int = 0
) -> int:
    """Require that some documents and ranges are found where they are.  Returns: how many rows."""
    request = message_of(stream, samples.start, samples.stop, batch_size=1)
    documents = documents_in(corpus)
    count = 0
    longest = max(range(len(documents)), key=lambda n: documents[n][2] - documents[n][1])
    for number in (0, 1, len(documents) // 2, longest, len(documents) - 1):
        asked = finding(request, source=source, document=number)
        found = found_rows(datasets, asked)
        expected = by_force(datasets, request, source, [documents[number]])
        assert {s: merged(spans) for s, spans in found.items()} == expected
        count += len(found)
    for file, first, end in ((0, 0, 1), (1, 5, 60), (2, 3, sum(corpus.lengths[2]))):
        asked = finding(
            request,
            source=source,
            range=pb.FileRange(file=file, first_token=first, end_token=end),
        )
        found = found_rows(datasets, asked)
        expected = by_force(datasets, request, source, [(file, first, end)])
        assert {s: merged(spans) for s, spans in found.items()} == expected
        count += len(found)
    return count


@pytest.mark.parametrize("form", ["ids", "megatron", "raw"])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_all_rows_that_hold_a_document_are_found_and_no_other(
    tmp_path: Path, form: str, order: tuple[str, str]
) -> None:
    """Over some epochs, of a range of samples that begins and ends within one."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), form)
    stream = stream_of(order[0], long_documents=order[1])

    with local(corpus) as datasets:
        made_rows(datasets, stream)
        assert require_right(datasets, stream, corpus, range(33, 433))


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
def test_documents_are_found_in_files_of_rows(tmp_path: Path, order: str) -> None:
    """A row begins where the one before it ends, so no token is in two rows of an epoch."""
    corpus = write_documents(tmp_path, [[40, 11], [60, 25], [3, 14, 17]], "ids")

    with local(corpus, row_tokens=17) as datasets:
        assert require_right(datasets, stream_of(order), corpus, range(3, 45))


@pytest.mark.parametrize("source", [0, 1, 2])
def test_a_source_of_a_mixture_is_searched_by_itself(tmp_path: Path, source: int) -> None:
    """Through blocks of a later stage, from within a block to within another one."""
    web, books, stream, first = write_mixture(tmp_path)

    with local(web, books) as datasets:
        made_rows(datasets, stream)
        corpus = books if source == 1 else web
        assert require_right(datasets, stream, corpus, range(first + 3, first + 503), source)


@pytest.mark.parametrize("order", ["shuffled", "random", "packed"])
def test_pages_lose_and_repeat_nothing(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small they are: by candidates, and by spans of their rows."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), "ids")
    stream = stream_of(order)

    with local(corpus) as datasets:
        made_rows(datasets, stream)
        request = message_of(stream, 0, 400, batch_size=1)
        asked = finding(request, document_id="same")
        whole = found_rows(datasets, asked)
        assert len(whole) > 30
        for name, limit in (
            ("CANDIDATES_AT_ONCE", 7),
            ("SAMPLES_AT_ONCE", 50),
            ("SPANS_MAX", 3),
            ("_PIECES_MAX", 2),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(find_module, name, limit)
                asked.first_candidate = 0
                assert found_rows(datasets, asked) == whole


@pytest.mark.parametrize("source", [0, 1, 2])
def test_found_rows_say_what_is_redacted_and_deleted_as_locate_does(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each source of a mixture, also where pages are cut by these marks."""
    web, books, stream, first = write_mixture(tmp_path)

    with opened(web) as one, opened(books) as other:
        (listed,) = write_lists(one, 0, [(0, 5, 60), (0, 61, 62), (2, 0, 90)])
        write_lists(other, 0, [(0, 0, 70), (1, 3, 40)])
        begin_erasure(other)
        assert other.redactions is not None
        other.redactions.find(bytes(32))  # looks at the file at once
        datasets = LocalDatasets([one, other], lambda: False, polls=False)
        made_rows(datasets, stream)
        redactions = Redaction(first, 0, listed), Redaction(first, 2, listed)
        stream = replace(stream, redactions=redactions)
        request = message_of(stream, first, first + 400, batch_size=1)
        marks = {row.sample: row for row in located(datasets, request)}
        asked = finding(
            request, source=source, range=pb.FileRange(file=0, first_token=0, end_token=80)
        )
        monkeypatch.setattr(find_module, "SPANS_MAX", 5)
        count = 0
        while True:
            answer = datasets.provenance.find(asked)
            for row in answer.rows:
                same = marks[row.sample]
                assert (row.redacted, row.deleted) == (same.redacted, same.deleted)
                count += len(row.deleted if source == 1 else row.redacted)
            if not answer.HasField("next_candidate"):
                break
            asked.first_candidate = answer.next_candidate
        assert count > 3


@pytest.mark.parametrize("redacted", [False, True])
def test_another_stream_than_the_expected_one_is_not_searched(
    tmp_path: Path, redacted: bool
) -> None:
    """Its rows would be those of another run."""
    corpus = write_documents(tmp_path, [[40, 50]], "ids")

    with opened(corpus) as dataset:
        (listed,) = write_lists(dataset, 0, [(0, 5, 60)])
        datasets = LocalDatasets([dataset], lambda: False, polls=False)
        stream = stream_of("shuffled")
        if redacted:
            stream = replace(stream, redactions=(Redaction(0, 0, listed),))
        asked = finding(message_of(stream, 0, 9, batch_size=1), document=0)
        asked.expected_identity = stream.known({0: KnownCorpus(dataset.fingerprint)}).identity(0)
        datasets.provenance.find(asked)
        asked.expected_identity = bytes(31) + b"1"
        with pytest.raises(StreamMismatch, match="is not this stream's identity"):
            datasets.provenance.find(asked)


def test_redactions_have_to_be_in_force_at_the_first_sample(tmp_path: Path) -> None:
    """Rows before the redaction would be marked as if it were."""
    corpus = write_documents(tmp_path, [[40, 50]], "ids")

    with opened(corpus) as dataset:
        (listed,) = write_lists(dataset, 0, [(0, 5, 60)])
        datasets = LocalDatasets([dataset], lambda: False, polls=False)
        stream = replace(stream_of("shuffled"), redactions=(Redaction(7, 0, listed),))
        asked = finding(message_of(stream, 7, 9, batch_size=1), document=0)
        datasets.provenance.find(asked)
        asked.first_sample = 6
        with pytest.raises(InvalidRequest, match=r"^redactions\.first_sample: 7 is above .* 6"):
            datasets.provenance.find(asked)


def test_an_id_finds_the_rows_of_all_of_its_documents(tmp_path: Path) -> None:
    """And says which documents these are."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), "ids")
    stream = stream_of("padded", long_documents="cut")

    with local(corpus) as datasets:
        made_rows(datasets, stream)
        request = message_of(stream, 0, 300, batch_size=1)
        asked = finding(request, document_id="same")
        answer = datasets.provenance.find(asked)
        wanted = [(one.file, one.first_token, one.end_token) for one in answer.looked_for]
        assert {one.document.id for one in answer.looked_for} == {"same"}
        assert [file.file for file in answer.files] == [0, 1, 2]
        assert found_rows(datasets, asked).keys() == by_force(datasets, request, 0, wanted).keys()


@pytest.mark.parametrize("order", ["shuffled", "sequential", "random", "packed"])
def test_a_search_of_everything_is_answered_in_pages(tmp_path: Path, order: str) -> None:
    """2^63 samples of a whole file: each page is quick and bounded, and so is the last one."""
    corpus = write_documents(tmp_path, [[30, 17, 400], [20]], "ids")
    stream = stream_of(order)

    with local(corpus) as datasets:
        made_rows(datasets, stream)
        asked = finding(
            message_of(stream, 0, 2**63, batch_size=1),
            range=pb.FileRange(file=0, first_token=0, end_token=447),
        )
        began = time.monotonic()
        answer = datasets.provenance.find(asked)
        assert 0 < len(answer.rows) <= 65536
        assert answer.HasField("next_candidate")
        asked.first_candidate = answer.candidates - 1
        last = datasets.provenance.find(asked)
        assert not last.HasField("next_candidate")
        for beyond in (answer.candidates, 2**64 - 1):
            asked.first_candidate = beyond
            nothing = datasets.provenance.find(asked)
            assert (list(nothing.rows), nothing.HasField("next_candidate")) == ([], False)
        assert time.monotonic() - began < 5
        rows = message_of(stream, 2**63 - 40, 2**63, batch_size=1)
        asked = finding(rows, range=asked.range)
        assert found_rows(datasets, asked) == by_force(datasets, rows, 0, [(0, 0, 447)])


def test_a_file_is_named_by_number_or_by_name(tmp_path: Path) -> None:
    """A name of several files is refused, and the refusal lists them."""
    for folder in "ab":
        (tmp_path / folder).mkdir()
    paths = (tmp_path / "a" / "x.bin", tmp_path / "b" / "x.bin", tmp_path / "y\t.bin")
    for path in paths:
        np.arange(50, dtype="<u2").tofile(path)

    with local(Corpus("train", paths, ((50,), (50,), (50,)))) as datasets:

        def ask(**what: object) -> pb.FindResponse:
            found = pb.FileRange(first_token=3, end_token=5)
            for field, value in what.items():
                setattr(found, field, value)
            request = message_of(stream_of("shuffled"), 0, 9, batch_size=1)
            return datasets.provenance.find(finding(request, range=found))

        (file,) = ask(file_name="y\\t.bin").files
        assert (file.file, file.name) == (2, "y\\t.bin")
        with pytest.raises(InvalidRequest, match="has several files: 0, 1"):
            ask(file_name="x.bin")
        for wrong in ({"file_name": "z.bin"}, {"file_name": str(paths[0])}, {"file": 3}):
            with pytest.raises(NotFound):
                ask(**wrong)
        for limits in (
            {"end_token": 3},
            {"end_token": 51},
            {"first_token": 2**64 - 1, "end_token": 2},
            {"first_token": 0, "end_token": 0},
        ):
            with pytest.raises(InvalidRequest, match="range: "):
                ask(**limits)


def test_what_is_missing_or_unknown_is_said(tmp_path: Path) -> None:
    """By the field at fault."""
    corpus = write_documents(tmp_path, random_lengths(4, 16), "ids")

    with local(corpus) as datasets:
        request = message_of(stream_of("shuffled"), 0, 9, batch_size=1)
        for asked, error, field in (
            (pb.FindRequest(), InvalidRequest, "stream.sources"),
            (finding(request), InvalidRequest, "what"),
            (finding(request, document=2**64 - 1), NotFound, "document"),
            (finding(request, document_id="a\nb"), NotFound, "document_id"),
            (finding(request, document_id="\x1b[1m"), NotFound, "document_id"),
            (finding(request, document=1, source=1), InvalidRequest, "source"),
        ):
            with pytest.raises(error, match=f"^{field}: ") as caught:
                datasets.provenance.find(asked)
            assert str(caught.value).isprintable()


def test_samples_are_those_that_there_are(tmp_path: Path) -> None:
    """Both bounds up to 2^63, and the first one within the stage."""
    web, books, stream, first = write_mixture(tmp_path)

    with local(web, books) as datasets:
        made_rows(datasets, stream)
        message = stream_message(stream)
        for begin, end, error, field in (
            (2**63, 2**63, SamplesExhausted, "first_sample"),
            (2**64 - 1, 2**63, SamplesExhausted, "first_sample"),
            (first, 2**63 + 1, SamplesExhausted, "end_sample"),
            (first, 2**64 - 1, SamplesExhausted, "end_sample"),
            (first - 1, first + 1, InvalidRequest, "first_sample"),
        ):
            asked = pb.FindRequest(stream=message, first_sample=begin, end_sample=end, document=0)
            with pytest.raises(error, match=f"^{field}: "):
                datasets.provenance.find(asked)
        for end in (0, first, 2**63):
            asked = pb.FindRequest(stream=message, first_sample=first, end_sample=end, document=0)
            assert bool(datasets.provenance.find(asked).rows) == (end > first)


def test_no_sample_holds_a_document_without_tokens(tmp_path: Path) -> None:
    """It has a number, and no place."""
    corpus = write_documents(tmp_path, [[3, 0, 40]], "ids")

    with local(corpus) as datasets:
        request = message_of(stream_of("shuffled"), 0, 2**40, batch_size=1)
        answer = datasets.provenance.find(finding(request, document=1))
    (one,) = answer.looked_for
    assert (one.document.number, one.first_token, one.end_token) == (1, 3, 3)
    assert (answer.candidates, len(answer.rows)) == (0, 0)


@pytest.mark.parametrize("order", ["shuffled", "sequential", "packed", "padded", "random"])
def test_all_samples_of_a_dataset_of_one_row_can_be_searched(tmp_path: Path, order: str) -> None:
    """There are 2^63 of them, and as many epochs."""
    corpus, stream = write_documents(tmp_path, [[17]], "ids"), stream_of(order)
    with local(corpus) as datasets:
        made_rows(datasets, stream)
        asked = pb.FindRequest(stream=stream_message(stream), end_sample=2**63, document=0)
        answer = datasets.provenance.find(asked)

    assert answer.candidates == 2**63
    assert [row.sample for row in answer.rows[:3]] == [0, 1, 2]
