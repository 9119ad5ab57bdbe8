"""Trainings: scenes whose parameters, losses and optimisers live on the worker."""
