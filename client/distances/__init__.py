"""Distance queries and their gradients."""
