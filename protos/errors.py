"""The error that the protos layer raises about invalid input."""

from __future__ import annotations

# Senders decide how long a value is, and the text travels in the trailers of a call.
_MAX_VALUE_LENGTH = 200


def shortened(value: object) -> str:
    """Return a value as text for an error, cut off if it is long."""
    text = str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}… ({len(text)} characters)"


class ProtocolError(ValueError):
    """A field of a message broke the contract; states the field, what is allowed, and what came."""

    def __init__(self, field: str, limit: str, value: object) -> None:
        """Describe the breach; `field` is a path such as `spec.scene.spheres.positions`."""
        self.field = field
        self.limit = limit
        self.value = shortened(value)
        super().__init__(f"{field}: expected {limit}, got {self.value}")
