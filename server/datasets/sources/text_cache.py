"""Text given to --data: ingested once into a cache, and served from there.

The cache key covers the text files, the tokenizer and the options. Each key has its own folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tokenfeed.commands.decoding import tokenizer_path
from tokenfeed.commands.extras import is_installed, missing
from tokenfeed.errors import InvalidCorpus, InvalidRequest

from .manifest import VERSION, read_manifest
from .parsing import DatasetSource, parse_datasets

_LOG = logging.getLogger("tokenfeed.server")


_INGEST = (
    "import sys; sys.path[:] = {}; "
    "from tokenfeed.server.ingest import __main__ as ingest; sys.exit(ingest.main())"
)
"""Imports what this process would; python -m would search the working directory first."""
_Facts = dict[str, str | int]
"""A file as manifests record it: path, size_bytes and written_ns."""


@dataclass(frozen=True, slots=True)
class TextCache:
    """The options of the ingest, and the folder of the cache.

    tokenizer: path of a tokenizer.json or of its folder, or "bytes".  text_column: of parquet and
    jsonl.
    append_token: appended to each document; None appends none.  cache: folder.
    log_output: whether the lines that an ingest prints become records of the log; else they go to
    stderr as they are.
    """

    tokenizer: str
    text_column: str
    append_token: str | None
    cache: str
    log_output: bool = False

    def tokenized(self, text: DatasetSource, words: Sequence[str]) -> DatasetSource:
        """Return the tokens of text. Ingests it if it is not in the cache.

        words: the files as given on the command line.  Raises: InvalidCorpus.
        """
        files = [_facts(path) for path in text.paths]
        folder = os.path.join(os.path.abspath(self.cache), self._key(files))
        if read_manifest(folder) is None:
            self._ingest(text, words, folder)
        if not _is_made_of(files, folder):
            shutil.rmtree(folder, ignore_errors=True)
            problem = "changed while it was ingested, or files were added; start again"
            raise InvalidCorpus(text.paths[0], problem)
        (found,) = parse_datasets([folder])
        return DatasetSource(text.name, found.paths, split=found.split)

    def _ingest(self, text: DatasetSource, words: Sequence[str], folder: str) -> None:
        if not is_installed("pyarrow"):
            raise InvalidRequest("--tokenizer", missing("pyarrow", "ingest"))
        command = [sys.executable, "-I", "-c", _INGEST.format(sys.path)]
        command += map(os.path.abspath, words)
        command += ["--wait", f"--out={folder}", f"--parent-pid={os.getpid()}"]
        command += [f"--tokenizer={self.tokenizer}", f"--text-column={self.text_column}"]
        if self.append_token is not None:
            command += [f"--append-token={self.append_token}"]
        _LOG.info("ingesting dataset=%s files=%d into=%s", text.name, len(text.paths), folder)
        # In its own process, so that the memory of the tokenizer is freed afterwards.
        if self.log_output:
            code = _run_logged(command)
        else:
            code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        if code:
            why = f"signal {-code} ended its process" if code < 0 else "see the error above"
            raise InvalidCorpus(text.paths[0], f"could not be ingested: {why}")

    def _key(self, files: list[_Facts]) -> str:
        facts: list[object] = [
            VERSION,
            self._tokenizer_sha256(),
            self.text_column,
            self.append_token,
        ]
        facts += [list(file.values()) for file in files]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def _tokenizer_sha256(self) -> str:
        if not os.path.exists(self.tokenizer):
            return self.tokenizer
        try:
            with open(tokenizer_path(self.tokenizer), "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise InvalidRequest("--tokenizer", f"{self.tokenizer}: {error.strerror}") from error


def _run_logged(command: Sequence[str]) -> int:
    """Run a command, and log each line that it prints.  Returns: its exit code."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            level = logging.ERROR if line.startswith("error: ") else logging.INFO
            _LOG.log(level, "ingest printed line=%s", line.rstrip("\n"))
    return process.returncode


def _facts(path: str) -> _Facts:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidCorpus(path, f"cannot be read: {error.strerror}") from error
    return {
        "path": os.path.abspath(path),
        "size_bytes": status.st_size,
        "written_ns": status.st_mtime_ns,
    }


def _is_made_of(files: list[_Facts], folder: str) -> bool:
    """Return whether a manifest lists exactly these files: the ingest expanded the words itself."""
    job = (read_manifest(folder) or {}).get("job", {})
    return isinstance(job, dict) and job.get("sources") == files
