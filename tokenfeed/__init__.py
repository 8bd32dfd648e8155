"""The contract in code: what server, client and tests agree on.

Pure: numpy, protobuf and a checksum; no file, socket, thread or clock. Read it in the order in
which a token travels: `position` (which samples), `orders` and `plan` (which tokens), `frame` (as
which bytes), `identity` (which stream), `errors` (what may go wrong, and who must act).
"""

__version__ = "0.1.0"
