"""Prints losses and gradients inside `jax.shard_map`, and those of the same loss on one device, as JSON.

Each device has its own positions, and all share the other inputs, so that their gradients are sums.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lumigrad.client.default import default_client
from lumigrad.client.jax import render_spheres
from support.calls.jax_cases import SPHERES
from support.calls.jax_losses import Arrays, inputs, loss_of

# The input that differs between devices.
OWN = {"render_gaussians": "means", "render_spheres": "positions", "mesh_distance": "spheres"}
DEVICES = jax.devices()
EACH, ALL = PartitionSpec("devices"), PartitionSpec()


def compared(name: str) -> dict[str, Any]:
    """The values of a function's loss in several ways, each in a pair with those that are expected."""
    loss, (first, second) = loss_of(name, default_client()), inputs(name)
    shared: Arrays = {**first, **second}
    own = shared.pop(OWN[name])
    parts = jnp.stack([own + 0.02 * number for number in range(len(DEVICES))])

    def single(given: Arrays, part: Any) -> Any:
        return loss({**given, OWN[name]: part}, {})

    def one_by_one(given: Arrays) -> Any:
        return sum(single(given, part) for part in parts)

    def divided(function: Any, with_types: bool) -> Any:
        mesh = Mesh(np.array(DEVICES), ("devices",))
        over = {"mesh": mesh, "in_specs": (ALL, EACH), "out_specs": ALL, "check_vma": with_types}
        return lambda given: jax.jit(jax.shard_map(lambda a, b: function(a, b[0]), **over))(given, parts)

    def summed(given: Arrays, part: Any) -> Any:
        return jax.lax.psum(single(given, part), "devices")

    slopes = jax.grad(one_by_one)(shared)
    ways = {f"around, check_vma={typed}": jax.grad(divided(summed, typed)) for typed in (True, False)}
    # JAX adds up the gradients of what devices share, unless it does not know that they do.
    ways["inside"] = divided(jax.grad(single), True)
    pairs = {way: (rows(function(shared)), rows(slopes)) for way, function in ways.items()}
    return {**pairs, "loss": (rows(divided(summed, True)(shared)), rows(one_by_one(shared)))}


def pulsar() -> dict[str, Any]:
    """The background has no gradient in Pulsar's semantics: what is not differentiated must not look as if it were."""
    given, size = {**inputs("render_spheres")[0], **inputs("render_spheres")[1]}, SPHERES
    mesh = Mesh(np.array(DEVICES), ("devices",))

    def part(radii: Any, shift: Any) -> Any:
        moved = {**given, "radii": radii, "positions": given["positions"] + shift[0]}
        color = render_spheres(**moved, **size, semantics="compat", outputs=(), client=default_client()).color
        return jax.lax.psum((color**2).sum(), "devices")

    divided = jax.shard_map(part, mesh=mesh, in_specs=(ALL, EACH), out_specs=ALL)
    shifts = 0.02 * jnp.arange(len(DEVICES), dtype=jnp.float32)
    of_one = jax.shard_map(part, mesh=Mesh(np.array(DEVICES[:1]), ("devices",)), in_specs=(ALL, EACH), out_specs=ALL)
    slope = sum(jax.jit(jax.grad(of_one))(given["radii"], shifts[number, None]) for number in range(len(DEVICES)))
    return {"compat": (rows(jax.jit(jax.grad(divided))(given["radii"], shifts)), rows(slope))}


def alone() -> dict[str, Any]:
    """The devices of a loss and its gradients outside compiled code, and the device of the inputs."""
    given, last = inputs("mesh_distance"), DEVICES[-1]
    # The layout of the inputs is not that of a loss, which has no dimensions.
    one = NamedSharding(Mesh(np.array([last]), ("devices",)), EACH)
    there = jax.device_put(given[0], one), given[1]
    found = jax.tree.leaves(jax.value_and_grad(loss_of("mesh_distance", default_client()))(*there))
    return {"eager": ([[each.id for each in leaf.devices()] for leaf in found], [[last.id]] * len(found))}


def rows(tree: Any) -> list[Any]:
    return [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(tree)]


if __name__ == "__main__":
    assert len(DEVICES) > 1
    print(json.dumps({**{name: compared(name) for name in OWN}, "pulsar": pulsar(), "alone": alone()}))
