"""What a worker's metrics tell of it while it works: read, compared, and shown in a terminal."""
