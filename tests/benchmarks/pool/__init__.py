"""A client of several workers: the costs of choosing one, and the errors that callers see when workers are lost."""
