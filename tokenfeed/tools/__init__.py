"""What operators and auditors run: one command a module or folder. Neither side imports any of it.

    inspect, verify, pack   token files: what they are, whether they are intact, rows of documents
    redact/                 tokens taken out of a dataset
    probe, describe, show   a server: whether it is healthy, what it serves, one batch
    doctor/                 what keeps a machine from its servers
    bench                   how fast batches arrive
    top/                    what a server does, in a terminal
    plan/                   what a mixture will do
    provenance/             explain, find, manifest: what a run has read

`options` has the options of the commands that query a server, `one_server` the connection that some
of them keep, and `__main__` runs these.
"""

WAIT_SECONDS = 5.0
"""How long a command waits for a server."""
