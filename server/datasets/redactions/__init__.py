"""Ranges of tokens that are taken out of a dataset, whose bytes may be erased too.

ranges.py           ranges of tokens, and a list of them with its hash
list_format.py      the content of a list file, as bytes
list_file.py        the lists of a dataset, read again when their file changes
list_writing.py     a list file is written whole, by one process at a time
opening.py          which lists a dataset has, and what it was before its bytes were erased
covering.py         which tokens of the rows of a stream these lists cover
redacted_rows.py    rows in which they are replaced
overlay.py          tokens as they are once some are erased
erased_files.py     what is recorded beside the files of which tokens were erased
replaced_shards.py  takes up new files without these tokens in the place of those that are served
"""
