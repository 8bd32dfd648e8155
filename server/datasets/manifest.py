"""manifest.json: the inputs, options and output of an ingest; written by `server.ingest`.

docs/ingest.md lists its fields. The fingerprint of each split is compared with the files at every
start. The digest is trusted, like that of a sidecar file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from tokenfeed.errors import InvalidCorpus

NAME = "manifest.json"
VERSION = 1
WORK_FOLDER = ".ingest"
"""Where an ingest keeps unfinished work."""


@dataclass(frozen=True, slots=True)
class ManifestSplit:
    """One dataset of a manifest.

    name: "train" or "val".  paths: of its shards.  fingerprint, digest: 32 bytes each.
    loss_masks: path, size in bytes and SHA-256 of each; empty unless prompts and responses were
    ingested.
    """

    name: str
    paths: tuple[str, ...]
    fingerprint: bytes
    digest: bytes
    loss_masks: tuple[tuple[str, int, bytes], ...] = ()


def read_splits(folder: str) -> list[ManifestSplit] | None:
    """Return the datasets that were ingested into a folder; None if none were.

    Raises: InvalidCorpus if the ingest is not finished, or the manifest is damaged.
    """
    content = read_manifest(folder)
    if content is None:
        if os.path.isdir(os.path.join(folder, WORK_FOLDER)):
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
                tuple(
                    (
                        os.path.join(folder, name, shard["loss_mask"]),
                        int(shard["tokens"]),  # one byte per token
                        _hash(shard["loss_mask_sha256"]),
                    )
                    for shard in split["shards"]
                    if "loss_mask" in shard
                ),
            )
            for name, split in content["splits"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidCorpus(path, "is not a manifest of tokenfeed, or is damaged") from error
    if not splits or not all(split.paths for split in splits):
        raise InvalidCorpus(path, "lists no shards")
    return splits


def _hash(digits: str) -> bytes:
    content = bytes.fromhex(digits)
    if len(content) != 32:
        raise ValueError(f"{len(content)} bytes")
    return content


def read_manifest(folder: str) -> dict[str, Any] | None:
    """Return the content of a folder's manifest; None if it has none.  Raises: InvalidCorpus."""
    path = os.path.join(folder, NAME)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidCorpus(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidCorpus(path, "is not a manifest of tokenfeed, or is damaged") from error
    if not isinstance(content, dict) or "job" not in content:
        return None  # the manifest of another program
    if content.get("version") != VERSION:
        raise InvalidCorpus(path, f"is not a manifest of version {VERSION}")
    return content
