"""Planes of a dataset that lie in files of their own, beside those of tokens.

plane_files.py  what all kinds have in common: found, checked, fingerprinted, polled, read
loss_masks.py   the only kind now

Planes that need no such files are elsewhere: document starts (storage/documents/), redacted tokens
(redactions/redacted_rows.py), and those of rows of documents (tokenfeed/wire/piece_planes.py).
"""
