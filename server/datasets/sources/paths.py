"""The files of a path, a glob or a folder.

Decides by names, and for text whose name is .json by its first bytes. Other content is for
`formats`.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tokenfeed.errors import InvalidCorpus
from tokenfeed.stream.planes import KINDS

from ...storage.door import (
    Entry,
    absolute,
    door_of,
    exists,
    is_folder,
    open_file,
    scheme_of,
    size_of,
)

SHARD_SUFFIXES = (".bin", ".ds", ".npy", ".safetensors")
"""The shards of a folder: it may also contain other files, such as a README or a script."""
PACKINGS = (".gz", ".gzip", ".zst", ".xz", ".bz2")
"""What the name of a compressed file ends with."""
_PACKED_SHARDS = tuple(f"{ending}{packing}" for ending in SHARD_SUFFIXES for packing in PACKINGS)
TEXT_SUFFIXES = (
    ".parquet",
    ".txt",
    *(lines + packing for lines in (".jsonl", ".ndjson", ".json") for packing in ("", *PACKINGS)),
)
"""The text files of a folder, which are ingested."""
_SNIFFED_BYTES = 1 << 16
_NOTICE = re.compile("(licen[sc]e|readme|notice|copying)[^/]*[.]txt$", re.IGNORECASE)
"""Names of texts that are no part of a corpus beside others."""
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""What the package datasets writes beside data."""
_NAMED_MAX = 8
MASK_SUFFIXES = (".loss", ".npy", ".bin", ".mask")
"""The loss masks of a folder."""

_COMPANIONS = (
    (".idx", ".bin"),
    (".ds.index", ".ds"),
    (".ds.metadata", ".ds"),
    (".ds.loss", ".ds"),
    (".ds.ids", ".ds"),
    (".csv.gz", ".npy"),
    *((f".{name}", "") for name in KINDS.values()),
)
"""Suffixes of files that accompany token files, and the suffix of the token file."""

_MASK_NAMES = (
    ("token_ids", re.compile(r"token_ids(?=_part_\d+\.npy$)"), "labels_mask"),
    ("_text_document", re.compile(r"_text_document(?=\.bin$)"), "_mask_document"),
)
"""What a layout calls its token files, and what their loss masks: that of OLMo-core and
open-instruct, and Megatron's.
"""


