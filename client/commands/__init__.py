"""What the commands of the client do, once the command line is parsed; one module each."""

WAIT_SECONDS = 5.0
"""How long a command waits for a server."""
