"""Generated meshes: closed, open, thin, flat, with duplicates, split; float64 vertices, metres."""

from __future__ import annotations

import numpy as np

from support.meshes.case import Doubles, MeshShape, Whole


def join(*shapes: MeshShape) -> MeshShape:
    """Joins several meshes to one."""
    starts = np.cumsum([0, *(len(shape.vertices) for shape in shapes[:-1])])
    faces = [shape.faces + start for shape, start in zip(shapes, starts, strict=True)]
    return MeshShape(np.concatenate([shape.vertices for shape in shapes]), np.concatenate(faces).astype(np.int32))


def moved(shape: MeshShape, by: tuple[float, float, float]) -> MeshShape:
    """Translates a mesh."""
    return MeshShape(shape.vertices + np.array(by), shape.faces)


def scaled(shape: MeshShape, by: float | tuple[float, float, float]) -> MeshShape:
    """Scales a mesh by positive factors."""
    return MeshShape(shape.vertices * np.asarray(by, np.float64), shape.faces)


def turned_inside_out(shape: MeshShape) -> MeshShape:
    """Reverses the orientation of every face."""
    return MeshShape(shape.vertices, np.ascontiguousarray(shape.faces[:, ::-1]))


def split(shape: MeshShape) -> MeshShape:
    """Gives every face its own vertices, as in files for rendering."""
    return MeshShape(shape.corners.reshape(-1, 3), np.arange(3 * len(shape.faces), dtype=np.int32).reshape(-1, 3))


def shuffled(shape: MeshShape, seed: int = 3) -> MeshShape:
    """Permutes faces and vertices, and rotates the corners of faces."""
    random = np.random.default_rng(seed)
    vertices, faces = random.permutation(len(shape.vertices)), random.permutation(len(shape.faces))
    place = np.empty_like(vertices)
    place[vertices] = np.arange(len(vertices))
    numbers = place[shape.faces[faces]]
    turn = (np.arange(3)[None] + random.integers(0, 3, len(faces))[:, None]) % 3
    return MeshShape(shape.vertices[vertices], np.take_along_axis(numbers, turn, 1).astype(np.int32))


def box(size: tuple[float, float, float] = (1.0, 0.7, 0.4)) -> MeshShape:
    """A box around the origin, of 12 triangles."""
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return MeshShape(corners * np.array(size) / 2, _halved(quads))


def open_box(size: tuple[float, float, float] = (0.8, 0.6, 0.5)) -> MeshShape:
    """A box without its top."""
    whole = box(size)
    top = (whole.corners[..., 2] > 0).all(1)
    return MeshShape(whole.vertices, np.ascontiguousarray(whole.faces[~top]))


def _halved(quads: list[tuple[int, ...]]) -> Whole:
    return np.array([triangle for a, b, c, d in quads for triangle in ((a, b, c), (a, c, d))], np.int32)


def grid_box(size: tuple[float, float, float] = (0.8, 0.8, 0.8), count: int = 4) -> MeshShape:
    """A box whose faces are grids of squares: many edges and corners for the tests of signs."""
    whole = box((1.0, 1.0, 1.0))
    parts = []
    steps = np.linspace(0, 1, count + 1)
    for a, b, c in whole.corners[::2]:
        s, t = np.meshgrid(steps, steps, indexing="ij")
        d = a + c - b
        points = a + s[..., None] * (b - a) + t[..., None] * (d - a)
        number = np.arange((count + 1) ** 2).reshape(count + 1, count + 1)
        corners = (number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:])
        quads = np.stack([corner.ravel() for corner in corners], -1)
        parts.append(MeshShape(np.round(points.reshape(-1, 3), 12), _halved([tuple(quad) for quad in quads.tolist()])))
    return scaled(join(*parts), size)


def tetrahedron(size: float = 0.6) -> MeshShape:
    """A regular tetrahedron."""
    corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], np.float64) * size / 2
    return MeshShape(corners, np.array([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]], np.int32))


def torus(n: int = 32, m: int = 16) -> MeshShape:
    """A torus with bumps: about 1.1 x 1.1 x 0.5 m, 2 n m triangles."""
    u = (np.arange(n) / n * 2 * np.pi)[:, None]
    v = (np.arange(m) / m * 2 * np.pi)[None, :]
    tube = 0.15 * (1 + 0.15 * np.sin(7 * u + 3 * v) + 0.1 * np.sin(5 * v - 2 * u))
    ring = 0.38 * (1 + 0.06 * np.cos(3 * u)) + tube * np.cos(v)
    points = np.stack([ring * np.cos(u), ring * np.sin(u), tube * np.sin(v) + 0.04 * np.sin(2 * u)], -1)
    i, j = np.meshgrid(np.arange(n), np.arange(m), indexing="ij")
    i2, j2 = (i + 1) % n, (j + 1) % m
    quads = np.stack([i * m + j, i2 * m + j, i2 * m + j2, i * m + j2], -1).reshape(-1, 4)
    return MeshShape(points.reshape(-1, 3), _halved([tuple(quad) for quad in quads.tolist()]))


