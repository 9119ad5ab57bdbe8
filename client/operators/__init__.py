"""The common part of the torch and JAX operators: everything but the graph and the types of arrays."""