def expand(word: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files of one command-line word, in order; of a folder those with these suffixes.
    Raises: InvalidCorpus.
    """
    if not word:
        raise InvalidCorpus("data", "has an empty path; was a variable unset?")
    door = door_of(word)
    if is_folder(word):
        found = files_in(word, suffixes)
        problem = f"is a folder without files named *{', *'.join(suffixes)}"
        problem += _other_files(word, suffixes) if not found else ""
    elif not door.exists(word) and glob.has_magic(word):
        # Including dangling links, so that they cause an error later.
        found = list({path for path in door.glob(word) if not is_folder(path)})
        problem = "matches no file"
    elif "://" in word and not (scheme_of(word) or door.exists(word)):
        raise InvalidCorpus(word, "names a kind of storage that is not known here")
    else:
        return [word]
    if not found:
        raise InvalidCorpus(word, problem)
    return sorted(found, key=os.fsencode)


@dataclass(frozen=True, slots=True)
class Omission:
    """What a folder of text has that is not ingested.

    why: ends a sentence about it.  size_bytes: of a folder, that of all files in it; 0 of what is
    no data for certain.
    """

    path: str
    why: str
    size_bytes: int


_MADE = ("train", "val", "manifest.json")
"""What an ingest writes into its folder."""


def text_files(
    words: Sequence[str], *, ignores_others: bool = False, made: str = ""
) -> tuple[list[str], list[Omission]]:
    """Return the text files of words, in order, and what their folders have besides. Files with a
    dot before their name do not count.

    ignores_others: whether it is no error that a folder has more bytes besides.  made: a folder
    that the ingest itself writes, which does not count.
    Raises: InvalidCorpus.
    """
    paths: list[str] = []
    others: list[Omission] = []
    places = (made, *(os.path.join(made, name) for name in _MADE)) if made else ()
    own = {door_of(each).real(each) for each in places}
    for word in words:
        omitted = [*_omissions(word)]
        left = [one for one in omitted if door_of(one.path).real(one.path) not in own]
        paths_left = {one.path for one in omitted}
        # A folder of nothing else is an error below, which names what it has.
        in_folder = bool(omitted) and is_folder(word)
        every = files_in(word, TEXT_SUFFIXES) if in_folder else expand(word, TEXT_SUFFIXES)
        found = sorted(set(every) - paths_left, key=os.fsencode) if omitted else every
        left_bytes, found_bytes = sum(one.size_bytes for one in left), sum(map(size_of, found))
        if left and (not found or (left_bytes > found_bytes and not ignores_others)):
            problem = f"has {left_bytes:,} bytes that would not be ingested: {name_omissions(left)}"
            cure = "pass --ignore-others to tokenfeed ingest to go on without them"
            if not found:
                cure = "no other file is text"
            raise InvalidCorpus(word, f"{problem}; {cure}")
        paths += found
        others += left
    return paths, others


def unserved(words: Sequence[str]) -> list[Omission]:
    """Return what the folders among words have besides shards, and what may be meant: compressed
    files, and folders with shards in them.
    """
    found = []
    for word in filter(is_folder, words):
        for each in door_of(word).entries(word):
            if each.name.startswith("."):
                continue
            if each.name.endswith(_PACKED_SHARDS):
                found.append(Omission(each.path, "compressed; unpack it", 0))
            elif each.is_folder and files_in(each.path, SHARD_SUFFIXES):
                found.append(Omission(each.path, "a folder; name its files by a glob", 0))
    return sorted(found, key=lambda one: os.fsencode(one.path))


def name_omissions(left: Sequence[Omission]) -> str:
    """Return the names and reasons in one line, of many only some."""
    named = [f"{os.path.basename(one.path)} ({one.why})" for one in left[:_NAMED_MAX]]
    more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
    return f"{len(left)} file(s) or folder(s): {', '.join(named)}{more}"


def _omissions(word: str) -> Iterator[Omission]:
    """Yield what a folder, or a glob, has besides text."""
    door = door_of(word)
    if is_folder(word):
        entries = door.entries(word)
    elif door.exists(word) or not glob.has_magic(word):
        return
    else:
        # Files of a glob are meant, whatever they are called.
        paths = filter(is_folder, door.glob(word, recursive=False))
        entries = [Entry(path, is_folder=True) for path in paths]
    has_more = len(entries) > 1
    for path, inside, *_ in sorted(entries, key=lambda each: os.fsencode(each.path)):
        name = os.path.basename(path)
        if name.startswith("."):
            continue
        if inside:
            yield Omission(path, "a folder; name its files by a glob", _size_below(path))
        elif not name.endswith(TEXT_SUFFIXES):
            yield Omission(path, "another kind of file", size_of(path))
        elif has_more and _NOTICE.match(name):
            yield Omission(path, "about the others; name it to take it", 0)
        elif name in _DESCRIPTIONS:
            yield Omission(path, "a description of a dataset", 0)
        elif name.endswith(".json") and (why := _why_not_lines(path)):
            yield Omission(path, why, size_of(path))


def _why_not_lines(path: str) -> str:
    """Return what a file is instead of JSON lines; "" if it is these."""
    try:
        with open_file(path) as file:
            head = file.read(0, min(_SNIFFED_BYTES, file.size_bytes))
    except InvalidCorpus as error:
        # What cannot be read is an error later.
        return "" if error.__cause__ is not None else "not JSON lines"
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"["):
        return "a JSON array; write one object per line"
    line, end, _ = head.partition(b"\n")
    try:
        is_line = not end or isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        is_line = False
    return "" if is_line and line.startswith(b"{") else "not JSON lines"


def _size_below(folder: str) -> int:
    """Return the bytes of all files of a folder; links to folders are not followed."""
    door = door_of(folder)
    total_bytes, left = 0, [folder]
    while left:
        with suppress(InvalidCorpus):
            for each in door.entries(left.pop()):
                if not each.is_folder:
                    total_bytes += size_of(each.path)
                elif not door.is_link(each.path):
                    left.append(each.path)
    return total_bytes


def mask_of(path: str) -> str:
    """Return the path that the loss mask of a token file has in its layout; "" if it has none."""
    for word, of_tokens, of_mask in _MASK_NAMES:
        # Nearly always the answer, and there may be 100,000 files.
        if word in path and of_tokens.search(name := os.path.basename(path)):
            return os.path.join(os.path.dirname(path), of_tokens.sub(of_mask, name))
    return ""


def tokens_of(paths: Sequence[str]) -> list[str]:
    """Return the token files: a companion file is dropped if its token file is given too, and
    replaced by its token file if not.
    """
    given = set(map(absolute, paths))
    masks = {absolute(mask) for mask in map(mask_of, paths) if mask}
    tokens = []
    for path in paths:
        if absolute(path) in masks:
            continue
        belongs = [
            path.removesuffix(suffix) + token_suffix
            for suffix, token_suffix in _COMPANIONS
            if path.endswith(suffix)
        ]
        if not belongs or not exists(belongs[0]):
            tokens.append(path)
        elif absolute(belongs[0]) not in given:
            given.add(absolute(belongs[0]))
            tokens.append(belongs[0])
    return tokens


def files_in(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files with these suffixes, including dangling links."""
    return [
        each.path
        for each in door_of(folder).entries(folder, suffixes)
        if each.name[0] != "." and not each.is_folder
    ]


def _other_files(folder: str, suffixes: tuple[str, ...]) -> str:
    """Return the most frequent suffixes of a folder, for an error, and what to do with them."""
    names = [each.name for each in door_of(folder).entries(folder)]
    others = Counter(os.path.splitext(name)[1] for name in names)
    del others[""]
    named = [f"{count} *{suffix}" for suffix, count in others.most_common(3)]
    if not named:
        return ""
    cure = "name plain text by file or by a glob"
    if suffixes == SHARD_SUFFIXES:
        has_text = files_in(folder, TEXT_SUFFIXES)
        cure = "ingest it first" if has_text else "docs/formats.md lists the formats"
    return f", but {', '.join(named)}; {cure}"
