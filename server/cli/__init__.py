"""The server's command line: its options, and the only place where its parts are put together."""
