"""Makes hundreds of remote calls from compiled loops; prints a cost before and after, and a sum of gradients."""

from __future__ import annotations

import os
import sys
from typing import Any

# JAX creates one thread per core; with a single thread, a callback that waits for JAX would deadlock.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

import jax  # noqa: E402 - the import creates its threads
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from lumigrad.client import Camera, Client, Cuboid, Obstacle, World  # noqa: E402
from lumigrad.client.jax import mesh_distance, render_spheres  # noqa: E402

client = Client()
handle = client.put(World([Obstacle(Cuboid((1.0, 1.0, 1.0)))]))
camera = Camera.look_at((0, 0, 5), (0, 0, 0), width=256, height=256)
rows = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (8, 200, 20, 4)), jnp.float32).at[..., 3].set(0.1)
points = jax.random.uniform(jax.random.key(0), (4096, 3))


def cost(x: Any) -> Any:
    """The collision cost of many spheres, with arrays of more than half a megabyte."""
    return mesh_distance(x, handle, activation_distance=0.1, outputs="cost", client=client).cost.sum()


def descended(x: Any) -> Any:
    """One step of gradient descent."""
    return x - 2e-3 * jax.grad(cost)(x).at[..., 3].set(0)


@jax.jit
def brightness(positions: Any) -> Any:
    """The mean brightness of a rendered image."""
    colors, radii = jnp.ones((4096, 3)), jnp.full(4096, 0.05)
    options = {"gamma": 0.1, "max_depth": 10.0, "outputs": (), "background": jnp.zeros(3)}
    return render_spheres(positions, colors, radii, camera, **options, client=client).color.sum()


looped = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, y: descended(y), x))(rows)
stepped, step = rows, jax.jit(descended)
for _ in range(50):
    stepped = step(stepped)
gradients = [jnp.abs(jax.grad(brightness)(points + 0.001 * k)).sum() for k in range(5)]
print(float(cost(rows)), float(cost(looped)), float(cost(stepped)), float(sum(gradients)))
