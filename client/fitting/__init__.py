"""Fitting a scene to photographs through a worker: what `lumigrad fit` is made of."""
