"""The engines: check requests, run the kernels and convert their outputs for the reply."""
