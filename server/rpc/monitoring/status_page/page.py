"""The document of the status page, and the headers under which nothing can be loaded or run that
this module did not write.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path

from tokenfeed.commands.status import words
from tokenfeed.commands.status.attention import Judgement, health, judge
from tokenfeed.commands.status.states import Level
from tokenfeed.v1 import status_pb2 as pb

from ....runtime.http_server import Page
from .drawing import bar, rate_line
from .tables import (
    CLASSES,
    DATASET_COLUMNS,
    MARKS,
    REFUSAL_COLUMNS,
    STREAM_COLUMNS,
    Column,
    dataset_row,
    refusal_row,
    stream_row,
    table,
)

_REFRESH_SECONDS = 5
"""Without JavaScript. The script has a time of its own."""


def status_page(status: pb.GetStatusResponse) -> Page:
    """Return the page."""
    judgement = judge(status)
    style, script = _style(), _asset("page.js")
    title = "tokenfeed"
    if judgement.points:
        title = f"({len(judgement.points) + judgement.points_omitted}) {title}"
    document = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<noscript><meta http-equiv="refresh" content="{_REFRESH_SECONDS}"></noscript>
<style>{style}</style></head>
<body><p id="stale" role="alert" hidden></p>
<main>{_header(status)}{_attention(judgement)}{_figures(status)}
{_datasets(status)}{_clients(status, judgement)}{_refusals(status)}{_meanings()}</main>
<script>{script}</script></body></html>
"""
    return Page(_headers(style, script), document.encode())


@cache
def _style() -> str:
    """Return the style. On a narrow screen each row is a card, and its cells have the headings."""
    labels = "".join(
        f'.{name} td:nth-child({place})::before {{ content: "{column[0]}"; }}\n'
        for name, columns in (("datasets", DATASET_COLUMNS), ("clients", STREAM_COLUMNS))
        for place, column in enumerate(columns, 1)
    )
    return f"{_asset('page.css')}@media (max-width: 760px) {{\n{labels}}}\n"


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


@cache
def _headers(style: str, script: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _hash(text: str) -> str:
    """Return a hash source of CSP, by which the browser knows our own style and script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _header(status: pb.GetStatusResponse) -> str:
    level, word = health(status)
    mark = MARKS[level] or "●"
    version = escape(words.printable(status.server_version))
    return (
        f'<header><h1>tokenfeed <span class="version">{version}</span></h1>'
        f'<p><strong class="health {CLASSES[level]}">{mark} {escape(word)}</strong> '
        f"<span>up {words.age(status)}, since {words.time(status.started_ms)}</span> "
        f'<span>as of <time id="now">{words.time(status.now_ms)}</time></span></p></header>'
    )


def _attention(judgement: Judgement) -> str:
    points = "".join(
        f'<li class="{CLASSES[point.level]}"><span class="mark" aria-hidden="true">'
        f"{MARKS[point.level]}</span> <bdi>{escape(point.text)}</bdi></li>"
        for point in judgement.points
    )
    if judgement.points_omitted:
        points += f'<li class="notice">And {judgement.points_omitted:,} more.</li>'
    shown = f"<ul>{points}</ul>" if points else '<p class="quiet">Nothing.</p>'
    kind = CLASSES[max((point.level for point in judgement.points), default=Level.NOTICE)]
    return (
        f'<section class="attention {kind}" aria-labelledby="attention">'
        f'<h2 id="attention">What needs attention</h2>{shown}</section>'
    )


def _figures(status: pb.GetStatusResponse) -> str:
    used, limit = status.anonymous_bytes, status.memory_limit_bytes
    share = used / limit if limit else 0.0
    refused = sum(each.count for each in status.refusals)
    figures = (
        ("Sends", f"{words.size(status.bytes_per_second)}/s", rate_line(status.second_bytes)),
        (
            "Open streams",
            f"{status.streams_open:,} <small>of about {status.streams_max:,}</small>",
            bar(("used", status.streams_open / max(1, status.streams_max))),
        ),
        (
            "Memory, without files",
            f"{words.size(used)} <small>of {words.size(limit)}</small>",
            bar(("used", share)),
        ),
        ("Threads", f"{status.threads:,}", ""),
        ("Calls refused", f"{refused:,} <small>since the start</small>", ""),
        ("Clients cut off", f"{status.evictions:,} <small>since the start</small>", ""),
    )
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>{value}{drawn}</dd></div>" for name, value, drawn in figures
    )
    return f'<dl class="figures">{tiles}</dl>'


def _datasets(status: pb.GetStatusResponse) -> str:
    rows = map(dataset_row, sorted(status.datasets, key=lambda each: not each.lost))
    return f"<section><h2>Datasets</h2>{table('datasets', DATASET_COLUMNS, rows)}</section>"


def _clients(status: pb.GetStatusResponse, judgement: Judgement) -> str:
    if not status.streams:
        return '<section><h2>Clients</h2><p class="quiet">No client has read yet.</p></section>'
    shown = table("clients", STREAM_COLUMNS, map(stream_row, judgement.streams))
    count = len(judgement.streams)
    omitted = ""
    if status.streams_omitted:
        omitted = (
            f'<p class="omitted">{status.streams_omitted:,} more are not listed: '
            f"these {count:,} were sent rows last.</p>"
        )
    total = f"<small>{count + status.streams_omitted:,}</small>"
    return f"<section><h2>Clients {total}</h2>{omitted}{shown}</section>"


def _refusals(status: pb.GetStatusResponse) -> str:
    if not status.refusals:
        return ""
    shown = table("refusals", REFUSAL_COLUMNS, map(refusal_row, status.refusals))
    return f"<section><h2>Calls refused since the start</h2>{shown}</section>"


def _meanings() -> str:
    tables = (("Datasets", DATASET_COLUMNS), ("Clients", STREAM_COLUMNS))
    lists = "".join(f"<h3>{name}</h3><dl>{_terms(columns)}</dl>" for name, columns in tables)
    return (
        '<details id="meanings"><summary>What the columns mean</summary>'
        f'<div class="meanings">{lists}</div></details>'
    )


def _terms(columns: Sequence[Column]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(what)}</dd>" for name, _, what in columns)
