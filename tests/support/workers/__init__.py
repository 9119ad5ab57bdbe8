"""Worker processes, and load on them."""
