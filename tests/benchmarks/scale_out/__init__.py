"""One, two and four workers with networks of their own: their throughput, and what clients see of faults."""
