"""Distances and costs of any valid input are finite and keep the promises of their kind."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.backends.mesh_engines import Engine
from support.closeness import assert_image
from support.drawn import common, numbers, powers
from support.meshes.case import CuboidShape, MeshCase, MeshShape, Options, Placed
from support.meshes.cases import TURNED
from support.meshes.runs import OUTPUTS, run


@st.composite
def meshes(draw: st.DrawFn) -> MeshShape:
    """Up to eight triangles among corners of a coarse lattice: many coincide, lie in a plane or in a line."""
    corners = draw(st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=4, max_size=8))
    vertices = np.array(corners, np.float64) * draw(powers(1e-3, 1e3)) + draw(st.sampled_from([0.0, 0.3, 100.0]))
    face = st.tuples(*[st.integers(0, len(corners) - 1)] * 3)
    faces = np.array(draw(st.lists(face, min_size=1, max_size=8)), np.int32)
    # At least one triangle has an area.
    whole = np.concatenate([vertices, vertices[0] + np.eye(3)[:2]])
    return MeshShape(whole, np.concatenate([faces, [[0, len(corners), len(corners) + 1]]]).astype(np.int32))


@st.composite
def cases(draw: st.DrawFn) -> MeshCase:
    """A few spheres and obstacles anywhere, with settings anywhere in their ranges."""
    shape = draw(st.sampled_from([(1, 1, 3), (2, 3, 2), (1, 4, 1)]))
    size = draw(powers(1e-3, 1e3))
    values = draw(st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=6, max_size=6))
    spheres = np.resize(np.array(values, np.float32) * np.float32(size), (*shape, 4))
    pose = draw(st.lists(numbers, min_size=3, max_size=3)) + draw(st.sampled_from([[1, 0, 0, 0], [0.1, -0.7, 0.2, 3]]))
    sign = draw(st.sampled_from(["auto", "normals", "rays", "winding", "unsigned"]))
    placed = [Placed(draw(meshes()), tuple(pose), sign=sign)]
    if draw(st.booleans()):
        placed.append(Placed(CuboidShape((draw(powers(1e-3, 1e3)), 0.5, 0.2)), TURNED))
    semantics = draw(st.sampled_from(["exact", "exact", "curobo", "curobo_field"]))
    costs = semantics != "curobo_field"
    options = Options(
        semantics=semantics,
        activation_distance=draw(st.sampled_from([0.0]) | powers(1e-4, 10)),
        max_distance=draw(st.none() | powers(1e-2, 1e2)),
        sweep=costs and draw(st.booleans()),
        samples=draw(st.sampled_from([1, 4, 32])),
        speed_metric=costs and draw(st.booleans()),
        time_step_s=draw(powers(1e-3, 1)),
        reduction=draw(st.sampled_from(["sum", "max"])) if semantics == "exact" else "sum",
        weight=draw(powers(1e-2, 1e4)),
    )
    return MeshCase("any", tuple(placed), spheres, options=options)


@common
@given(case=cases())
def test_results_are_finite_for_every_valid_input(case: MeshCase, mesh_engine: Engine) -> None:
    ones = {"cost": np.ones(case.shape), "distance": np.ones(case.shape)}
    result = run(mesh_engine, case, outputs=OUTPUTS, upstream=ones)
    outputs = result.outputs
    for name, values in {**outputs, **result.gradients}.items():
        if name != "distance":
            assert np.isfinite(values).all(), name
    off = case.spheres[..., 3] < 0
    lost = outputs["instance"] < 0
    assert not np.isnan(outputs["distance"]).any()
    assert np.isfinite(outputs["distance"][~lost]).all()
    assert lost[off].all() and not outputs["cost"][off].any()
    assert (outputs["face"][lost] == -1).all() and not outputs["normal"][lost].any()
    np.testing.assert_array_equal(outputs["closest"][lost], case.spheres[..., :3][lost])
    length = np.linalg.norm(outputs["normal"].astype(np.float64), axis=-1)
    if case.options.semantics == "exact":
        assert (outputs["cost"] >= 0).all()
        assert_image(length[~lost], np.ones(int((~lost).sum())), 1e-4)
    assert not (outputs["beyond"] & ~lost).any()
