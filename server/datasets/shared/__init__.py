"""Work that the processes of a machine share, such as the ranks of a node: the first one does it,
and the others find the result.

scan.py     the scan of a dataset's content
rows.py     rows over documents
"""
