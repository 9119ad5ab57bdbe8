"""Generated cases of spheres near meshes, one for each behaviour; each depends on its name only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from support.meshes import shapes
from support.meshes.case import CuboidShape, GridShape, MeshCase, Options, Placed, Shape
from support.meshes.spheres import Crowd, random_of, strewn

OPTIONS = {field.name for field in fields(Options)}
TURNED = (0.12, -0.2, 0.31, 0.8, 0.3, -0.4, 0.331662479)
ASIDE = (-0.35, 0.3, 0.1, 0.6, -0.2, 0.7, 0.331662479)
# A pose whose quaternion is not normalised.
LONG = (0.1, 0.0, -0.2, 1.6, 0.6, -0.8, 0.7)


def ball_grid(radius: float = 0.3, voxel: float = 0.05, count: tuple[int, int, int] = (17, 16, 15)) -> GridShape:
    """Distances from a bumpy ball."""
    axes = [(np.arange(n) - (n - 1) / 2) * voxel for n in count]
    x, y, z = np.meshgrid(*axes, indexing="ij")
    distance = np.sqrt(x * x + y * y + z * z) - radius + 0.02 * np.sin(9 * x) * np.cos(7 * y)
    return GridShape(distance.astype(np.float32), voxel)


def case_of(
    name: str,
    *placed: Placed | Shape,
    crowd: Crowd | None = None,
    size: float = 1.0,
    environments: int = 1,
    rows: list[int] | None = None,
    **options: object,
) -> MeshCase:
    """A case whose spheres are placed at random around its obstacles."""
    assert set(options) <= OPTIONS, options
    there = tuple(one if isinstance(one, Placed) else Placed(one) for one in placed)
    spheres = strewn(name, there, crowd or Crowd(), size)
    numbers = None if rows is None else np.array(rows, np.int32)
    return MeshCase(name, there, spheres, environments, numbers, Options(**options))  # type: ignore[arg-type]


def three() -> tuple[Placed, ...]:
    """Three overlapping obstacles with poses."""
    return (
        Placed(shapes.torus(), TURNED),
        Placed(shapes.ell(), ASIDE),
        Placed(shapes.shuffled(shapes.grid_box((0.5, 0.4, 0.3))), (0.3, 0.3, -0.1, 1.0, 0.0, 0.0, 0.0)),
    )


def kinds() -> tuple[Placed, ...]:
    """A mesh, a cuboid and a grid."""
    return (
        Placed(shapes.ell(), TURNED),
        Placed(CuboidShape((0.5, 0.3, 0.7)), ASIDE),
        Placed(ball_grid(), (0.6, -0.4, 0.1, 0.9, 0.1, 0.3, -0.2)),
    )


def worlds() -> tuple[Placed, ...]:
    """Four environments, the third one empty; one obstacle is disabled."""
    torus = shapes.torus(24, 12)
    return (
        Placed(torus, TURNED),
        Placed(shapes.ell(), ASIDE, environment=1),
        Placed(CuboidShape((0.6, 0.5, 0.4)), TURNED, environment=1),
        Placed(torus, ASIDE, enabled=False, environment=1),
        Placed(shapes.box(), enabled=False, environment=0),
        Placed(torus, ASIDE, environment=3),
    )


def forms() -> Iterator[MeshCase]:
    """All kinds of shapes and sign policies."""
    yield case_of("box", shapes.box(), activation_distance=0.0)
    yield case_of("torus", Placed(shapes.torus(48, 24), TURNED), activation_distance=0.02)
    yield case_of("ell", Placed(shapes.ell(), ASIDE), activation_distance=0.2, weight=50.0)
    yield case_of("tetrahedron", Placed(shapes.tetrahedron(), TURNED), activation_distance=0.02)
    yield case_of("long quaternion", Placed(shapes.ell(), LONG), activation_distance=0.02)
    yield case_of("cuboid", Placed(CuboidShape((0.8, 0.5, 0.3)), TURNED), activation_distance=0.05)
    yield case_of("grid", Placed(ball_grid(), TURNED), activation_distance=0.05)
    yield case_of("all kinds", *kinds(), activation_distance=0.05)
    for sign in ("auto", "winding", "rays", "unsigned"):
        yield case_of(f"open box {sign}", Placed(shapes.open_box(), TURNED, sign=sign), activation_distance=0.03)
    yield case_of("bowl", Placed(shapes.bowl(), ASIDE), activation_distance=0.03)
    yield case_of("bowl rays", Placed(shapes.bowl(), ASIDE, sign="rays"), activation_distance=0.03)
    for sign in ("auto", "winding", "rays", "normals"):
        yield case_of(f"torus {sign}", Placed(shapes.torus(), TURNED, sign=sign), activation_distance=0.03)
        yield case_of(f"crossing {sign}", Placed(shapes.crossing(), ASIDE, sign=sign), activation_distance=0.03)
    inside_out = shapes.turned_inside_out(shapes.torus())
    for sign in ("auto", "winding", "rays", "normals", "unsigned"):
        yield case_of(f"inside out {sign}", Placed(inside_out, TURNED, sign=sign), activation_distance=0.03)


def damages() -> Iterator[MeshCase]:
    """Meshes that are difficult because of rounding or degenerate faces."""
    eta = {"activation_distance": 0.02}
    yield case_of("wall", Placed(shapes.wall(), TURNED), crowd=Crowd(near=0.03), **eta)
    yield case_of("sliver box", Placed(shapes.box((1, 0.3, 0.002)), ASIDE), crowd=Crowd(near=0.03), **eta)
    flat = shapes.scaled(shapes.torus(48, 24), (1.0, 1.0, 1e-4))
    yield case_of("flat torus", Placed(flat, TURNED), crowd=Crowd(near=0.03), **eta)
    yield case_of("long torus", shapes.scaled(shapes.torus(), (1.0, 1e-3, 1.0)), crowd=Crowd(near=0.02), **eta)
    yield case_of("caps", shapes.capped(), crowd=Crowd(near=0.05), **eta)
    yield case_of("flat caps", shapes.capped(height=0.0), crowd=Crowd(near=0.05), **eta)
    yield case_of("duplicates", Placed(shapes.with_duplicates(shapes.torus()), TURNED), **eta)
    yield case_of("duplicates winding", Placed(shapes.with_duplicates(shapes.torus()), TURNED, sign="winding"), **eta)
    yield case_of("split", Placed(shapes.split(shapes.torus()), TURNED), **eta)
    yield case_of("touching", Placed(shapes.touching(), TURNED), **eta)
    yield case_of("hollow", Placed(shapes.hollow(), TURNED), **eta)
    yield case_of("squares", shapes.grid_box(), crowd=Crowd(near=0.2), **eta)
    far = shapes.moved(shapes.torus(), (1000.0, -700.0, 400.0))
    yield case_of("far away in its frame", Placed(far, (-1000.0, 700.0, -400.0, 1.0, 0.0, 0.0, 0.0)), **eta)
    yield case_of("far away in the world", Placed(shapes.torus(), (300.0, 200.0, -500.0, *TURNED[3:])), **eta)
    yield case_of("tiny", shapes.scaled(shapes.torus(), 1e-3), size=1e-3, activation_distance=2e-5)
    yield case_of("huge", shapes.scaled(shapes.torus(), 1e4), size=1e4, activation_distance=200.0)


def settings() -> Iterator[MeshCase]:
    """Several obstacles and environments, limits, radii, the sum and the maximum, the speed metric."""
    eta = {"activation_distance": 0.05}
    yield case_of("three", *three(), **eta)
    yield case_of("three at most", *three(), reduction="max", **eta)
    yield case_of("worlds", *worlds(), crowd=Crowd(batches=6, count=20), environments=4, rows=[1, 0, 2, 3, 1, 0], **eta)
    yield case_of("limited", *three(), max_distance=0.06, **eta)
    yield case_of("limited below the activation distance", *three(), max_distance=0.03, **eta)
    yield case_of("deep inside", shapes.scaled(shapes.box(), 6.0), crowd=Crowd(loose=1.0), max_distance=0.05, **eta)
    yield case_of("speed", *three(), crowd=Crowd(horizon=6), speed_metric=True, time_step_s=0.05, **eta)
    radii = case_of("radii", *three(), crowd=Crowd(count=40), **eta)
    spheres = radii.spheres.copy()
    spheres[..., 3] = np.where(random_of("radii").random(spheres.shape[:3]) < 0.3, -0.05, spheres[..., 3])
    spheres[..., ::4, 3] = np.where(spheres[..., ::4, 3] > 0, 0.0, spheres[..., ::4, 3])
    yield replace(radii, spheres=spheres)


def sweeps() -> Iterator[MeshCase]:
    """Moving spheres."""
    eta = {"activation_distance": 0.02, "sweep": True}
    path = Crowd(batches=2, horizon=7, count=10, step=0.25)
    torus = Placed(shapes.torus(), TURNED)
    yield case_of("swept", torus, crowd=path, **eta)
    for samples in (1, 2, 8, 256):
        yield case_of(f"swept with {samples} samples", torus, crowd=path, samples=samples, **eta)
    yield case_of("swept without activation", torus, crowd=path, **{**eta, "activation_distance": 0.0})
    yield case_of("swept kinds", *kinds(), crowd=path, **eta)
    yield case_of("swept kinds at most", *kinds(), crowd=path, reduction="max", **eta)
    yield case_of("swept one step", torus, crowd=replace(path, horizon=1, batches=6), **eta)
    yield case_of("swept two steps", torus, crowd=replace(path, horizon=2, batches=6), **eta)
    yield case_of("swept speed", *three(), crowd=path, speed_metric=True, time_step_s=0.05, weight=7.0, **eta)
    yield case_of("swept limited", *three(), crowd=path, max_distance=0.1, **eta)
    yield case_of("swept through a wall", shapes.wall(), crowd=replace(path, step=0.8, radii=(0.02, 0.05)), **eta)
    many = replace(path, batches=6, horizon=4)
    rows = [1, 0, 2, 3, 1, 0]
    yield case_of("swept worlds", *worlds(), crowd=many, environments=4, rows=rows, **eta)
    still = case_of("swept still and off", *three(), crowd=path, speed_metric=True, time_step_s=0.1, **eta)
    spheres = still.spheres.copy()
    spheres[:, :, :3] = spheres[:, 3:4, :3]
    spheres[:, 2, 4:6, 3] = -1.0
    spheres[:, 0, 6, 3], spheres[:, -1, 7, 3] = -0.01, -0.01
    yield replace(still, spheres=spheres)


def exact_cases() -> list[MeshCase]:
    """All cases of the exact semantics."""
    return [*forms(), *damages(), *settings(), *sweeps()]


def as_curobo(case: MeshCase, reach: float = 0.4, **changes: object) -> MeshCase:
    """The case in cuRobo's semantics, with four steps for a sweep."""
    options = replace(case.options, semantics="curobo", max_distance=reach, samples=4, reduction="sum")
    return replace(case, options=replace(options, **changes))  # type: ignore[arg-type]


