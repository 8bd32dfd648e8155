"""What `tokenfeed redact` does: documents -> ranges -> a longer list -> erased tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import InvalidRequest, NotFound, listed
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.provenance.documents import DatasetDocuments
from tokenfeed.server.datasets.redactions.erased_files import locked_records, require_listed
from tokenfeed.server.datasets.redactions.list_file import RedactionLists
from tokenfeed.server.datasets.redactions.list_format import (
    RANGES_MAX,
    REASON_CHARACTERS_MAX,
    ListContent,
)
from tokenfeed.server.datasets.redactions.list_writing import locked, now, write_list
from tokenfeed.server.datasets.redactions.opening import list_path
from tokenfeed.server.datasets.redactions.ranges import RedactionList, TokenRanges, Triple
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.documents import used_delimiters
from tokenfeed.server.storage.documents.known_documents import all_known
from tokenfeed.server.storage.door import StorageOptions, scheme_of
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.store import TokenStore, open_store
from tokenfeed.stream.position import require_range

from . import erasing
from .describing import describe_lists

_RANGE = re.compile(r"(.+):([0-9]{1,19}):([0-9]{1,19})", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,19}")
_SHOWN = 200
FILL = 0
"""By default. Every corpus has this token, whatever its type."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to take out.

    documents: numbers.  ids: of documents.  ranges: FILE:FIRST:END.  fill: None is that of the
    list, or FILL.
    """

    documents: Sequence[int] = ()
    ids: Sequence[str] = ()
    ranges: Sequence[str] = ()
    fill: int | None = None
    reason: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether it is no token at all."""
        return not (self.documents or self.ids or self.ranges)


@dataclass(frozen=True, slots=True)
class ListSummary:
    """A list as it is now.  documents: those all of whose tokens are in it; None if unknown."""

    dataset: str
    path: str
    content: ListContent
    latest: RedactionList
    documents: int | None
    lines: Sequence[str]

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        erasure = self.content.erasure
        return {
            "dataset": self.dataset,
            "file": self.path,
            "list": self.latest.hash.hex(),
            "lists": [each.hex() for each in self.content.hashes],
            "fill": self.latest.fill,
            "ranges": len(self.latest.ranges),
            "tokens": self.latest.ranges.token_count,
            "documents": self.documents,
            "erased_list": erasure.list_hash.hex() if erasure else None,
            "erased_tokens": erasure.ranges.token_count if erasure else 0,
        }

    def text(self) -> str:
        """Return it for a person, with the next step."""
        documents = "unknown" if self.documents is None else f"{self.documents:,}"
        latest = self.latest.hash
        following = "copy the list to every replica"
        if self.content.erasure is not None and self.content.erasure.list_hash == latest:
            following += ", and run this command on each copy of the files"
        call = f'feed.redact("{latest.hex()}", at_sample=...)'
        return "\n".join(
            [
                *self.lines,
                f"whole documents in the list: {documents}",
                f"next: {following}; in the run, unless it has the list: {call}",
            ]
        )


