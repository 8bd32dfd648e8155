"""The server's command line: its options, and the only place that wires the server's parts.

serve.py             options -> a server that runs, and how it stops
serve_options.py     the options of `tokenfeed serve`
dataset_options.py   those of a dataset, for all commands that open one
"""
