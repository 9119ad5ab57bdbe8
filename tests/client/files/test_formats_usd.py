"""USD with ParticleField3DGaussianSplat: what is written, what others may write, and stages of unknown origin."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import StoredScene, load_gaussians, read_scene, save_scene
from lumigrad.client.formats.save import losses
from lumigrad.client.formats.usd import write_usd
from support.gaussians.clouds import Cloud, cloud, gaussians_of
from support.gaussians.gltf_files import assert_looks, covariances

pxr = pytest.importorskip("pxr", reason="there is no usd-core for this Python")
from pxr import Gf, Sdf, Usd, UsdGeom, UsdVol, Vt  # noqa: E402

COEFFICIENTS = "radiance:sphericalHarmonicsCoefficients"


@pytest.mark.parametrize("suffix", [".usda", ".usdc", ".usd", ".usdz"])
@pytest.mark.parametrize("degree", [0, 2, 4])
def test_what_is_written_is_read_bit_by_bit(tmp_path, suffix, degree):
    made = gaussians_of(cloud(count=40, degree=degree))
    made.save(tmp_path / f"scene{suffix}")
    scene = read_scene(tmp_path / f"scene{suffix}")
    read = scene.gaussians()
    for name in ("means", "scales", "opacities", "sh"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    np.testing.assert_allclose(read.quats, made.quats, atol=1e-7)
    assert scene.details == {"format": "USD", "sorting": "zDepth", "up_axis": "Y", "meters_per_unit": 1.0}


def test_the_axis_and_the_unit_of_a_stage_are_kept_or_said_to_be_lost(tmp_path):
    gaussians_of(cloud(count=3)).save(tmp_path / "scene.usda")
    stage = Usd.Stage.Open(str(tmp_path / "scene.usda"))
    UsdGeom.SetStageUpAxis(stage, "Z")
    UsdGeom.SetStageMetersPerUnit(stage, 0.01)
    stage.Save()
    scene = read_scene(tmp_path / "scene.usda")
    save_scene(scene, tmp_path / "again.usdz")
    assert read_scene(tmp_path / "again.usdz").details == scene.details
    assert losses(scene, ".usdc") == []
    assert losses(scene, ".ply") == ["does not say that z is up", "does not say that a scene unit is 0.01 m"]


def test_a_stage_that_states_no_unit_has_the_default_and_loses_none(tmp_path):
    gaussians_of(cloud(count=3)).save(tmp_path / "scene.usda")
    text = (tmp_path / "scene.usda").read_text()
    assert "metersPerUnit = 1\n" in text
    (tmp_path / "scene.usda").write_text(text.replace("metersPerUnit = 1\n", "\n"))
    scene = read_scene(tmp_path / "scene.usda")
    assert (scene.details["meters_per_unit"], scene.details["unit_is_default"]) == (0.01, True)
    assert losses(scene, ".ply") == []
    save_scene(scene, tmp_path / "again.usdc")
    assert UsdGeom.GetStageMetersPerUnit(Usd.Stage.Open(str(tmp_path / "again.usdc"))) == 0.01


def test_an_axis_that_openusd_does_not_know_is_not_kept(tmp_path):
    gaussians_of(cloud(count=3)).save(tmp_path / "scene.usda")
    text = (tmp_path / "scene.usda").read_text()
    (tmp_path / "scene.usda").write_text(text.replace('upAxis = "Y"', 'upAxis = "X"'))
    save_scene(read_scene(tmp_path / "scene.usda"), tmp_path / "again.usdc")
    assert read_scene(tmp_path / "again.usdc").details["up_axis"] == "Y"


def test_openusd_finds_the_schema_as_written(tmp_path):
    made = cloud(count=20, degree=1)
    gaussians_of(made).save(tmp_path / "scene.usdc")
    write_usd(read_scene(tmp_path / "scene.usdc"), tmp_path / "up.usda", up_axis="Z")
    stage = Usd.Stage.Open(str(tmp_path / "up.usda"))
    assert UsdGeom.GetStageUpAxis(stage) == "Z" and stage.GetDefaultPrim().GetName() == "World"
    field = UsdVol.ParticleField3DGaussianSplat(stage.GetPrimAtPath("/World/gaussians"))
    means, scales = (np.array(get().Get()) for get in (field.GetPositionsAttr, field.GetScalesAttr))
    np.testing.assert_array_equal(means, made.means.astype("f4"))
    first = field.GetOrientationsAttr().Get()[0]
    turn = np.array([first.real, *first.imaginary])
    expected = covariances(made.quats[:1], made.scales[:1])
    np.testing.assert_allclose(covariances(turn[None], scales[:1]), expected, rtol=1e-4, atol=1e-8)
    attribute = field.GetRadianceSphericalHarmonicsCoefficientsAttr()
    np.testing.assert_array_equal(np.array(attribute.Get()).reshape(20, 4, 3), made.sh.astype("f4"))
    assert attribute.GetMetadata("elementSize") == 4 and field.GetSortingModeHintAttr().Get() == "zDepth"
    low, high = np.array(field.GetExtentAttr().Get())
    reach = 3 * np.sqrt(np.diagonal(covariances(made.quats, made.scales), axis1=1, axis2=2))
    np.testing.assert_allclose(low, (made.means - reach).min(axis=0), rtol=1e-5)
    np.testing.assert_allclose(high, (made.means + reach).max(axis=0), rtol=1e-5)
    assert Usd.ColorSpaceAPI(field.GetPrim()).GetColorSpaceNameAttr().Get() == "srgb_rec709_display"


def stage_of(path: Path) -> tuple[Usd.Stage, Callable[..., UsdVol.ParticleField3DGaussianSplat]]:
    """A new stage, and a function that adds a cloud to it."""
    stage = Usd.Stage.CreateNew(str(path))

    def add(name: str, made: Cloud, half: bool = False) -> UsdVol.ParticleField3DGaussianSplat:
        field = UsdVol.ParticleField3DGaussianSplat.Define(stage, name)
        degree = round(made.sh.shape[1] ** 0.5) - 1
        field.CreateRadianceSphericalHarmonicsDegreeAttr(degree)
        h, dtype = ("h", "f2") if half else ("", "f4")
        vec3, scalar = (Vt.Vec3hArray, Vt.HalfArray) if half else (Vt.Vec3fArray, Vt.FloatArray)
        quats, quat = (Vt.QuathArray, Gf.Quath) if half else (Vt.QuatfArray, Gf.Quatf)
        flat = {"Positions": made.means, "Scales": made.scales}
        flat["RadianceSphericalHarmonicsCoefficients"] = made.sh.reshape(-1, 3)
        for attribute, values in flat.items():
            getattr(field, f"Create{attribute}{h}Attr")(vec3.FromNumpy(values.astype(dtype)))
        getattr(field, f"CreateOrientations{h}Attr")(quats([quat(*map(float, row)) for row in made.quats]))
        getattr(field, f"CreateOpacities{h}Attr")(scalar.FromNumpy(made.opacities.astype(dtype)))
        return field

    return stage, add


def test_transforms_instances_and_what_is_not_shown(tmp_path):
    first, second = cloud(count=12, degree=2, seed=1), cloud(count=8, degree=2, seed=2)
    stage, add = stage_of(tmp_path / "scene.usda")
    matrix = np.eye(4)
    matrix[:3] = [[1, 0.3, 0, 4], [0, 2, 0.5, 5], [0.1, 0, 0.5, 6]]
    UsdGeom.Xform.Define(stage, "/World").AddTransformOp().Set(Gf.Matrix4d(matrix.T.tolist()))
    add("/World/first", first)
    add("/World/hidden", second).CreateVisibilityAttr("invisible")
    add("/World/off", second).GetPrim().SetActive(False)
    stage.CreateClassPrim("/Class")
    add("/Class/second", second)
    for k in range(2):
        instance = UsdGeom.Xform.Define(stage, f"/World/instance{k}")
        instance.AddTranslateOp().Set((10.0 * k, 0, 0))
        instance.GetPrim().GetInherits().AddInherit("/Class")
        instance.GetPrim().SetInstanceable(True)
    stage.Save()
    read = read_scene(tmp_path / "scene.usda")
    assert len(read) == 12 + 2 * 8
    assert_looks(read.reordered(np.arange(12)), first, matrix)
    for k in range(2):
        moved = np.eye(4)
        moved[0, 3] = 10.0 * k
        assert_looks(read.reordered(np.arange(12 + 8 * k, 20 + 8 * k)), second, matrix @ moved)


def test_stand_ins_are_not_drawn_with_what_they_stand_for(tmp_path):
    stage, add = stage_of(tmp_path / "scene.usda")
    add("/plain", cloud(count=3, degree=0, seed=1))
    for count, purpose in ((5, "render"), (7, "proxy"), (9, "guide")):
        parent = UsdGeom.Xform.Define(stage, f"/{purpose}")
        parent.CreatePurposeAttr(purpose)
        add(f"/{purpose}/field", cloud(count=count, degree=0, seed=count))
    stage.Save()
    with pytest.warns(
        UserWarning, match=r"scene\.usda: Gaussians of the purposes proxy and guide are left out: 2 prims"
    ):
        assert len(read_scene(tmp_path / "scene.usda")) == 8


def test_half_precision_is_read_where_there_is_no_single(tmp_path):
    made = cloud(count=30, degree=1)
    stage, add = stage_of(tmp_path / "scene.usdc")
    field = add("/half", made, half=True)
    field.CreateOpacitiesAttr(Vt.FloatArray([0.5] * 30))
    stage.Save()
    read = read_scene(tmp_path / "scene.usdc")
    np.testing.assert_array_equal(read.means, made.means.astype("f2"))
    np.testing.assert_array_equal(read.sh, made.sh.astype("f2"))
    np.testing.assert_array_equal(read.opacities, np.full(30, 0.5, "f4"))
    np.testing.assert_allclose(read.quats, made.quats, atol=1e-3)


def test_arrays_of_other_lengths_are_cut_or_ignored_with_a_warning(tmp_path):
    made = cloud(count=10, degree=1)
    stage, add = stage_of(tmp_path / "scene.usda")
    field = add("/a", made)
    field.CreateScalesAttr(Vt.Vec3fArray.FromNumpy(np.full((12, 3), 2, "f4")))
    field.CreateOpacitiesAttr(Vt.FloatArray([0.5] * 9))
    field.CreateRadianceSphericalHarmonicsCoefficientsAttr(Vt.Vec3fArray([(1, 2, 3)] * 39))
    stage.Save()
    with pytest.warns(UserWarning) as warned:
        read = read_scene(tmp_path / "scene.usda")
    said = sorted(str(each.message).partition("/a: ")[2] for each in warned)
    assert said == [
        "expected 10 opacities, got 9; they are ignored",
        "expected 10 scales, got 12; the last ones are cut",
        f"expected 40 {COEFFICIENTS}, got 39; they are ignored",
    ]
    np.testing.assert_array_equal(read.scales, np.full((10, 3), 2))
    np.testing.assert_array_equal(read.opacities, np.ones(10))
    np.testing.assert_array_equal(read.sh, np.zeros((10, 1, 3)))


def test_only_positions_are_needed(tmp_path):
    stage = Usd.Stage.CreateNew(str(tmp_path / "scene.usda"))
    field = UsdVol.ParticleField3DGaussianSplat.Define(stage, "/a")
    field.CreatePositionsAttr(Vt.Vec3fArray([(1, 2, 3)]))
    stage.Save()
    read = read_scene(tmp_path / "scene.usda")
    np.testing.assert_array_equal(read.means, [[1, 2, 3]])
    np.testing.assert_array_equal(read.quats, [[1, 0, 0, 0]])
    np.testing.assert_array_equal((read.scales[0], read.opacities[0] * np.ones(3)), np.ones((2, 3)))


def test_color_spaces_are_those_of_the_prims(tmp_path):
    made = cloud(count=5, degree=0)
    for name, expected in (("lin_rec709_scene", "lin_rec709_display"), ("srgb_rec709_display", "srgb_rec709_display")):
        stage, add = stage_of(tmp_path / f"{name}.usda")
        Usd.ColorSpaceAPI.Apply(UsdGeom.Xform.Define(stage, "/World").GetPrim()).CreateColorSpaceNameAttr(name)
        add("/World/a", made)
        stage.Save()
        scene = read_scene(tmp_path / f"{name}.usda")
        assert scene.color_space == expected
        save_scene(scene, tmp_path / "again.usdc")
        assert read_scene(tmp_path / "again.usdc").color_space == expected
        (tmp_path / "again.usdc").unlink()
    with pytest.raises(InvalidArgument, match="pictures of it are linear light"):
        load_gaussians(tmp_path / "lin_rec709_scene.usda")


def text(body: str, head: str = "") -> str:
    return f'#usda 1.0\n(\nupAxis = "Y"\n{head}\n)\n{body}\n'


def field_text(name: str = "a", inside: str = "point3f[] positions = [(0, 0, 0)]", more: str = "") -> str:
    return f'def ParticleField3DGaussianSplat "{name}" {more}\n{{\n{inside}\n}}'


def around(kind: str, inside: str) -> str:
    return f'def {kind} "w"\n{{\n{inside}\n}}'


SURFLETS = 'def ParticleField "a" ( apiSchemas = ["ParticleFieldKernelGaussianSurfletAPI"] ) {}'
SAMPLES = "point3f[] positions.timeSamples = { 0: [(0, 0, 0)] }"
MOTION = "double3 xformOp:translate.timeSamples = { 0: (0, 0, 0), 1: (1, 0, 0) }"
MIRROR = "double3 xformOp:scale = (1, -1, 1)\nuniform token[] xformOpOrder = ["
CLIPS = "(\nclips = {\ndictionary default = {\nasset[] assetPaths = [@/etc/x.usd@]\n}\n}\n)"
REFUSED = {
    "none": (text('def Xform "a" {}'), "expected prims of the type ParticleField3DGaussianSplat, got none"),
    "volume": (text('def Volume "a" {}'), r"got none; volumes, as in the \.usdz files of NuRec"),
    "surflets": (text(SURFLETS), "expected Gaussian ellipsoids at /a, got ParticleFieldKernelGaussianSurfletAPI"),
    "samples": (text(field_text(inside=SAMPLES)), "/a: expected one value of positions, but it has time samples"),
    "motion": (
        text(around("Xform", f'{MOTION}\nuniform token[] xformOpOrder = ["xformOp:translate"]\n{field_text()}')),
        "/w/a: expected no time samples in the transform of /w",
    ),
    "mirror": (text(field_text(inside=f'{MIRROR}"xformOp:scale"]')), "/a: expected transforms that neither mirror"),
    "degree": (
        text(field_text(inside="uniform int radiance:sphericalHarmonicsDegree = 9")),
        "expected radiance:sphericalHarmonicsDegree 0 to 4, got 9",
    ),
    "clips": (text(field_text(more=CLIPS)), "expected no value clips, which are not supported, at /a"),
    "type": (text(field_text(inside="float[] positions = [1, 2]")), "expected floats of the schema's type in posi"),
    "instancer": (text(around("PointInstancer", field_text())), "expected no PointInstancer"),
    "space": (
        text(field_text("a", 'uniform token colorSpace:name = "x"', '( prepend apiSchemas = ["ColorSpaceAPI"] )')),
        "expected the colour space .*, got x",
    ),
    "syntax": ("#usda 1.0\ndef", "expected a USD file, but it is damaged: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path, case):
    content, said = REFUSED[case]
    (tmp_path / "scene.usda").write_text(content)
    with pytest.raises(InvalidArgument, match=r"^path: .*scene\.usda: .*" + said):
        read_scene(tmp_path / "scene.usda")


ARCS = {
    "sublayer": lambda name: text(field_text(), f"subLayers = [@{name}@]"),
    "reference": lambda name: text(f'def "b" ( references = @{name}@ ) {{}}'),
    "payload": lambda name: text(f'def "b" ( payload = @{name}@ ) {{}}'),
    "variant": lambda name: text(
        'def Xform "b" (\nvariants = {\nstring v = "x"\n}\nprepend variantSets = "v"\n)\n'
        f'{{\nvariantSet "v" = {{\n"x" {{\n}}\n"y" (\nreferences = @{name}@\n) {{\n}}\n}}\n}}'
    ),
}
ELSEWHERE = ("../outside.usda", "{outside}", "http://localhost:1/a.usda", "link.usda", "file:///etc/passwd")


@pytest.mark.parametrize("arc", ARCS)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_layers_elsewhere_are_not_opened(tmp_path, arc, name):
    folder = tmp_path / "inside"
    folder.mkdir()
    outside = tmp_path / "outside.usda"
    outside.write_text(text(field_text()))
    (folder / "link.usda").symlink_to(outside)
    (folder / "scene.usda").write_text(ARCS[arc](name.format(outside=outside)))
    with pytest.raises(InvalidArgument, match="expected layers in its own folder only, but it refers to"):
        read_scene(folder / "scene.usda")
    assert Sdf.Layer.Find(str(outside)) is None and Sdf.Layer.Find(str(folder / "link.usda")) is None


@pytest.mark.parametrize("arc", ["sublayer", "reference", "payload"])
def test_layers_in_the_folder_are_read_and_missing_ones_named(tmp_path, arc):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "b.usda").write_text(text(field_text("c"), 'defaultPrim = "c"'))
    (tmp_path / "scene.usda").write_text(ARCS[arc]("./parts/b.usda"))
    assert len(read_scene(tmp_path / "scene.usda")) == (2 if arc == "sublayer" else 1)
    (tmp_path / "gone.usda").write_text(ARCS[arc]("./parts/c.usda"))
    with pytest.raises(InvalidArgument, match=r"expected the layer '\./parts/c\.usda', which gone\.usda refers to"):
        read_scene(tmp_path / "gone.usda")


def test_packages_are_opened_like_files(tmp_path):
    made = cloud(count=6, degree=0)
    gaussians_of(made).save(tmp_path / "scene.usdz")
    (tmp_path / "outer.usda").write_text(ARCS["reference"]("./scene.usdz"))
    np.testing.assert_array_equal(read_scene(tmp_path / "outer.usda").means, made.means.astype("f4"))


def test_a_name_that_openusd_cannot_have_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match="expected a path in UTF-8, which OpenUSD needs"):
        gaussians_of(cloud(4)).save(tmp_path / os.fsdecode(b"\xff.usdc"))
    assert not list(tmp_path.iterdir())


def test_other_suffixes_are_named(tmp_path):
    gaussians_of(cloud(count=2, degree=0)).save(tmp_path / "scene.usdc")
    (tmp_path / "scene.usdc").rename(tmp_path / "scene.bin")
    with pytest.raises(InvalidArgument, match=r"expected a USD file to end in \.usd, .* got 'scene\.bin'; rename it"):
        Gaussians.load(tmp_path / "scene.bin")


@pytest.mark.parametrize("suffix", [".usda", ".usdc", ".usdz"])
def test_damaged_files_are_refused_or_read(tmp_path, suffix):
    gaussians_of(cloud(count=20, degree=1)).save(tmp_path / f"good{suffix}")
    content, chance = (tmp_path / f"good{suffix}").read_bytes(), random.Random(7)
    read = refused = 0
    for number in range(120):
        damaged = bytearray(content)
        if number % 3 == 0:
            damaged = damaged[: chance.randrange(len(content))]
        else:
            for _ in range(chance.randint(1, 6)):
                # Damage does most harm in the header and in the tables at the end.
                start = chance.choice([0, 0, max(0, len(content) - 600)])
                stop = min(start + 88, len(content)) if chance.random() < 0.3 else len(content)
                damaged[chance.randrange(start, stop)] ^= 1 << chance.randrange(8)
        # A new name each time, because OpenUSD remembers layers by their names.
        path = tmp_path / f"damaged{number}{suffix}"
        path.write_bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scene = read_scene(path, skip_invalid=True)
            assert isinstance(scene, StoredScene) and len(scene.gaussians()) <= 20
            read += 1
        except InvalidArgument as error:
            assert str(error).startswith(f"path: {path}: ")
            refused += 1
    assert read and refused > 20
