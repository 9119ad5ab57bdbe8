"""Stores of what outlives a call: scenes, forward states, trainings, files."""
