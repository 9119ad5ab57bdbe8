"""How long it takes from a fault to the first good reply."""
