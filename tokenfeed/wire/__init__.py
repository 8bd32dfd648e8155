"""Rows and requests as bytes, and back.

request        what a client asks for
draft          rows -> bytes of a frame
frame          bytes -> rows
row_block      rows, with their planes
crc32c         the checksum of a frame
piece_planes   starts of documents of rows of pieces
redacted_runs  which tokens of rows are redacted
"""