def curobo_cases() -> list[MeshCase]:
    """The cases without grids in cuRobo's semantics; some as distances."""
    meshes = [case_of("bowl rays", Placed(shapes.bowl(), ASIDE, sign="rays"), activation_distance=0.03)]
    meshes += [case for case in [*settings(), *sweeps()] if "kinds" not in case.name]
    meshes += [case_of("cuboids", *kinds()[1:2], Placed(CuboidShape((0.2, 0.9, 0.1))), activation_distance=0.03)]
    path = Crowd(horizon=6, count=12, step=0.3)
    boxes = (Placed(CuboidShape((0.5, 0.3, 0.7)), TURNED), Placed(shapes.ell(), ASIDE))
    swept = {"activation_distance": 0.03, "sweep": True}
    meshes += [case_of("swept cuboids", *boxes, crowd=path, **swept)]
    meshes += [case_of("swept cuboids speed", *boxes, crowd=path, speed_metric=True, time_step_s=0.05, **swept)]
    fields_of = [case for case in meshes if not case.options.sweep and not case.options.speed_metric]
    return [
        *(as_curobo(case) for case in meshes),
        *(as_curobo(replace(case, name=f"{case.name} near"), 0.08) for case in meshes),
        *(as_curobo(replace(case, name=f"{case.name} field"), semantics="curobo_field") for case in fields_of),
    ]
