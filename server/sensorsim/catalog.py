"""The driving scenes in the folder of --sensorsim: their manifests, files and ego masks."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lumigrad.protos.drive.doubts import doubts
from lumigrad.protos.drive.json_node import ManifestError
from lumigrad.protos.drive.manifest import EgoMask, GaussianFile, Manifest, read_manifest, read_manifests
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core import logs
from lumigrad.server.core.call import Allocate, Reserve
from lumigrad.server.core.config import ConfigError
from lumigrad.server.core.errors import SceneFilesBusyError, SceneFilesError
from lumigrad.server.core.limits import require
from lumigrad.server.sensorsim.addresses import SCENE_ID, URL, manifest_at
from lumigrad.server.storage.named import NamedScene, NamedScenes, is_address
from lumigrad.v1 import scene_pb2

# Functions that read a path and return an object with `tensors`, float32 arrays by the names of GaussianCloud's fields.
# They are entry points because the client has them, which the server does not import.
READERS = "lumigrad.scene_readers"
_READER = "gaussians"
_TENSORS = ("means", "quats", "scales", "opacities", "sh")
# Limit on the bytes of cached ego masks, scaled to the sizes of pictures.
_SCALED_MASK_BYTES = 32 << 20

MaskId = tuple[str, str]
# The modification time of a file, ns, and its size.
FileState = tuple[int, int]
# Bytes of a pixel of an ego mask.
MASK_BYTES = 4


class DriveScene:
    """A scene of the catalogue: its manifest, and the Gaussians of its files, one file after the other."""

    def __init__(self, manifest: Manifest, read: Callable[[Path], Any]) -> None:
        """`read` reads a file of Gaussians."""
        self.manifest = manifest
        self.scene_id = manifest.scene_id
        self._read = read
        # The number of Gaussians in each file, by the stored content, since tenants read the files at different times.
        self._counts: dict[str, Sequence[int]] = {}

    def stored(self, content_hash: str, reader: PayloadReader) -> None:
        """Remember the numbers of Gaussians in the files that `load` has read."""
        assert isinstance(reader, _Buffers)
        self._counts[content_hash] = reader.counts

    def slices(self, content_hash: str) -> list[tuple[int, int]]:
        """Return the first and last + 1 Gaussian of each file in stored content."""
        counts = self._counts.get(content_hash)
        if counts is None:
            raise SceneFilesBusyError(f"scene {self.scene_id}: its files have changed since they were read; try again")
        return list(pairwise(np.cumsum([0, *counts]).tolist()))

    def load(self, allocate: Allocate, _: Reserve) -> tuple[scene_pb2.Scene, PayloadReader]:
        """Read all files into one cloud, in which each file's Gaussians keep their axes. Reserves no extra memory."""
        parts = [self._tensors(file) for file in self.manifest.files]
        most = max(part["sh"].shape[1] for part in parts)
        for part in parts:
            # Missing harmonics of higher degrees are 0.
            part["sh"] = np.pad(part["sh"], ((0, 0), (0, most - part["sh"].shape[1]), (0, 0)))
        counts = [len(part["means"]) for part in parts]
        scene, writer = scene_pb2.Scene(), PayloadWriter()
        for name in _TENSORS:
            shape = (sum(counts), *parts[0][name].shape[1:])
            buffer = allocate(4 * int(np.prod(shape)))
            whole = np.frombuffer(buffer, np.float32)[: int(np.prod(shape))].reshape(shape)
            np.concatenate([part[name] for part in parts], out=whole)
            getattr(scene.gaussians, name).CopyFrom(writer.add(whole))
        return scene, _Buffers(writer, counts)

    def _tensors(self, file: GaussianFile) -> dict[str, Array]:
        """Return the tensors of a file in metres."""
        try:
            tensors = dict(self._read(file.path).tensors)
            found = {name: np.asarray(tensors[name], np.float32) for name in _TENSORS}
        except MemoryError:
            raise
        except Exception as error:
            place = str(file.path.relative_to(self.manifest.folder))
            # Do not send paths of this machine to callers.
            why = str(error).removeprefix("path: ").removeprefix(f"{file.path}: ").replace(str(file.path), place)
            whose = self.scene_id if is_address(self.scene_id) else f"{self.scene_id}: {place}"
            raise SceneFilesError(f"scene {whose}: {why or type(error).__name__}") from error
        for name in ("means", "scales"):
            found[name] = found[name] * np.float32(file.scale)
        return found


class _Buffers(PayloadReader):
    """Reads the tensors of a writer without copying them."""

    def __init__(self, writer: PayloadWriter, counts: Sequence[int]) -> None:
        """`counts` are the numbers of Gaussians of the files."""
        super().__init__()
        self.counts = counts
        self._places: dict[int, memoryview] = {}
        at = 0
        for buffer in writer.buffers:
            self._places[at] = buffer
            at += buffer.nbytes

    def _bytes(self, tensor: Any, field: str) -> memoryview:
        return self._places[tensor.payload.offset] if tensor.payload.length else memoryview(b"")


