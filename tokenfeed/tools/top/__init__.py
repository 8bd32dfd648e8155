"""tokenfeed top: what a server does, in a terminal.

    run.py      asks again and again: the loop
    server_status.py  asks a server once
    screen.py   a terminal that is drawn in place, and left as it was
    text.py     a status -> lines of a width and a number
    columns.py  tables of lines
    record.py   a status -> JSON

What is shown is decided in tokenfeed/commands/status, as for the status page.
"""
