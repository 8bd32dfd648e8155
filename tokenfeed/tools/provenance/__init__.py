"""tokenfeed explain, find and manifest: what a run has seen.

run_context.py  the run that they are asked about: known by its checkpoint, or assumed
explain.py      where the rows of a step come from, and what they say
find.py         which rows hold a document
manifest.py     everything that was read, as lines
output.py       these lines as JSON, or as a parquet file
words.py        names, ranges and errors as they are printed

checkpoint.py   the states in a checkpoint of any kind (files/), without running its code
runs.py         steps, ranks and rows <-> samples
target.py       what is asked: its datasets, and the calls to servers
"""
