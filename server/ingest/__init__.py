"""python -m server.ingest: text -> token shards with a manifest.

    inputs/      which files, their hashes, and their text in units: one reader per kind of file
    tokenize/    text -> token ids: the tokenizer, where long text is split, and who computes
    output/      the order of documents, and the shards they are written to
    job.py       what has to be known to go on after a kill
    run.py       the run of it all, with a checkpoint now and then
    units.py     the values that travel between these; progress.py says how far they are

One process reads, in order, and writes, in order; others only encode. So the result depends neither
on how many they are nor on when they are done, and what was written is all there is to remember.
"""
