"""The server's command line: its options, and the only place that wires the server's parts."""
