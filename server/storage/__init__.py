"""Where tokens lie, and how they are read: a `TokenStore` for each dataset.

    store.py     TokenStore: what a dataset, the warm-up and the service know of any store
    choice.py    which store a dataset has, and why: one line for each store
    local.py     what stores of local files have in common: rows, narrowing, the check for cut files
    mapped.py    MapStore: files in one range of memory; the kernel copies rows out of the map
    pread.py     PreadStore: files read by pread, for network file systems
    opened.py    what became of the files since they were opened, and errors that heal
    looks.py     how often files are looked at: the budget of stats

A further store is a module here and a line in choice.py.
"""
