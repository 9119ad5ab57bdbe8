"""One, two and four workers on machines of their own, as far as the network goes, and what clients see of faults."""
