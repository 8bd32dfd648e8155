"""Planes of a dataset that lie in files of their own, beside those of tokens: loss_masks.py.

Planes that need no such files are elsewhere: document starts (storage/documents/), redacted tokens
(redactions/redacted_rows.py), and those of rows of documents (tokenfeed/wire/piece_planes.py).
"""
