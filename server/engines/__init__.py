"""The engines: from a request to kernels, and from their outputs to a reply."""
