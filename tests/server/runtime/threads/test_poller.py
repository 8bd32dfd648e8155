"""Polling of files and bearer tokens while they are served, which never stops."""

from __future__ import annotations

import logging
import re
import threading

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.conftest import look, options
from tests.support.stores import map_store
from tests.support.waiting import let_time_pass
from tokenfeed.server.runtime.threads.poller import Poller, RescanWorker


def test_a_check_that_fails_stops_neither_the_others_nor_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise tokens could not be revoked any more, without any sign of it."""
    looked = threading.Semaphore(0)
    failed = threading.Semaphore(0)

    def fail() -> None:
        failed.release()
        raise OSError(5, "Input/output error", "/secret/path")

    watch = Poller({"broken": fail, "tokens": looked.release})
    try:
        assert all(look.acquire(timeout=5) for look in (looked, failed) * 3)
    finally:
        watch.close()

    (line,) = caplog.messages
    assert re.fullmatch(
        r"check failed name=broken: OSError EIO at tokenfeed/server/runtime/threads/poller\.py:\d+",
        line,
    )


def test_the_traceback_of_a_failed_check_is_in_the_log_at_level_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It appears only on request; the line above it stays short."""
    failed = threading.Semaphore(0)

    def fail() -> None:
        failed.release()
        raise OSError(5, "Input/output error", "/secret/path")

    with caplog.at_level(logging.DEBUG, "tokenfeed.server"):
        watch = Poller({"broken": fail})
        try:
            # The second check starts after the first was logged.
            assert all(failed.acquire(timeout=5) for _ in range(2))
        finally:
            watch.close()

    line, traceback = caplog.records[:2]
    assert (line.levelname, traceback.levelname) == ("ERROR", "DEBUG")
    assert "secret" not in line.getMessage()
    assert traceback.exc_text is not None
    assert "in fail\n" in traceback.exc_text


def test_a_file_is_reread_once_without_blocking_polls(write_tokens: WriteTokens) -> None:
    """It takes seconds for 1 GiB."""
    path = write_tokens(np.arange(1, 5000))
    corpus = map_store("train", [str(path)], options("<u2"))
    rescans = RescanWorker()
    reading, may_end = threading.Event(), threading.Event()
    read = []

    def same_content() -> bool:
        read.append(path)
        reading.set()
        return may_end.wait(5)

    try:
        let_time_pass(path)
        path.chmod(0o600)
        for _ in range(3):
            look(corpus, same_content, rescans.submit)
        assert reading.wait(5)
        assert not corpus.files.failed

        may_end.set()
        done = threading.Event()
        rescans.submit(done.set)
        assert done.wait(5)
        look(corpus, same_content, rescans.submit)
        assert len(read) == 1
        assert not corpus.files.failed
    finally:
        rescans.close()
        corpus.close()


def test_a_file_with_other_content_fails_the_dataset_in_the_background(
    write_tokens: WriteTokens,
) -> None:
    path = write_tokens(np.arange(1, 5000))
    corpus = map_store("train", [str(path)], options("<u2"))
    rescans = RescanWorker()
    try:
        let_time_pass(path)
        path.chmod(0o600)
        look(corpus, lambda: False, rescans.submit)
        done = threading.Event()
        rescans.submit(done.set)
        assert done.wait(5)

        assert corpus.files.failed
    finally:
        rescans.close()
        corpus.close()


def test_a_failed_rescan_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    rescans = RescanWorker()
    done = threading.Event()
    try:
        rescans.submit(lambda: [][0])
        rescans.submit(done.set)
        assert done.wait(5)
    finally:
        rescans.close()

    (line,) = caplog.messages
    assert line.startswith("rescan failed: IndexError at ")


def test_a_closed_rescan_worker_reads_nothing_more() -> None:
    rescans = RescanWorker()
    rescans.close()
    rescans.close()

    rescans.submit(lambda: pytest.fail("it was read"))
