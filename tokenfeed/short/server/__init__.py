"""What is installed as `server`: what `python -m server` runs, and no modules."""
