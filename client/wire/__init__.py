"""Converts values to protobuf messages and back."""
