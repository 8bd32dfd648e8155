"""The status page: a GetStatusResponse as HTML, for people who run the server.

    page.py            the document, its headers, and what they allow
    tables.py          datasets, clients and refusals
    drawing.py         lines and bars, as SVG
    page.css, page.js  its style; its refreshing, without which it is as readable

What is wrong is judged in tokenfeed/commands/status, as for `tokenfeed top`.
"""

from __future__ import annotations

from .page import status_page

__all__ = ["status_page"]
