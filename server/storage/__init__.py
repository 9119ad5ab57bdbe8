"""Stores of objects that outlive a call: scenes, forward states, trainings and files."""
