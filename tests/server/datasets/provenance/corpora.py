"""Corpora of documents in each format, opened as datasets; every token tells its own place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.server.storage.documents.starts_corpora import write_lines
from tests.support.opened_files import described_sources
from tests.support.packed_corpora import Corpus, random_lengths, write_corpus
from tokenfeed.sampling import orders
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.open_local import LocalDatasets
from tokenfeed.server.storage.documents import Delimiters
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.stream.planes import REDACTED
from tokenfeed.stream.position import Position
from tokenfeed.stream.schedule import first_stage, next_stage
from tokenfeed.stream.stage import Source
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.v1 import tokenfeed_pb2 as feed_pb
from tokenfeed.wire.request import Expected, Request, to_message

END_TOKEN = 65_000


def write_documents(
    folder: Path, lengths: Sequence[Sequence[int]], form: str, name: str = "train"
) -> Corpus:
    """Write files.  form: "ids" (our ingest's), "datatrove", "megatron", "olmo", "raw" (found by a
    delimiter, so no document is empty) or "unknown".
    """
    if form == "raw":
        lengths = [[length for length in file if length] for file in lengths]
        return write_corpus(folder, lengths, name, form=form, end_token=END_TOKEN)
    known = form if form in ("datatrove", "megatron") else "datatrove" if form == "ids" else "raw"
    corpus = write_corpus(folder, lengths, name, form=known)
    paths = []
    for file, (path, documents) in enumerate(zip(corpus.paths, lengths, strict=True)):
        if form == "ids":
            ids = [id_of(file, number) for number in range(len(documents))]
            Path(f"{path}.ids").write_text("".join(f"{one}\n" for one in ids))
        if form == "olmo":
            path = path.rename(path.with_suffix(".npy"))
            ends = np.cumsum(documents)
            write_lines(path, list(zip(ends - documents, ends, strict=True)))
        paths.append(path)
    return Corpus(name, tuple(paths), corpus.lengths, end_token=corpus.end_token)


def id_of(file: int, number: int) -> str:
    """The id of a document, counted within its file; each seventh one has the same id."""
    return "same" if number % 7 == 3 else f"doc-{file}-{number}"


def documents_in(corpus: Corpus) -> list[tuple[int, int, int]]:
    """File, first token and end of each document, by its number."""
    found = []
    for file, lengths in enumerate(corpus.lengths):
        ends = np.cumsum(lengths).tolist()
        found += [(file, end - length, end) for end, length in zip(ends, lengths, strict=True)]
    return found


@contextmanager
def opened(corpus: Corpus, row_tokens: int | None = None) -> Iterator[Dataset]:
    """Its dataset, as a server opens it.  row_tokens: the value of --row-tokens."""
    source = DatasetSource(corpus.name, tuple(map(str, corpus.paths)))
    planes = PlaneOptions(delimiters=Delimiters(end=corpus.end_token))
    dataset = open_dataset(
        source, FormatOptions.parse(None, None, None, row_tokens), TokenChecks(), planes=planes
    )
    try:
        yield dataset
    finally:
        dataset.close()


@contextmanager
def local(*corpora: Corpus, row_tokens: int | None = None) -> Iterator[LocalDatasets]:
    """Datasets of this process; rows over documents are made at once.

    row_tokens: the value of --row-tokens.
    """
    with ExitStack() as stack:
        datasets = [stack.enter_context(opened(corpus, row_tokens)) for corpus in corpora]
        yield LocalDatasets(datasets, lambda: False, polls=False)


def made_rows(datasets: LocalDatasets, stream: Stream) -> None:
    """Make the rows over documents of a stream, which a server would begin now."""
    described_sources(datasets, stream)


def message_of(
    stream: Stream,
    first_sample: int = 0,
    end_sample: int | None = None,
    *,
    batches: int | None = None,
    batch_size: int = 4,
    rank: int = 0,
    world_size: int = 1,
) -> feed_pb.GetBatchRequest:
    """A request for rows, with plane 53 if there are redactions."""
    position = Position(first_sample, batch_size, rank, world_size)
    planes = (REDACTED,) * bool(stream.redactions)
    request = Request(stream, position, planes, num_batches=batches, end_sample=end_sample)
    return to_message(request, Expected())


def stream_of(
    order: str, context_length: int = 16, seed: int = 7, long_documents: str = "", name: str = ""
) -> Stream:
    """A stream of one dataset."""
    found = orders.latest(order)
    return Stream.of_dataset(name, found, seed, context_length, long_documents)


def finding(rows: feed_pb.GetBatchRequest, **fields: Any) -> pb.FindRequest:
    """A search of the samples from the first row of a request up to its end_sample.

    fields: the others of FindRequest.
    """
    bounds = {"first_sample": rows.first_sample, "end_sample": rows.end_sample}
    return pb.FindRequest(stream=rows.stream, **bounds, **fields)


def tokens_at(corpus: Corpus, file: int, first: int, end: int) -> list[int]:
    """Tokens of a file, read from the disk."""
    return np.fromfile(corpus.paths[file], "<u2")[first:end].tolist()


def write_mixture(folder: Path) -> tuple[Corpus, Corpus, Stream, int]:
    """Two datasets, and a later stage of three sources, as a request has it: windows of the first
    dataset, rows over documents of the second, and draws of the first one once more. The last
    number is the first sample of the stage.
    """
    web = write_documents(folder / "web", random_lengths(5, 16), "ids", "web")
    books = write_documents(folder / "books", random_lengths(6, 16), "megatron", "books")
    sources = (
        Source("web", orders.latest("shuffled"), 5, 0),
        Source("books", orders.latest("packed"), 6, 1),
        Source("web", orders.latest("random"), 7, 2),
    )
    begun = first_stage(16, {0: 3, 1: 2, 2: 1})
    stage = replace(next_stage(begun, 50, {0: 4, 1: 3, 2: 3}), previous=b"p" * 32)
    return web, books, Stream(11, sources, (stage,)), stage.first_sample
