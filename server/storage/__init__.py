"""The tokens of a dataset, wherever they lie: a `TokenStore` for each dataset.

    store.py       what a dataset, the preloader and the service know of any store
    choice.py      which store a dataset has, and why: one line for each store
    formats/       where the tokens lie in a file: one module per format
    local/         files on this machine's file systems
    narrowing.py   stored tokens -> served tokens of fewer bytes
    halves.py      finds uint32 tokens that were taken for uint16
    files.py       opened files, as the formats read them

A further store is a package here and a line in choice.py.
"""
