"""Where rows come from, and where documents went: what the service Provenance answers.

documents.py    documents of a dataset: by number, by id, and by their tokens
names.py        names that are safe to show
"""
