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
    file = job.recipe.tokenizer_file
    tokenizer = load_tokenizer(file)
    problems = problems_by_path(job, checkpoint)
    is_fast = file.engine == FASTOKENS
    return {
        "version": VERSION,
        "job": job.facts(),
        "tokenizer": {
            "name": file.name,
            "sha256": file.sha256,
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
            name: _split_facts(os.path.join(work, name), name, counts, job)
            for name, counts in checkpoint.splits.items()
            if counts.shards
        },
    }


def _split_facts(folder: str, name: str, counts: SplitProgress, job: Job) -> dict[str, Any]:
    paths = [os.path.join(folder, shard_name(number)) for number in range(len(counts.shards))]
    recipe = job.recipe
    dtype = token_dtype(load_tokenizer(recipe.tokenizer_file)).name
    source = DatasetSource(name, tuple(paths))
    options = FormatOptions.parse("datatrove", dtype, None)
    shards = []
    with closing(open_dataset(source, options, TokenChecks(serves=False))) as dataset:
        digest = dataset.digest or full_digest(dataset.store)
        for path, (tokens, ends) in zip(paths, counts.shards, strict=True):
            shard = os.path.basename(path)
            facts = {
                "name": shard, "tokens": tokens, "document_ends": f"{shard}.index", "ends": ends,
            }  # fmt: skip
            if recipe.has_mask:
                beside, _, sha256 = _hashed(mask_path(path))
                facts |= {"loss_mask": beside, "loss_mask_sha256": sha256}
            if recipe.id_column is not None:
                beside, size_bytes, sha256 = _hashed(ids_path(path))
                facts |= {"document_ids": beside, "document_ids_bytes": size_bytes}
                facts |= {"document_ids_sha256": sha256}
            shards.append(facts)
        return {
            "tokens": counts.all_tokens,
            "documents": counts.documents,
            **({"targets": counts.targets} if recipe.has_mask else {}),
            "fingerprint": dataset.fingerprint.hex(),
            "digest": digest.hex(),
            "shards": shards,
        }


def _hashed(path: str) -> tuple[str, int, str]:
    """Return the name of a file, its size in bytes, and its SHA-256 in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_file(path) as file, file.stream() as stream:
        while block := stream.read(_HASHED_BYTES):
            digest.update(block)
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
        has_mask = len(made["job"]["columns"]) > 1 or bool(made["job"]["chat_template_sha256"])
        has_ids = made["job"]["id_column"] is not None
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
