"""The time from a fault to the first good reply."""
