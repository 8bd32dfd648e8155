"""Where the tokens of a dataset are stored: a `TokenStore` for each dataset.

    store.py         rows of spans out of the bytes of files, and planes beside them
    bytes.py         the bytes of the files of a dataset: the interface of every storage
    door.py          finds and opens files: the other interface
    local/           both for the file systems of this machine
    objects/         both for object stores, with a cache of them on a local disk
    open_file.py     an opened file, as the formats read it
    layout.py        where its tokens and documents are
    formats/         finds that out: one module per format
    documents/       where documents begin, and the rows of packed-1 and padded-1: indices that are
                     found beside the tokens, or made
    beside.py        what is written beside the files: its names, and what it records of them
    digest_file.py   the digest of a corpus, one of those
    exchanges.py     what an erasure promises to streams that are read meanwhile
    mixed_store.py   the stores of a mixture as one
    narrowing.py     stored tokens -> served tokens of fewer bytes
    halves.py        detects uint32 tokens that were read as uint16
    option_names.py  the options of a dataset, as errors name them

Another storage is a package here, with a door and with bytes, and a line in MODULES (door.py).
"""
