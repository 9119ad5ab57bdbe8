"""Gaussians in glTF 2.0 with the extension KHR_gaussian_splatting, .gltf and .glb."""

from lumigrad.client.formats.gltf.document import GLB_MAGIC
from lumigrad.client.formats.gltf.read import read_gltf
from lumigrad.client.formats.gltf.write import write_glb, write_gltf

__all__ = ["GLB_MAGIC", "read_gltf", "write_glb", "write_gltf"]
