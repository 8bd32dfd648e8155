"""What a feed is besides its rows: position, epochs, saved state, ranks."""
