"""`tokenfeed ingest`: text -> token shards with a manifest.

    inputs/      finds and hashes files, and reads their text in units: one reader per kind of file
    tokenize/    text -> token ids: documents and chats, the tokenizer and its engine, the splitting
                 of long text
    output/      the order of documents, and the shards they are written to
    job.py       what has to be known to resume after a kill
    work.py      what a process does with a unit
    run.py       the run as a whole, with checkpoints; finished.py: its manifest
    upload.py    shards into an object store
    options.py   the options that say what a document is
    units.py     the values that are passed between these; progress.py shows the progress

One process decides what is read, in order, and writes in order; the others encode it, and read
small row groups of parquet. So the result depends neither on their number nor on their speed, and
the written part is all there is to remember.
"""
