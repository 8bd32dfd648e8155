"""Where rows come from, and where documents went: what the service Provenance answers.

    answers.py      a request -> its answer, by the modules below
    locate.py       rows -> the ranges of tokens that they are made of
    find.py         documents, or tokens -> the rows that have them
    coverage.py     samples -> the ranges of tokens that they have, all together
    spans.py        spans of rows, cut at documents and compared with ranges
    sources.py      the datasets of a stream, and what an answer says of them and of rows
    documents.py    documents of a dataset: by number, by id, and by their tokens

They run a plan, or invert it, and read no tokens. Every answer is bounded: the caller asks again
for the rest.
"""
