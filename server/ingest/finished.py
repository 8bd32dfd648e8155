"""What a finished ingest leaves beside its shards: the manifest, made here, and checked again when
the same command is run on a finished folder.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import closing
from typing import Any

from tokenfeed.errors import InvalidCorpus

from ..datasets.content import full_digest
from ..datasets.opening import TokenChecks, open_dataset
from ..datasets.planes.loss_masks import mask_path
from ..datasets.sources import DatasetSource
from ..datasets.sources.manifest import NAME as MANIFEST
from ..datasets.sources.manifest import VERSION
from ..storage.door import exists, open_file, size_of
from ..storage.formats import FormatOptions
from ..storage.formats.document_ids import ids_path
from .job import Checkpoint, Job, SplitProgress
from .output.shard_writer import shard_name
from .tokenize.tokenizer import FASTOKENS, load_tokenizer, token_dtype

_HASHED_BYTES = 1 << 20


def manifest_of(job: Job, checkpoint: Checkpoint, work: str) -> dict[str, Any]:
    """Return the manifest of a finished run; reads its shards once more, for their digests."""
    tokenizer = load_tokenizer(job.recipe.tokenizer_file)
    problems = problems_by_path(job, checkpoint)
    is_fast = job.recipe.tokenizer_file.engine == FASTOKENS
    return {
        "version": VERSION,
        "job": job.facts(),
        "tokenizer": {
            "name": job.recipe.tokenizer_file.name,
            "sha256": job.recipe.tokenizer_file.sha256,
            "vocab_size": tokenizer.vocab_size,
            "prepend_id": job.recipe.prepend_id,
            "append_id": job.recipe.append_id,
            "encoded_by": job.encoded_by,
            **({"compared_tokens": checkpoint.compared_tokens} if is_fast else {}),
        },
        "sources": [
            {
                "path": source.path,
                "size_bytes": source.size_bytes,
                "sha256": checkpoint.hashes[number],
                "problems": problems[source.path],
            }
            for number, source in enumerate(job.sources)
        ],
        "dtype": token_dtype(tokenizer).name,
        "splits": {
            name: _split_facts(
                os.path.join(work, name),
                name,
                counts,
                dtype=token_dtype(tokenizer).name,
                has_mask=job.recipe.has_mask,
                has_ids=job.recipe.id_column is not None,
            )
            for name, counts in checkpoint.splits.items()
            if counts.shards
        },
    }


def _split_facts(
    folder: str,
    name: str,
    counts: SplitProgress,
    *,
    dtype: str,
    has_mask: bool,
    has_ids: bool,
) -> dict[str, Any]:
    names = list(map(shard_name, range(len(counts.shards))))
    source = DatasetSource(name, tuple(os.path.join(folder, shard) for shard in names))
    options = FormatOptions.parse("datatrove", dtype, None)
    with closing(open_dataset(source, options, TokenChecks(serves=False))) as dataset:
        digest = dataset.digest or full_digest(dataset.store)
        return {
            "tokens": counts.all_tokens,
            "documents": counts.documents,
            **({"targets": counts.targets} if has_mask else {}),
            "fingerprint": dataset.fingerprint.hex(),
            "digest": digest.hex(),
            "shards": [
                {"name": shard, "tokens": tokens, "document_ends": f"{shard}.index", "ends": ends}
                | (_mask_facts(os.path.join(folder, shard)) if has_mask else {})
                | (_id_facts(os.path.join(folder, shard)) if has_ids else {})
                for shard, (tokens, ends) in zip(names, counts.shards, strict=True)
            ],
        }


def _mask_facts(shard_path: str) -> dict[str, str]:
    """Return the manifest's entries of the loss mask of a shard.  Raises: InvalidCorpus."""
    name, _, sha256 = _hashed(mask_path(shard_path))
    return {"loss_mask": name, "loss_mask_sha256": sha256}


def _id_facts(shard_path: str) -> dict[str, str | int]:
    """Return the manifest's entries of the ids of a shard.  Raises: InvalidCorpus."""
    name, size_bytes, sha256 = _hashed(ids_path(shard_path))
    return {
        "document_ids": name,
        "document_ids_bytes": size_bytes,
        "document_ids_sha256": sha256,
    }


def _hashed(path: str) -> tuple[str, int, str]:
    """Return the name of a file, its size in bytes, and its SHA-256 in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        for first in range(0, file.size_bytes, _HASHED_BYTES):
            digest.update(file.read(first, min(_HASHED_BYTES, file.size_bytes - first)))
        return file.name, file.size_bytes, digest.hexdigest()


def problems_by_path(job: Job, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the problems by path and kind."""
    return {
        source.path: {
            what: {"count": count, "first": where}
            for what, (count, where) in checkpoint.problems.get(number, {}).items()
        }
        for number, source in enumerate(job.sources)
    }


def require_whole(out: str, made: dict[str, Any]) -> None:
    """Raise InvalidCorpus unless all files of a manifest are there, with the right lengths."""
    cure = f"is damaged; remove {out} and ingest again"
    try:
        shards = [shard for split in made["splits"].values() for shard in split["shards"]]
        has_mask = len(made["job"]["columns"]) > 1 or bool(made["job"].get("chat_template_sha256"))
        if has_mask and not any("loss_mask" in shard for shard in shards):
            problem = "lists no loss masks: an older version wrote it; ingest into another folder"
            raise InvalidCorpus(os.path.join(out, MANIFEST), problem)
        has_ids = made["job"].get("id_column") is not None
        width = int(made["dtype"].removeprefix("uint")) // 8
        sizes = {
            os.path.join(out, name, file): size_bytes
            for name, split in made["splits"].items()
            for shard in split["shards"]
            for file, size_bytes in (
                (shard["name"], shard["tokens"] * width),
                (shard["document_ends"], 8 * shard["ends"]),
                *([(shard["loss_mask"], shard["tokens"])] if has_mask else ()),
                *([(shard["document_ids"], shard["document_ids_bytes"])] if has_ids else ()),
            )
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidCorpus(os.path.join(out, MANIFEST), cure) from error
    for path, size_bytes in sizes.items():
        if not exists(path) or size_of(path) != size_bytes:
            raise InvalidCorpus(path, cure)
