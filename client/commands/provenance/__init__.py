"""tokenfeed explain, find and manifest: what a run has seen.

    options.py   their options
    asked.py     what they are asked for: a run, known by its checkpoint or assumed
    words.py     names, ranges and numbers as they are printed
    explain.py   where the rows of a step come from, and what they say
    find.py      which rows hold a document
    ...

What they ask, and how a run is read, is in client/provenance.
"""
