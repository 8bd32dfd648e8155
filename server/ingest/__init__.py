"""python -m server.ingest: text -> token shards with a manifest.

Read it in this order: `sources` (which files), `readers` (files -> units of text), `vocabulary`
(the tokenizer) and `cuts` (where long text may be cut), `encoding` (a unit -> its tokens, a pure
function), `engines` (who computes it: processes of this machine, or a Ray cluster), `shuffle` (in
which order documents are written), `store` (shards), `hashes` (of the sources), `job` (what is to
be known to go on after a kill), `ingest` (the run of it all), `progress`, `__main__` (the command
line).

One process reads, in order, and writes, in order; others only encode. So the result depends neither
on how many they are nor on when they are done, and what was written is all there is to remember.
"""
