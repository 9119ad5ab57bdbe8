"""Fits a scene to photographs through a worker, for `lumigrad fit`."""