def prism(outline: Doubles, height: float, cap: list[tuple[int, int, int]]) -> MeshShape:
    """Extrudes an outline [N, 2], anticlockwise; `cap` triangulates it."""
    count = len(outline)
    low, high = (np.column_stack([outline, np.full(count, z)]) for z in (-height / 2, height / 2))
    sides = _halved([(k, (k + 1) % count, (k + 1) % count + count, k + count) for k in range(count)])
    bottom = np.array(cap, np.int32)[:, ::-1]
    return MeshShape(np.concatenate([low, high]), np.concatenate([sides, bottom, np.array(cap, np.int32) + count]))


def ell(size: float = 0.8, arm: float = 0.3, height: float = 0.4) -> MeshShape:
    """An L: concave, few and large triangles."""
    outline = np.array([[0, 0], [size, 0], [size, arm], [arm, arm], [arm, size], [0, size]]) - size / 3
    return prism(outline, height, [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)])


def bowl(rings: int = 5, sectors: int = 12, radius: float = 0.5) -> MeshShape:
    """The lower part of a ball: open, thin."""
    height = np.linspace(0, 0.9, rings + 1)[1:]
    angle = np.arange(sectors) / sectors * 2 * np.pi
    points = [[0.0, 0.0, -radius]]
    points += [
        [radius * np.sin(h * 1.4) * np.cos(a), radius * np.sin(h * 1.4) * np.sin(a), -radius * np.cos(h * 1.4)]
        for h in height
        for a in angle
    ]
    after = [(k + 1) % sectors for k in range(sectors)]
    faces = [(0, 1 + after[k], 1 + k) for k in range(sectors)]
    for ring in range(rings - 1):
        inner, outer = 1 + ring * sectors, 1 + (ring + 1) * sectors
        for k in range(sectors):
            faces += [(inner + k, inner + after[k], outer + after[k]), (inner + k, outer + after[k], outer + k)]
    return MeshShape(np.array(points), np.array(faces, np.int32))


def wall(thickness: float = 0.002) -> MeshShape:
    """A large thin plate across x."""
    return box((thickness, 1.6, 1.6))


def capped(count: int = 40, height: float = 1e-7) -> MeshShape:
    """A plate with needle-like triangles: each has a vertex that is off its long edge by `height` times the edge."""
    x = np.linspace(0, 1, count + 1)
    low = np.column_stack([x, np.zeros(count + 1), np.zeros(count + 1)])
    inner = np.column_stack([(x[:-1] + x[1:]) / 2, np.full(count, height / count), np.zeros(count)])
    high = np.column_stack([x, np.ones(count + 1), np.zeros(count + 1)])
    vertices = np.concatenate([low, inner, high]) - [0.5, 0.5, 0]
    a, m, b = np.arange(count), np.arange(count) + count + 1, np.arange(count) + 2 * count + 1
    faces = [(a, a + 1, m), (a, m, b), (m, a + 1, b + 1), (m, b + 1, b)]
    numbers = np.concatenate([np.stack(face, -1) for face in faces]).astype(np.int32)
    top = moved(MeshShape(vertices, numbers), (0.0, 0.0, 0.1))
    bottom = turned_inside_out(moved(MeshShape(vertices, numbers), (0.0, 0.0, -0.1)))
    count_all = len(vertices)
    rim = [*range(count + 1), *range(3 * count + 1, 2 * count, -1)]
    sides = _halved([(p + count_all, q + count_all, q, p) for p, q in zip(rim, rim[1:] + rim[:1], strict=True)])
    joined = join(top, bottom)
    return MeshShape(joined.vertices, np.concatenate([joined.faces, sides]))


def with_duplicates(shape: MeshShape) -> MeshShape:
    """Every third face twice, and some faces without an area."""
    flat = np.array([[0, 0, 1], [2, 2, 2], [1, 3, 3]], np.int32)
    again = np.roll(shape.faces[::3], 1, axis=1)
    return MeshShape(shape.vertices, np.concatenate([flat, shape.faces, again]))


def touching() -> MeshShape:
    """Two boxes that share the vertex of a corner."""
    one, other = box((0.4, 0.4, 0.4)), moved(box((0.4, 0.4, 0.4)), (0.4, 0.4, 0.4))
    return join(one, MeshShape(np.round(other.vertices, 12), other.faces))


def crossing() -> MeshShape:
    """Two boxes that intersect: closed and oriented, but not the surface of a solid."""
    return join(box((0.9, 0.3, 0.3)), moved(box((0.3, 0.9, 0.32)), (0.1, 0.05, 0.02)))


def hollow() -> MeshShape:
    """A box with a cavity."""
    return join(box((0.9, 0.9, 0.9)), turned_inside_out(box((0.6, 0.6, 0.6))))
