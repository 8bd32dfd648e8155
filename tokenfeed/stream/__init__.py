"""What a stream is: sources, stages, redactions; orders, identity, positions and planes."""
