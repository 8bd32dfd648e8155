"""Where the tokens of a dataset are stored: a `TokenStore` for each dataset.

    store.py       the interface of every store
    choice.py      which store a dataset gets, and why
    formats/       where the tokens are in a file: one module per format
    local/         files on this machine's file systems
    borders/       where documents begin, as a plane
    rows/          rows of pieces of documents, for packed-1 and padded-1
    kept/          the files of both: written once, found again
    narrowing.py   stored tokens -> served tokens of fewer bytes
    halves.py      detects uint32 tokens that were read as uint16
    files.py       opened files, as the formats read them

A new store is a package here, a line in choice.py, and a value of --read (WAYS in store.py).
"""
