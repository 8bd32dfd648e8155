"""What a GetStatusResponse means to a person: for the status page and for `tokenfeed top`.

    runs.py       streams -> the runs that they belong to
    states.py     what each stream does: whether it reads, who waits, whether it is behind
    attention.py  a status -> what is wrong, in sentences
    words.py      numbers, names and ranks -> text
    view.py       a status -> figures and tables, in the order in which they are shown

The server draws a page of it, the client lines of a terminal; they must not judge differently.
"""
