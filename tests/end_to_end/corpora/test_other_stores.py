"""Corpora in Google Cloud Storage and in Azure give the rows of the same files on a disk: in
emulators of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import NumpyBatches
from tests.conftest import Serve
from tests.end_to_end.corpora.test_documents_and_masks import FORMATS, B, Corpus, T, write_corpus
from tests.end_to_end.corpora.test_object_stores import (
    BATCHES,
    ORDERS,
    require_data_loss,
    require_opened_without_get,
    require_same,
    rows_of,
)
from tests.support.other_stores import BUCKET, azurite, fake_gcs
from tests.support.waiting import eventually
from tokenfeed.server.storage.objects.slab import open_slab, size_of

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.usefixtures("own_cache")]
STORES = {"gs": fake_gcs, "az": azurite}


@pytest.fixture(scope="module", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Any]]:
    """The beginning of its paths, and what puts files there."""
    with STORES[request.param](tmp_path_factory.mktemp("store")) as put:
        yield f"{request.param}://{BUCKET}", put


@pytest.fixture(scope="module")
def corpora(store: tuple[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    folder = tmp_path_factory.mktemp("corpora")
    found = {form: write_corpus(folder / form, form) for form in FORMATS}
    store[1](folder, "c")
    return found


def remote(corpus: Corpus, text: str, prefix: str) -> str:
    folder = Path(corpus.target.partition("=")[2].partition(",")[0]).parents[1]
    return text.replace(str(folder), f"{prefix}/c")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("order", ORDERS)
def test_rows_are_those_of_files(
    store: tuple[str, Any], corpora: dict[str, Corpus], serve: Serve, form: str, order: str
) -> None:
    """Stores differ in names of versions, in ETags and in conditions."""
    target = corpora[form].target
    found = rows_of(remote(corpora[form], target, store[0]), order=order)
    require_same(found, rows_of(target, order=order))


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_opening_makes_no_get_of_an_object(
    store: tuple[str, Any],
    corpora: dict[str, Corpus],
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lists of Azure name ETags without quotes."""
    require_opened_without_get(remote(corpora[form], corpora[form].target, store[0]), monkeypatch)


@pytest.mark.parametrize("form", FORMATS)
def test_a_server_caches_them(
    store: tuple[str, Any], corpora: dict[str, Corpus], serve: Serve, tmp_path: Path, form: str
) -> None:
    """And a state goes from a feed over the store to the server, and to files."""
    corpus = corpora[form]
    cache = ["--object-cache", str(tmp_path), "--object-cache-bytes", str(size_of(64))]
    words = [remote(corpus, word, store[0]) for word in corpus.words]
    address = serve(*words, *cache).address
    options: dict[str, Any] = {"seed": 5, "rank": 0, "world_size": 1, "order": "shuffled"}
    require_same(rows_of(address, **options), rows_of(corpus.target, **options))
    slab = open_slab(str(tmp_path), None)
    assert eventually(lambda: slab.refresh() or bool(np.any(slab.entries["stamp"])))
    require_same(rows_of(address, **options), rows_of(corpus.target, **options))

    in_store = remote(corpus, corpus.target, store[0]).removeprefix("file:").partition("=")[2]
    state, found = None, []
    for target in (in_store, address, corpus.target):
        with NumpyBatches(target, B, T, **options) as feed:
            if state is not None:
                feed.load_state_dict(state)
            found += [batch[0].copy() for batch in islice(feed, BATCHES // 4)]
            state = feed.state_dict()
    with NumpyBatches(corpus.target, B, T, **options) as feed:
        for batch, expected in zip(found, feed, strict=False):
            np.testing.assert_array_equal(batch, expected[0])


def test_a_replaced_object_is_data_loss(
    store: tuple[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each names its content in another way."""
    require_data_loss(*store, tmp_path / "changing", caplog, monkeypatch)
