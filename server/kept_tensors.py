"""Tensors that stay after the call that brought them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lumigrad.server.content import Tensors


@dataclass(frozen=True)
class KeptTensors:
    """The tensors of one version of a scene.

    Attributes:
        by_name: The tensors.
        uploads: The upload whose buffer each of them lives in.
    """

    by_name: Tensors
    uploads: Mapping[str, object]

    @staticmethod
    def of(tensors: Tensors) -> KeptTensors:
        """Tensors that came with one call."""
        return KeptTensors(tensors, dict.fromkeys(tensors, object()))

    @property
    def bytes(self) -> int:
        """Their size."""
        return sum(tensor.nbytes for tensor in self.by_name.values())

    def replaced(self, tensors: Tensors) -> KeptTensors:
        """With other tensors of some names.

        One that shares an upload with a replaced one is copied: it would keep both alive.
        """
        merged, uploads = dict(self.by_name), dict(self.uploads)
        gone = [uploads.pop(name, None) for name in tensors]
        for name, upload in uploads.items():
            if upload in gone and merged[name].device.type == "cpu":
                merged[name] = merged[name].clone()
                uploads[name] = object()
        return KeptTensors({**merged, **tensors}, {**uploads, **dict.fromkeys(tensors, object())})
