"""Token ids -> shards.

shard_writer.py   writes shards, and resumes them after a kill
shuffle.py        in which order documents are written
"""
