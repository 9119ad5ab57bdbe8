"""Pictures for driving simulators: ego masks over renders, and file formats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import UnknownNameError
from lumigrad.server.core.limits import require
from lumigrad.server.device.gpu_jpegs import GpuJpegs
from lumigrad.server.engines.images import jpeg_of, png_of
from lumigrad.server.sensorsim.catalog import Catalog, MaskId

_PNG, _JPEG, _PLANAR = sensorsim_pb2.PNG, sensorsim_pb2.JPEG, sensorsim_pb2.RGB_UINT8_PLANAR
_KNOWN = {sensorsim_pb2.UNDEFINED: _PNG, _PNG: _PNG, _JPEG: _JPEG, _PLANAR: _PLANAR}
_DEFAULT_QUALITY = 95


@dataclass(frozen=True)
class PictureStyle:
    """How a render becomes the bytes of a reply.

    Attributes:
        image_format: PNG, JPEG or RGB_UINT8_PLANAR.
        quality: The quality of JPEG, 1 to 100.
        mask: The ego mask to lay over the render.
    """

    image_format: int
    quality: int
    mask: MaskId | None

    @staticmethod
    def of(request: sensorsim_pb2.RGBRenderRequest, catalog: Catalog, field: str) -> PictureStyle:
        """Check the fields of a request that concern its picture."""
        number = request.image_format
        require(number in _KNOWN, f"{field}image_format", "PNG, JPEG, RGB_UINT8_PLANAR or UNDEFINED", _name(number))
        mask = None
        if request.insert_ego_mask:
            name = request.ego_mask_id.camera_logical_id, request.ego_mask_id.rig_config_id
            if not catalog.has_mask(name):
                limit = "one of get_available_ego_masks"
                raise UnknownNameError(f"{field}ego_mask_id", limit, f"{name[0]!r} of rig {name[1]!r}")
            mask = name
        quality = request.image_quality
        # The comparison also refuses NaN.
        limit = "0 for 95, or above 0 to 1, or 1 to 100"
        require(0.0 <= quality <= 100.0, f"{field}image_quality", limit, quality)
        percent = quality * 100 if quality <= 1.0 else quality
        return PictureStyle(_KNOWN[number], max(1, round(percent)) if quality else _DEFAULT_QUALITY, mask)

    def encode(self, levels: Array, catalog: Catalog, jpegs: GpuJpegs | None, call: Call | None) -> bytes:
        """Encode a render, uint8 [H, W, 3]; `jpegs` is the device's encoder, and a wait for it ends with the call."""
        if self.mask is not None:
            image = Image.fromarray(levels)
            mask = catalog.mask(self.mask, image.width, image.height)
            image.paste(mask, (0, 0), mask)
            levels = np.asarray(image)
        if self.image_format == _PLANAR:
            return np.ascontiguousarray(levels.transpose(2, 0, 1)).tobytes()
        return png_of(levels) if self.image_format == _PNG else jpeg_of(levels, self.quality, jpegs, call)


def _name(number: int) -> str | int:
    value = sensorsim_pb2.ImageFormat.DESCRIPTOR.values_by_number.get(number)
    return number if value is None else value.name
