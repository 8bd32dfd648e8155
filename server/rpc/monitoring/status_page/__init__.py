"""The status page: a GetStatusResponse as HTML, for people who run the server.

    page.html          the document
    page.py            fills it; its drawings, its headers, and what they allow
    page.css, page.js  its style; its refreshing, without which it is as readable

What it shows is decided in tokenfeed/commands/status/view.py, as for `tokenfeed top`.
"""
