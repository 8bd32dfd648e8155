"""Targets of local files as users write them. Text only: no file is looked at.

file:train.bin                a path, a glob or a folder, also one that tokenfeed ingest made
file:a.bin,b.bin              several, which form one corpus
file:web=web/,code=code/      several corpora, by name
file:train.bin?dtype=uint32   with options of `tokenfeed serve`, such as format, dtype and read
s3://bucket/corpus/*.bin      in an object store, or on a web server: as if "file:" were before it
file:web=s3://b/web/,code=c/  of both kinds
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokenfeed.errors import InvalidRequest

from ..transport.addresses import Targets, each_target

FILE = "file:"
_URL = re.compile(r"(?:s3|gs|az)://|https://[^/]+/+[^/]")
"""How a path in an object store begins, or one on a web server; without a path, an address was
meant."""

_OPTIONS = re.compile(r"\?([a-z-]+(?:=[^&?]*)?(?:&[a-z-]+(?:=[^&?]*)?)*)\Z")
"""The end of a target. A "?" with something else behind it belongs to a glob."""
_NAMED = re.compile(r"[A-Za-z0-9_-]+=")


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """words: for each dataset, what follows a --data of the server.  options: by their names."""

    words: tuple[tuple[str, ...], ...]
    options: Mapping[str, str]

    def is_remote(self, dataset: str) -> bool:
        """Return whether files of a dataset are in an object store, or on a web server."""
        paths = {}
        for first, *others in self.words:
            name = named[0] if (named := _NAMED.match(first)) else ""
            paths[name] = first.removeprefix(name), *others
        # The name of a corpus that was given none is found in its files.
        return any(map(_URL.match, paths.get(f"{dataset}=") or paths.get("", ())))


def is_local_target(targets: Targets) -> bool:
    """Return whether targets are files or objects.  Raises: InvalidRequest if only some of them
    are, or they are not text.
    """
    each = each_target(targets)
    files = [isinstance(one, str) and _is_file(one) for one in each]
    if any(files) and not all(files):
        raise InvalidRequest("target", "has servers and files; pass either of them")
    return any(files)


def _is_file(target: str) -> bool:
    return target.startswith(FILE) or bool(_URL.match(target))


def parse_local_target(targets: Targets) -> LocalTarget:
    """Return what local targets name; several ones as if they were one, with commas.

    Raises: InvalidRequest if a target is malformed, or two have different options.
    """
    each = each_target(targets)
    words: list[list[str]] = []
    found: list[dict[str, str]] = []
    for target in each:
        rest = target.removeprefix(FILE)
        options = {}
        if match := _OPTIONS.search(rest):
            rest = rest[: match.start()]
            parts = [option.partition("=") for option in match[1].split("&")]
            options = {name: value for name, _, value in parts}
            if len(options) < len(parts):
                raise InvalidRequest("target", f"{target!r} has an option twice")
        found.append(options)
        for word in rest.split(","):
            named = _NAMED.match(word)
            name = named[0] if named else ""
            path = name + _path(word.removeprefix(name), target)
            if name or not words:
                words.append([path])
            else:
                words[-1].append(path)
    if any(options != found[0] for options in found):
        raise InvalidRequest("target", "has different options for its files; give all the same")
    return LocalTarget(tuple(map(tuple, words)), found[0])


def _path(path: str, target: str) -> str:
    """Return a path of a target, with ~ expanded.  Raises: InvalidRequest."""
    if path.startswith("//"):
        if not path.startswith("///"):
            raise InvalidRequest("target", f"{target!r} names a host; write file:/PATH")
        path = path.removeprefix("//")
    if not path:
        raise InvalidRequest("target", f"{target!r} names no path; write file:PATH")
    try:
        os.fsencode(path)
        expanded = os.path.expanduser(path)
    except ValueError:
        expanded = "\0"
    if "\0" in expanded:
        raise InvalidRequest("target", f"{target!r} has a character that no path may have")
    return expanded
