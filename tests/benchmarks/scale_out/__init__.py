"""The throughput of a cluster, by calculation and by simulation."""
