"""manifest.json: the inputs, options and output of an ingest; written by `tokenfeed.server.ingest`.

docs/ingest.md lists its fields. The fingerprint of each split is compared with the files at every
start. The digest is trusted, like that of a digest file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenfeed.errors import InvalidCorpus

from ...storage.bytes import PIECE_BYTES
from ...storage.door import entry, is_folder, is_missing, open_file

NAME = "manifest.json"
VERSION = 1
WORK_FOLDER = ".ingest"
"""Where an ingest keeps unfinished work."""


ListedFile = tuple[str, int, bytes]
"""Path, size in bytes and SHA-256."""


@dataclass(frozen=True, slots=True)
class ManifestSplit:
    """One dataset of a manifest.

    name: "train" or "val".  paths: of its shards.  fingerprint, digest: 32 bytes each.
    loss_masks: empty unless pairs or chats were ingested.  document_ids: files of ids; empty unless
    they were kept.
    """

    name: str
    paths: tuple[str, ...]
    fingerprint: bytes
    digest: bytes
    loss_masks: tuple[ListedFile, ...] = ()
    document_ids: tuple[ListedFile, ...] = ()

    def listed_files(self) -> Iterator[tuple[str, ListedFile]]:
        """Yield the files beside the shards, each with what it is called in errors."""
        for name, files in (("loss mask", self.loss_masks), ("file of ids", self.document_ids)):
            for file in files:
                yield name, file


def require_listed(split: ManifestSplit) -> None:
    """Raise InvalidCorpus unless each mask and each file of ids of a manifest exists and has the
    listed size.
    """
    for name, (path, size_bytes, _) in split.listed_files():
        found = entry(path)
        if found is not None and found.size_bytes == size_bytes:
            continue
        try:
            with open_file(path) as file:
                problem = f"has {file.size_bytes} bytes, not {size_bytes}"
        except InvalidCorpus as error:
            problem = error.problem
        cure = f"restore this {name}, or remove the folder and ingest again"
        raise InvalidCorpus(path, f"is listed in its manifest, but {problem}; {cure}")


def require_as_ingested(split: ManifestSplit) -> None:
    """Raise InvalidCorpus unless all masks and ids of a manifest, which are read, have the listed
    hash.
    """
    for name, (path, _, sha256) in split.listed_files():
        found = hashlib.sha256()
        with open_file(path) as file, file.stream() as stream:
            while piece := stream.read(PIECE_BYTES):
                found.update(piece)
        if found.digest() != sha256:
            cure = "restore it, or remove the folder and ingest again"
            raise InvalidCorpus(path, f"is not the {name} that its manifest lists; {cure}")


def read_splits(folder: str) -> list[ManifestSplit] | None:
    """Return the datasets that were ingested into a folder; None if none were.

    Raises: InvalidCorpus if the ingest is not finished, or the manifest is damaged.
    """
    content = read_manifest(folder)
    if content is None:
        if is_folder(os.path.join(folder, WORK_FOLDER)):
            raise InvalidCorpus(folder, "contains an unfinished ingest; run its command again")
        return None
    path = os.path.join(folder, NAME)
    try:
        splits = [
            ManifestSplit(
                name,
                tuple(os.path.join(folder, name, shard["name"]) for shard in split["shards"]),
                _hash(split["fingerprint"]),
                _hash(split["digest"]),
                _listed(os.path.join(folder, name), split, "loss_mask", "tokens"),  # a byte each
                _listed(os.path.join(folder, name), split, "document_ids", "document_ids_bytes"),
            )
            for name, split in content["splits"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidCorpus(path, "is not a manifest of tokenfeed, or is damaged") from error
    if not splits or not all(split.paths for split in splits):
        raise InvalidCorpus(path, "lists no shards")
    return splits


def _listed(folder: str, split: dict[str, Any], what: str, size: str) -> tuple[ListedFile, ...]:
    """Return the files of a kind beside shards.  what, size: fields of a shard, if it has one."""
    shards = [shard for shard in split["shards"] if what in shard]
    return tuple(
        (os.path.join(folder, each[what]), int(each[size]), _hash(each[f"{what}_sha256"]))
        for each in shards
    )


def _hash(digits: str) -> bytes:
    content = bytes.fromhex(digits)
    if len(content) != 32:
        raise ValueError(f"{len(content)} bytes")
    return content


def read_manifest(folder: str) -> dict[str, Any] | None:
    """Return the content of a folder's manifest; None if it has none.  Raises: InvalidCorpus."""
    path = os.path.join(folder, NAME)
    try:
        with open_file(path) as file:
            content = json.loads(file.read(0, file.size_bytes))
    except InvalidCorpus as error:
        if is_missing(error):
            return None
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidCorpus(path, "is not a manifest of tokenfeed, or is damaged") from error
    if not isinstance(content, dict) or "job" not in content:
        return None  # the manifest of another program
    if content.get("version") != VERSION:
        raise InvalidCorpus(path, f"is not a manifest of version {VERSION}")
    return content
