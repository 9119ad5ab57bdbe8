"""The views of a training: cameras, target images, and refined poses and exposures."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch

from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import SceneNotFoundError
from lumigrad.server.core.limits import require
from lumigrad.server.engines.content import Content
from lumigrad.server.engines.requests import check_pose
from lumigrad.server.scenes.lookup import stored_content
from lumigrad.server.scenes.target_image import KIND, image_size
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import camera_pb2, training_pb2

# Bytes of a view without its target image.
_MESSAGE_BYTES = 1024
# Tensors of target images other than colours that the loss compares, by term.
_PLANES = {"depth": "depth", "alpha": "mask"}
# Kinds of steps whose last permutations are kept.
_MOST_KINDS = 4


class Views:
    """Cameras and their target images, by number."""

    def __init__(self, messages: Sequence[training_pb2.TrainingView], target_images: Sequence[Content | None]) -> None:
        self.messages = list(messages)
        self._target_images = list(target_images)
        # The last permutations of all views by the kind of steps, and by epoch.
        self._orders: dict[tuple[int, int, int], dict[int, list[int]]] = {}

    @staticmethod
    def of(messages: Sequence[training_pb2.TrainingView], runtime: Runtime, call: Call, field: str) -> Views:
        """Check the messages and find the target images; raises SceneNotFoundError if one is missing."""
        require(len(messages) >= 1, field, "at least one view", "none")
        for index, message in enumerate(messages):
            for name, found in (("rays", "some"), ("lidar", "a lidar")):
                given = message.camera.sensor.HasField(name)
                require(not given, f"{field}[{index}].camera.sensor.{name}", "none in trainings", found)
            _check_poses(message.camera, f"{field}[{index}].camera")
        target_images = [
            _target_image(message, runtime, call, f"{field}[{index}]") if message.target else None
            for index, message in enumerate(messages)
        ]
        return Views(messages, target_images)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def bytes(self) -> int:
        """The memory of the messages and target images; each target image counts once."""
        images = {id(image): image.bytes for image in self._target_images if image is not None}
        return _MESSAGE_BYTES * len(self.messages) + sum(images.values())

    @property
    def has_target_images(self) -> bool:
        """Whether every view has a target image."""
        return all(image is not None for image in self._target_images)

    @property
    def is_uniform(self) -> bool:
        """Whether all views have one size."""
        return len({(view.camera.width, view.camera.height) for view in self.messages}) == 1

    @cached_property
    def calibrations(self) -> tuple[int, ...]:
        """The index of each view's calibration among all calibrations."""
        places: dict[tuple[str, int], int] = {}
        keys = [
            ("shared", view.calibration) if view.HasField("calibration") else ("own", index)
            for index, view in enumerate(self.messages)
        ]
        return tuple(places.setdefault(key, len(places)) for key in keys)

    def check(self, numbers: Sequence[int], field: str) -> None:
        """Raise an InvalidArgumentError for unknown numbers, or views of different sizes."""
        for number in numbers:
            require(number < len(self.messages), field, f"numbers below {len(self.messages)}", number)
        sizes = {(self.messages[number].camera.width, self.messages[number].camera.height) for number in numbers}
        require(len(sizes) <= 1, field, "views of one size", f"{len(sizes)} sizes")
        require(len(set(numbers)) == len(numbers), field, "each view once", "some twice")

    def check_loss(self, weights: Mapping[str, float], field: str) -> None:
        """Raise an InvalidArgumentError if no target image has the tensor that a term of the loss compares."""
        for term, name in _PLANES.items() if self.has_target_images else ():
            has_some = any(name in self.tensors(number) for number in range(len(self)))
            require(has_some or not weights[term], f"{field}.{term}", f"0: no target image has a {name}", weights[term])

    def check_channels(self, channels: int, field: str) -> None:
        """Raise an InvalidArgumentError for a target image whose colours differ in channels from the scene's."""
        for number in range(len(self)) if self.has_target_images else ():
            color = self.tensors(number).get("color")
            found = channels if color is None else color.shape[-1]
            require(found == channels, f"{field}[{number}].target", f"{channels} channels, as the scene has", found)

    def only_some_have(self, weights: Mapping[str, float]) -> str:
        """Return the name of a tensor that the loss needs and only some target images have; empty if there is none."""
        compared = ("mask", "depth") if weights["depth"] else ("mask",)
        return next((name for name in compared if name in self._partial), "")

    @cached_property
    def _partial(self) -> set[str]:
        """The names of tensors that some target images have and others lack."""
        found = [set(self.tensors(number)) for number in range(len(self))]
        every = found[0].union(*found)
        return every - every.intersection(*found)

    def tensors(self, number: int) -> Mapping[str, torch.Tensor]:
        """Return the tensors of a view's target image, by name; empty without a target image."""
        image = self._target_images[number]
        return {} if image is None else image.tensors

    def stacked(self, numbers: Sequence[int], name: str) -> torch.Tensor | None:
        """Stack a tensor of the target images; None if all lack it. Raises InvalidArgumentError if only some do."""
        tensors = [image.tensors.get(name) for number in numbers if (image := self._target_images[number]) is not None]
        found = [tensor for tensor in tensors if tensor is not None]
        if not found:
            return None
        require(
            len(found) == len(numbers), "step.views", f"views that all have a {name}, or none", f"{len(found)} with"
        )
        # Dtypes may differ, and a mask of bytes would be taken as one of bits.
        if name == "mask" or len({tensor.dtype for tensor in found}) > 1:
            found = [tensor / 255.0 if tensor.dtype == torch.uint8 else tensor for tensor in found]
        return torch.stack(found) if len(found) > 1 else found[0].unsqueeze(0)

    def chosen(self, seed: int, position: int, count: int) -> list[int]:
        """Return `count` views from a position in an endless sequence of random permutations of all views.

        No view is twice among them if there are at least `count`.
        """
        numbers: list[int] = []
        while len(numbers) < count:
            epoch, start = divmod(position + len(numbers), len(self.messages))
            order = self._order(epoch, seed, count, position % count)
            numbers += order[start : start + count - len(numbers)]
        return numbers

    def _order(self, epoch: int, seed: int, size: int, phase: int) -> list[int]:
        """Return a permutation for steps of `size` views, one of which begins at the position `phase`."""
        count, kind = len(self.messages), (seed, size, phase)
        known = self._orders.pop(kind, {})
        first = epoch
        # Permutations depend on the ones before, back to one that begins with a step. They may be thousands.
        while first not in known and _begun(first, count, size, phase):
            first -= 1
        for each in range(first, epoch + 1):
            if each not in known:
                begun = _begun(each, count, size, phase)
                known[each] = _permutation(seed, each, count, size, known[each - 1][-begun:] if begun else ())
                known.pop(each - 2, None)
        self._orders[kind] = known
        if len(self._orders) > _MOST_KINDS:
            del self._orders[next(iter(self._orders))]
        return known[epoch]


