"""Position, epochs, saved state and ranks of a feed."""
