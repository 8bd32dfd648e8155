"""From the words of a command line to the names of datasets and their files.

parsing.py    the words -> DatasetSource
paths.py      what may be a file of a dataset
splits.py     whether its files are of one split
text_cache.py text that is ingested before it is served
manifest.py   the file that an ingest leaves: which shards, and their hashes
"""

from __future__ import annotations

from .parsing import (
    DatasetSource,
    is_text,
    parse_data,
    parse_datasets,
    parse_text,
    require_distinct_names,
    without_name,
)

__all__ = [
    "DatasetSource",
    "is_text",
    "parse_data",
    "parse_datasets",
    "parse_text",
    "require_distinct_names",
    "without_name",
]