@dataclass(frozen=True, slots=True)
class RedactTarget:
    """The dataset whose tokens are taken out.  planes: with the path of the list, if it is not
    beside the files.
    """

    source: DatasetSource
    options: FormatOptions
    storage: StorageOptions
    planes: PlaneOptions

    def redact(
        self, chosen: Selection, *, erases: bool = False, has_no_delimiter: bool = False
    ) -> ListSummary:
        """Add to the list, and return it.

        erases: whether to erase the tokens of the whole list.  has_no_delimiter: no server finds
        documents by a delimiter.
        Raises: TokenfeedError; then nothing was added.
        """
        if chosen.is_nothing and not erases:
            with closing(self._open()) as dataset:
                return _summary(dataset, _content_of(dataset))
        path = self._path()
        if scheme_of(path):
            problem = "is written on this machine: pass a file, and copy it to the store"
            raise InvalidRequest("--list", problem)
        if erases and scheme_of(self.source.paths[0]):
            problem = "is for files of this machine: an object that is replaced is another one"
            raise InvalidRequest("--erase", problem)
        with locked(path):
            with closing(self._open()) as dataset:
                content = self._added(path, dataset, chosen, erases, has_no_delimiter)
            if erases:
                with closing(self._open_tokens()) as store:
                    erasing.keep_digest(content, store)
        with closing(self._open()) as dataset:
            return _summary(dataset, _content_of(dataset))

    def _open(self) -> Dataset:
        checks = TokenChecks(serves=False)
        return open_dataset(self.source, self.options, checks, self.storage, planes=self.planes)

    def _open_tokens(self) -> TokenStore:
        return open_store(self.source.name, self.source.paths, self.options, self.storage)[0]

    def _path(self) -> str:
        if self.planes.redactions is not None:
            return self.planes.redactions
        with closing(self._open_tokens()) as store:
            if not (found := list_path(store)):
                problem = "is required: nothing is written beside files of another storage"
                raise InvalidRequest("--list", problem)
            return found

    def _added(
        self, path: str, dataset: Dataset, chosen: Selection, erases: bool, has_no_delimiter: bool
    ) -> ListContent:
        """Return the list with what is asked for, written; if it erases, with all of it erased."""
        delimiters = self._delimiters(dataset.store)
        is_longer = not chosen.is_nothing
        content = _longer(dataset, chosen, delimiters) if is_longer else _content_of(dataset)
        if erases:
            if not (delimiters or has_no_delimiter or all_known(dataset.store.shards)):
                problem = "the format does not know its documents: pass the --document-end-token"
                cure = "of its servers, which is not erased, or --no-delimiter if they have none"
                raise InvalidRequest("--erase", f"{problem} {cure}")
            erasing.require_same_delimiters(content, delimiters)
        if content.fill in delimiters:
            problem = f"token {content.fill} would replace others, but it separates documents"
            has_list = _lists_of(dataset).content is not None
            cure = "pass another one, and --list FILE" if has_list else "pass another one"
            raise InvalidRequest("--fill", f"{problem}; {cure}")
        if erases:
            listed = content.list_of(len(content.additions)).ranges
            files = {dataset.store.shards[file].path for file in np.unique(listed.files).tolist()}
            with locked_records(files):
                require_listed(dataset.store, path, content)
                content = erasing.begin(path, content, dataset.store, dataset.digest, delimiters)
                erasing.replace_files(content, dataset.store)
            return content
        if content is not _lists_of(dataset).content:
            first = dataset.store.shards[0].path
            write_list(path, content, "" if scheme_of(first) else first)
        return content

    def _delimiters(self, store: TokenStore) -> list[int]:
        return list(used_delimiters(store, self.planes.delimiters).options.values())


def _content_of(dataset: Dataset) -> ListContent:
    """Return the list of a dataset.  Raises: NotFound."""
    lists = _lists_of(dataset)
    content = lists.content_now()
    if content is None:
        cure = "pass --document, --id or --range" if lists.path else "pass --list"
        subject = lists.path or dataset.store.shards[0].path
        raise NotFound(subject, f"there is no list yet; {cure}")
    return content


def _lists_of(dataset: Dataset) -> RedactionLists:
    assert dataset.redactions is not None
    return dataset.redactions


def _longer(dataset: Dataset, chosen: Selection, delimiters: Sequence[int]) -> ListContent:
    """Return the list of a dataset with what is asked for; itself if that adds no token.

    delimiters: tokens between documents, as the command was told.  Raises: TokenfeedError.
    """
    if len(chosen.reason) > REASON_CHARACTERS_MAX:
        problem = f"has {len(chosen.reason)} characters; the limit is {REASON_CHARACTERS_MAX}"
        raise InvalidRequest("--reason", problem)
    lists = _lists_of(dataset)
    content = lists.content_now()
    if content is None:
        fill = FILL if chosen.fill is None else chosen.fill
        require_range("--fill", fill, 0, lists.dataset.fill_max + 1)
        content = ListContent(dataset.fingerprint, fill, ())
    elif chosen.fill not in (None, content.fill):
        problem = f"{chosen.fill} is not the token of this list, {content.fill}"
        raise InvalidRequest("--fill", f"{problem}; make another list with --list")
    if delimiters and content.delimiters and {*content.delimiters} != {*delimiters}:
        named = " and ".join(map(str, content.delimiters))
        problem = f"the list was made with {named} between documents"
        cure = "pass the same as end or start token, since documents have their numbers by it"
        raise InvalidRequest("--document-end-token", f"{problem}; {cure}")
    ranges, when = ranges_of(dataset, chosen), now()
    try:
        return content.with_addition(ranges, when, chosen.reason, tuple(delimiters))
    except ValueError as problem:
        raise InvalidRequest("--list", f"the list {problem}") from None


