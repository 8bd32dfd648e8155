"""The status page: a GetStatusResponse as HTML, readable without JavaScript."""

from __future__ import annotations

from html import escape

from tokenfeed.v1 import status_pb2 as pb

from ...runtime.http_server import Page


def status_page(status: pb.GetStatusResponse) -> Page:
    """Return the page."""
    return Page({"Content-Type": "text/html; charset=utf-8"}, escape(str(status)).encode())
