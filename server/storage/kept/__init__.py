"""Files that are made once from a dataset, kept, and found again: borders of documents, and rows.

collected.py    content that is being made: in memory, or in a spool
spool.py        writes one, in the first folder that takes it; only a complete one has its name
container.py    its form, and how it is checked when it is found
mapped.py       reads numbers of it while it is served
"""