def ranges_of(dataset: Dataset, chosen: Selection) -> TokenRanges:
    """Return the tokens that are asked for, at least one.  Raises: TokenfeedError."""
    found = [*_document_ranges(dataset, chosen), *_parsed_ranges(dataset.store, chosen.ranges)]
    if not found:
        raise InvalidRequest("--document", "none of these documents has a token")
    return TokenRanges.of(found)


def _document_ranges(dataset: Dataset, chosen: Selection) -> Iterator[Triple]:
    if not (chosen.documents or chosen.ids):
        return
    dataset.search_now()
    documents = DatasetDocuments(dataset)
    found = [documents.by_number(number) for number in chosen.documents]
    for wanted in chosen.ids:
        found += documents.by_id(wanted, RANGES_MAX)
    for one in found:
        if one.first_token < one.end_token:
            yield one.file, one.first_token, one.end_token


def _parsed_ranges(store: TokenStore, words: Sequence[str]) -> Iterator[Triple]:
    names = [os.path.basename(shard.path) for shard in store.shards]
    for word in words:
        match = _RANGE.fullmatch(word)
        if match is None:
            problem = f"{_shown(word)} is not FILE:FIRST:END, a file and two numbers of tokens"
            raise InvalidRequest("--range", problem)
        file, first, end = _file_number(match[1], names), int(match[2]), int(match[3])
        if first >= end:
            problem = f"{_shown(word)} has no token: END is behind the last one"
            raise InvalidRequest("--range", problem)
        count = int(store.shape.token_counts[file])
        if end > count:
            problem = f"tokens end at token {end} of file {file}, which has only {count} tokens"
            raise InvalidRequest("--range", problem)
        yield file, first, end


def _file_number(word: str, names: Sequence[str]) -> int:
    """Return the number of a file.  Raises: InvalidRequest, NotFound."""
    numbers = [number for number, name in enumerate(names) if name == word]
    if len(numbers) > 1:
        problem = f"{len(numbers)} files are named {_shown(word)}"
        found = listed(list(map(str, numbers)))
        raise InvalidRequest("--range", f"{problem}; pass the number of one of them: {found}")
    if numbers:
        return numbers[0]
    # More digits than that are not a number of a file; Python may not even read them.
    if _NUMBER.fullmatch(word) and int(word) < len(names):
        return int(word)
    problem = f"no file is named {_shown(word)}, or has this number of {len(names)}"
    raise NotFound("--range", problem)


def _shown(word: str) -> str:
    """Return what was typed as an error shows it; long words are cut."""
    return repr(word if len(word) <= _SHOWN else f"{word[:_SHOWN]}…")


def _summary(dataset: Dataset, content: ListContent) -> ListSummary:
    lists = _lists_of(dataset)
    latest = lists.find(content.hashes[-1])
    assert latest is not None
    documents = DatasetDocuments(dataset)
    count = None
    if documents.are_known:
        count = sum(
            _whole(documents, latest.ranges, file)
            for file in np.unique(latest.ranges.files).tolist()
        )
    return ListSummary(
        dataset.name, lists.path, content, latest, count, describe_lists(lists, dataset.store)
    )


def _whole(documents: DatasetDocuments, ranges: TokenRanges, file: int) -> int:
    """Return how many documents of a file have all of their tokens, at least one, in ranges."""
    own, known = ranges.of_file(file), documents.of_file(file)
    has_tokens = known.first_tokens < known.end_tokens
    firsts, ends = known.first_tokens[has_tokens], known.end_tokens[has_tokens]
    return int(np.count_nonzero(own.cover(firsts, ends)))
