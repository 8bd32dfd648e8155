"""Paths of objects as text: SCHEME://PLACE/KEY."""

from __future__ import annotations

import os
from typing import NamedTuple


class Url(NamedTuple):
    """A path, taken apart.

    scheme: "s3", "gs", "az" or "https".  place: the bucket, the container, or HOST[:PORT] of a
    web server.
    key: of the object in it, or of what is taken for a folder; "" for the bucket itself.
    """

    scheme: str
    place: str
    key: str

    @classmethod
    def parse(cls, path: str) -> Url:
        """Take a path apart. "a//b", "a/./b" and "a/b/" are "a/b", as in a path of files."""
        scheme, _, rest = path.partition("://")
        place, _, key = rest.partition("/")
        return cls(scheme, place, os.path.normpath(f"/{key}").lstrip("/"))

    @property
    def bucket(self) -> str:
        """The path of the bucket, or of the web server."""
        return f"{self.scheme}://{self.place}"

    @property
    def can_list(self) -> bool:
        """Whether there is a list of names: web servers have none."""
        return self.scheme != "https"
