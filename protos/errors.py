"""The one error that the protos layer raises about what came in."""

from __future__ import annotations


class ProtocolError(ValueError):
    """Something in a message broke the contract: which field, what was allowed, what came."""

    def __init__(self, field: str, limit: str, value: object) -> None:
        """Describe the breach; `field` is a path such as `spec.scene.spheres.positions`."""
        super().__init__(f"{field}: expected {limit}, got {value}")
        self.field = field
        self.limit = limit
        self.value = str(value)