def identity_exposure(device: torch.device) -> torch.Tensor:
    """Return the [3, 4] transform that changes no colour."""
    return torch.eye(3, 4, device=device)


def _begun(epoch: int, count: int, size: int, phase: int) -> int:
    """Return how many views of a step come from the permutation before; 0 if one begins with this permutation."""
    return (epoch * count - phase) % size if epoch and size <= count else 0


def _permutation(seed: int, epoch: int, count: int, size: int, begun: Sequence[int]) -> list[int]:
    """Return a permutation of `count` views; the views `begun` of the step at its start are not among its first."""
    order = list(range(count))
    random.Random(f"views:{seed}:{epoch}").shuffle(order)
    if begun:
        before = {*begun}
        first = [number for number in order if number not in before][: size - len(begun)]
        taken = {*first}
        order = first + [number for number in order if number not in taken]
    return order


def _check_poses(camera: camera_pb2.Camera, field: str) -> None:
    """Check the poses, which refinement changes, and fill in missing ones."""
    if camera.HasField("opencv"):
        check_pose(camera.opencv, f"{field}.opencv")
    for name in ("start", "end") if camera.sensor.HasField("end") else ("start",) if camera.HasField("sensor") else ():
        check_pose(getattr(camera.sensor, name), f"{field}.sensor.{name}")


def _target_image(message: training_pb2.TrainingView, runtime: Runtime, call: Call, field: str) -> Content:
    stored = stored_content(runtime, call, message.target, counts=False)
    if stored is None:
        raise SceneNotFoundError(message.target)
    require(stored.kind == KIND, f"{field}.target", "the content hash of a target image", stored.kind)
    size = image_size(stored.content.outline.shapes)
    camera = message.camera
    limit = f"the size of its target image, {size[1]}x{size[0]}"
    require((camera.height, camera.width) == size, f"{field}.camera", limit, f"{camera.width}x{camera.height}")
    return stored.content
