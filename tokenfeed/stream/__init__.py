"""What a stream is: its specification, identity and positions."""
