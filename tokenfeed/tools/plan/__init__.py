"""tokenfeed plan: what a mixture will do, known from the sizes of its datasets alone.

run.py      the command, and what it is asked for
forecast.py the samples of each source in each stage, and where sources end
report.py   a forecast as text, and as JSON
"""
