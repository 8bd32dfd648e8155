"""Corpora of documents in each format, opened as datasets; every token tells its own place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from server.datasets.dataset import Dataset, PlaneOptions, TokenChecks, open_dataset
from server.datasets.sources import DatasetSource
from server.storage.borders import Delimiters
from server.storage.formats import FormatOptions
from tests.server.storage.borders.naive import write_lines
from tests.support.packed_corpora import Corpus, write_corpus

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
def opened(corpus: Corpus) -> Iterator[Dataset]:
    """Its dataset, as a server opens it."""
    source = DatasetSource(corpus.name, tuple(map(str, corpus.paths)))
    planes = PlaneOptions(delimiters=Delimiters(end=corpus.end_token))
    dataset = open_dataset(
        source, FormatOptions.parse(None, None, None), TokenChecks(), planes=planes
    )
    try:
        yield dataset
    finally:
        dataset.close()
