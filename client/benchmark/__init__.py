"""How fast a worker is from where the client stands."""