class Catalog:
    """All driving scenes, by the names that requests use."""

    def __init__(self, manifests: Sequence[Manifest], read: Callable[[Path], Any], root: Path = Path()) -> None:
        """`root` is the folder of all scenes. Raises ConfigError for ego masks that are no pictures, or conflict."""
        self._read = read
        self._root = root
        self._scenes: dict[str, DriveScene] = {}
        # For each manifest that a call has named, the state of the file at that time and the name of its scene.
        self._admitted: dict[Path, tuple[FileState | None, str]] = {}
        self.named = NamedScenes()
        # Masks of all scenes, since they belong to cameras of rigs, not to scenes.
        self._masks: dict[MaskId, bytes] = {}
        self._lock = threading.Lock()
        self._scaled: OrderedDict[tuple[MaskId, int, int], Image.Image] = OrderedDict()
        for manifest in manifests:
            self._add(manifest)

    @staticmethod
    def open(folder: str) -> Catalog:
        """Read the manifests in a folder; raises ConfigError if one is invalid."""
        try:
            manifests = read_manifests(folder)
        except ManifestError as error:
            raise ConfigError(f"--sensorsim: {error}") from None
        return Catalog(manifests, gaussian_reader("--sensorsim"), Path(folder))

    @property
    def scenes(self) -> Mapping[str, DriveScene]:
        """The scenes by their names."""
        return self._scenes

    def admit(self, url: str, scene_id: str) -> None:
        """Add the scene at an address, unless it is known; its name must be `scene_id`, if that is given."""
        file = manifest_at(url, self._root)
        state = state_of(file)
        known_state, name = self._admitted.get(file, (None, ""))
        found = None
        if state is None or state != known_state:
            try:
                found = read_manifest(file)
            except ManifestError as error:
                raise SceneFilesError(f"{URL}: {_without(file.parent, error)}") from None
            name = found.scene_id
        require(scene_id in ("", name), SCENE_ID, f"{name}, as its manifest says", scene_id)
        if found is not None:
            self._admit(found, file)
            self._admitted[file] = state, name

    def _admit(self, found: Manifest, file: Path) -> None:
        """Add the scene of a manifest, or check that its name does not refer to another scene."""
        name = found.scene_id
        with self._lock:
            known = self._scenes.get(name)
            if known is None:
                try:
                    self._add(found)
                except ConfigError as error:
                    raise SceneFilesError(f"{URL}: {_without(file.parent, error)}") from None
                _log_doubts(found)
                return
        is_same = known.manifest.folder.resolve() == file.parent
        require(is_same, URL, f"the address of the one scene called {name}", "that of another folder")

    def log_doubts(self) -> None:
        """Log probable mistakes in the manifests."""
        for scene in self._scenes.values():
            _log_doubts(scene.manifest)

    def _add(self, manifest: Manifest) -> None:
        # Check all masks first, so that a refused scene leaves none.
        self._masks.update([self._checked_mask(mask, manifest) for mask in manifest.ego_masks])
        scene = DriveScene(manifest, self._read)
        self.named.add(NamedScene(scene.scene_id, scene.load, scene.stored))
        self._scenes[scene.scene_id] = scene

    @property
    def masks(self) -> Sequence[MaskId]:
        """The camera and rig of each ego mask."""
        return list(self._masks)

    def has_mask(self, name: MaskId) -> bool:
        """Return whether an ego mask exists."""
        return name in self._masks

    def mask(self, name: MaskId, width: int, height: int) -> Image.Image:
        """Return an ego mask, RGBA, scaled to a size."""
        key = name, width, height
        with self._lock:
            found = self._scaled.get(key)
            if found is not None:
                self._scaled.move_to_end(key)
                return found
        with Image.open(io.BytesIO(self._masks[name])) as image:
            scaled: Image.Image = image.convert("RGBA").resize((width, height), Image.Resampling.BILINEAR)
        with self._lock:
            self._scaled[key] = scaled
            while sum(map(_nbytes, self._scaled.values())) > _SCALED_MASK_BYTES:
                self._scaled.popitem(last=False)
        return scaled

    def _checked_mask(self, mask: EgoMask, manifest: Manifest) -> tuple[MaskId, bytes]:
        name = mask.camera_logical_id, mask.rig_config_id
        where = f"--sensorsim: {manifest.folder / 'scene.json'}: ego_masks"
        try:
            raw = mask.path.read_bytes()
            with Image.open(io.BytesIO(raw)) as image:
                image.verify()
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigError(f"{where}: {mask.path.name}: expected a picture: {why}") from None
        if self._masks.get(name, raw) != raw:
            raise ConfigError(
                f"{where}: expected one picture for {name[0]} of {name[1]}, got another in a second scene"
            )
        return name, raw


def gaussian_reader(option: str) -> Callable[[Path], Any]:
    """Return the reader of files of Gaussians; raises ConfigError, which names `option`, if none is installed."""
    readers = {entry.name: entry for entry in entry_points(group=READERS)}
    if _READER not in readers:
        what = f"an entry point {_READER} in the group {READERS}, which reads their files, as Lumigrad's client has"
        raise ConfigError(f"{option}: expected {what}")
    return partial(_read_with, readers[_READER])


def state_of(file: Path) -> FileState | None:
    """Return the time and size of a file, which change when it does; None if it is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _log_doubts(manifest: Manifest) -> None:
    for doubt in doubts(manifest):
        logs.event("a driving scene is doubtful", logging.WARNING, scene=manifest.scene_id, why=doubt)


def _without(folder: Path, error: Exception) -> str:
    """Return the text of an error without paths of this machine."""
    return str(error).replace(f"{folder}{os.sep}", "").removeprefix("--sensorsim: ")


def _nbytes(mask: Image.Image) -> int:
    return MASK_BYTES * mask.width * mask.height


def _read_with(entry: Any, path: Path) -> Any:
    return entry.load()(path)
