"""Objects in S3, Google Cloud Storage, Azure and on web servers: a second storage behind the door.

urls.py          a path -> the scheme, the bucket and the key
buckets.py       one bucket: GETs of pinned objects, lists, what an error means; knows obstore
credentials.py   which credentials a bucket is opened with
listing.py       names by folder, and patterns
door.py          the door: objects are found and opened
openings.py      what was read of objects that were opened, for the next start
fetcher.py       GETs that are waiting: which one comes next, and the threads that do them
object_bytes.py  the bytes of the objects of a dataset, row by row; for how long a GET is repeated,
                 and when an object counts as replaced
slab.py          the file of the cache: blocks of tokens, and a table of them
cached_blocks.py the blocks of a dataset that are in it, and the copy of rows
object_cache.py  which blocks are fetched whole and when, which rows have a GET of their own before,
                 and which blocks stay when there is no room
cache_choice.py  where the cache is, and how large
counts.py        GETs and bytes by reason, for the metrics
"""
