"""Fixtures of ingest: everything here needs pyarrow and tokenizers, which a server does not."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("pyarrow") and find_spec("tokenizers") else ["*"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.server.ingest.corpus import make_tokenizer

    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
