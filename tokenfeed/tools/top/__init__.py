"""tokenfeed top: what a server does, in a terminal.

    run.py      asks again and again: the loop
    screen.py   a terminal that is drawn in place, and left as it was
    text.py     a status -> lines of a width and a number

What is shown is decided in tokenfeed/commands/status, as for the status page.
"""
