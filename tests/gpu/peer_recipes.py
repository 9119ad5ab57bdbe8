"""What each peer of `make gpu-peers` is built from: its sources, the flags of its own build, and its Python files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Extension:
    """One shared library, `target` within the peer's folder; sources in a group are compiled as one file, which saves
    reading torch's headers again for each."""

    target: str
    sources: list[list[Path]]
    includes: list[Path] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    cxx: list[str] = field(default_factory=list)
    nvcc: list[str] = field(default_factory=list)
    link: list[str] = field(default_factory=list)
    for_torch: bool = True


@dataclass(frozen=True)
class Recipe:
    """A peer.

    Attributes:
        name: Of its folder, in the sources and in what is built.
        version: As the peer tells it.
        url: Where its sources are.
        commit: The one that is built.
        licence: Of its sources.
        modules: The packages that it supplies.
        extensions: From the folders of its sources, of work, and of all sources.
        files: Globs of the sources' files that are copied.
        prepare: Makes what is compiled beside the sources, in the folder of work, and further files in the peer's.
        for_torch: Whether it works with one version of Python and torch only.
        needs: Other sources: their folder, address and commit.
    """

    name: str
    version: str
    url: str
    commit: str
    licence: str
    modules: list[str]
    extensions: Callable[[Path, Path, Path], list[Extension]]
    files: tuple[str, ...]
    prepare: Callable[[Path, Path, Path], None] = lambda source, work, target: None
    for_torch: bool = True
    needs: tuple[str, str, str] | None = None


_GLM = ("glm", "https://github.com/g-truc/glm", "2d4c4b4dd31fde06cfffad7915c2b3006402322f")
# Of `rasterization` with volumes, harmonics and without packing.
_GSPLAT_KERNELS = (
    ("IntersectTile", "ProjectionEWA3DGSFused", "RasterizeToPixels3DGSSerialBatchBwd"),
    ("RasterizeToPixels3DGSSerialBatchFwd", "SphericalHarmonicsCUDA", "SphericalHarmonicsViewDirectionCUDA"),
    ("SphericalHarmonicsL1PlusCUDA",),
)
_GSPLAT_HOST = (
    ("DistributedCollectives", "Intersect", "Lidar", "MCMCPerturb", "Null", "Utils"),
    ("Projection",), ("QuatScaleToCovar",), ("Rasterization",), ("Rendering",), ("SphericalHarmonics",),
)  # fmt: skip
_GSPLAT_CXX = ["-std=c++20", "-O3", "-DNDEBUG", "-Wno-attributes", "-fopenmp", "-DAT_PARALLEL_OPENMP"]
_GSPLAT_NVCC = [
    "--expt-relaxed-constexpr", "--forward-unknown-opts", "-use_fast_math", "-diag-suppress", "3189,20012,186",
    *_GSPLAT_CXX,
]  # fmt: skip
# The kernels that are left out are never called; their names are looked for only then.
_LAZY = ["-Wl,-z,lazy"]


def _gsplat(source: Path, work: Path, sources: Path) -> list[Extension]:
    """The rasterizer, its inference path (HiGS), and the packing of scenes for that."""
    cuda = source / "gsplat" / "cuda"
    render = source / "gsplat" / "experimental" / "render" / "kernels" / "cuda"
    scene = source / "gsplat" / "scene" / "kernels" / "cuda"
    inference = render / "csrc" / "gaussian_inference"
    headers = [cuda / "include", cuda / "csrc", sources / "glm"]
    flags = [
        f"GSPLAT_BUILD_{name}={int(name == '3DGS')}" for name in ("3DGS", "2DGS", "3DGUT", "ADAM", "RELOC", "LOSSES")
    ]
    return [
        Extension(
            "gsplat/csrc.so",
            [*([cuda / "csrc" / f"{name}.cu" for name in group] for group in _GSPLAT_KERNELS),
             *([cuda / "csrc" / f"{name}.cpp" for name in group] for group in _GSPLAT_HOST), [cuda / "ext.cpp"]],
            headers, [*flags, "GSPLAT_NUM_CHANNELS=3"], _GSPLAT_CXX, _GSPLAT_NVCC, _LAZY,
        ),
        Extension(
            "gsplat/experimental/render/kernels/csrc.so", [[render / "ext.cpp"], sorted(inference.glob("*.cu"))],
            [*headers, inference], [], _GSPLAT_CXX, _GSPLAT_NVCC,
        ),
        Extension(
            "gsplat_scene_cuda.so", [[scene / "ext.cpp"], [scene / "csrc" / "gaussian_scene_pack.cpp"]], [],
            [], ["-std=c++20", "-O3", "-DNDEBUG"],
        ),
    ]  # fmt: skip


def _fused_ssim(source: Path, work: Path, sources: Path) -> list[Extension]:
    flags = ["-O3", "-DFUSED_SSIM_CUDA"]
    files = [[source / name] for name in ("ssim.cu", "ssim3d.cu", "ext.cpp")]
    nvcc = [*flags, "--maxrregcount=32", "--use_fast_math", "--expt-relaxed-constexpr", "-std=c++20"]
    return [Extension("fused_ssim_cuda.so", files, [source], [], [*flags, "-std=c++20"], nvcc)]


_PULSAR = "pytorch3d/renderer/points/pulsar"
_PULSAR_HEADERS = """#include "pulsar/global.h"

#include "pulsar/pytorch/renderer.h"
#include "pulsar/pytorch/tensor_util.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
"""


def _pulsar_binding(source: Path, work: Path, target: Path) -> None:
    """Of PyTorch3D's module and packages the parts that Pulsar needs."""
    text = (source / "pytorch3d" / "csrc" / "ext.cpp").read_text(encoding="utf-8")
    work.mkdir(parents=True, exist_ok=True)
    (work / "pulsar.cpp").write_text(_PULSAR_HEADERS + text[text.index("  // Pulsar.") :], encoding="utf-8")
    for package in ("", "renderer", "renderer/points"):
        (target / "pytorch3d" / package).mkdir(parents=True, exist_ok=True)
        (target / "pytorch3d" / package / "__init__.py").touch()
    conversions = source / "pytorch3d" / "transforms" / "rotation_conversions.py"
    code = re.sub(r"^from \.\.common.*$", "Device = object", conversions.read_text(encoding="utf-8"), flags=re.M)
    (target / "pytorch3d" / "transforms.py").write_text(code, encoding="utf-8")


def _pulsar(source: Path, work: Path, sources: Path) -> list[Extension]:
    csrc = source / "pytorch3d" / "csrc"
    defines = ["WITH_CUDA", "THRUST_IGNORE_CUB_VERSION_CHECK"]
    nvcc = [
        "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-DCUDA_HAS_FP16=1", "-D__CUDA_NO_HALF_OPERATORS__",
        "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__",
        "--device-entity-has-hidden-visibility=false", "-static-global-template-stub=false",
    ]  # fmt: skip
    pulsar = csrc / "pulsar"
    # A renderer is made on the CPU, and moved.
    files = [[work / "pulsar.cpp", *sorted((pulsar / "pytorch").glob("*.cpp"))]]
    for place, end in (("gpu", "gpu.cu"), ("host", "cpu.cpp")):
        # Two of its headers have the same guard.
        alone = pulsar / place / f"renderer.calc_signature.{end}"
        files += [[path for path in sorted(pulsar.glob(f"{place}/*.{end}")) if path != alone], [alone]]
    return [Extension("pytorch3d/_C.so", files, [csrc], defines, ["-std=c++20", "-O3"], nvcc)]


# Warp compiles kernels with NVRTC, which the machine's torch brings; what only links other kinds of code is left out.
_WARP_STUBS = """#include "nvPTXCompiler.h"
extern "C" {
%s
}
"""


def _warp_stubs(source: Path, work: Path, target: Path) -> None:
    """A library that compiles no PTX, and its header."""
    functions = {
        "Create": "nvPTXCompilerHandle*, size_t, const char*",
        "Destroy": "nvPTXCompilerHandle*",
        "Compile": "nvPTXCompilerHandle, int, const char* const*",
        "GetCompiledProgramSize": "nvPTXCompilerHandle, size_t*",
        "GetCompiledProgram": "nvPTXCompilerHandle, void*",
        "GetErrorLogSize": "nvPTXCompilerHandle, size_t*",
        "GetErrorLog": "nvPTXCompilerHandle, char*",
        "GetInfoLogSize": "nvPTXCompilerHandle, size_t*",
        "GetInfoLog": "nvPTXCompilerHandle, char*",
        "GetVersion": "unsigned*, unsigned*",
    }
    results = (
        "SUCCESS", "ERROR_INVALID_COMPILER_HANDLE", "ERROR_INVALID_INPUT", "ERROR_COMPILATION_FAILURE",
        "ERROR_INTERNAL", "ERROR_OUT_OF_MEMORY", "ERROR_COMPILER_INVOCATION_INCOMPLETE",
        "ERROR_UNSUPPORTED_PTX_VERSION", "ERROR_UNSUPPORTED_DEVSIDE_SYNC", "ERROR_CANCELLED",
    )  # fmt: skip
    work.mkdir(parents=True, exist_ok=True)
    names = ", ".join(f"NVPTXCOMPILE_{name}" for name in results)
    declared = "\n".join(f"nvPTXCompileResult nvPTXCompiler{name}({of});" for name, of in functions.items())
    (work / "nvPTXCompiler.h").write_text(
        "#pragma once\n#include <cstddef>\ntypedef struct nvPTXCompiler* nvPTXCompilerHandle;\n"
        f'enum nvPTXCompileResult {{ {names} }};\nextern "C" {{\n{declared}\n}}\n',
        encoding="utf-8",
    )
    failing = "\n".join(
        f"nvPTXCompileResult nvPTXCompiler{name}({of}) {{ return NVPTXCOMPILE_ERROR_INTERNAL; }}"
        for name, of in functions.items()
    )
    (work / "ptx_stubs.cpp").write_text(_WARP_STUBS % failing, encoding="utf-8")


def _warp(source: Path, work: Path, sources: Path) -> list[Extension]:
    native = source / "warp" / "native"
    defines = [
        "WP_ENABLE_CUDA=1",
        "WP_ENABLE_MATHDX=0",
        "WP_ENABLE_CUDA_COMPATIBILITY=0",
        "WP_ENABLE_DEBUG=0",
        "NDEBUG",
    ]
    flags = ["-std=c++17", "-O3"]
    hidden = ["-fvisibility=hidden", "-fvisibility-inlines-hidden"]
    # Another of them includes it.
    kernels = [path for path in sorted(native.glob("*.cu")) if path.name != "apic.cu"]
    files = [[each] for each in (work / "ptx_stubs.cpp", *sorted(native.glob("*.cpp")), *kernels)]
    nvcc = [*flags, "--extended-lambda", *(f"--compiler-options={each}" for each in hidden)]
    link = [
        "-l:libnvrtc.so.13",
        "-lcudart_static",
        "-ldl",
        "-lrt",
        "-lpthread",
        f"-Wl,--version-script={native / 'warp.map'}",
    ]
    return [
        Extension("warp/bin/warp.so", files, [work, native], defines, [*flags, *hidden], nvcc, link, for_torch=False)
    ]  # fmt: skip


RECIPES = (
    Recipe(
        "gsplat", "1.6.0", "https://github.com/nerfstudio-project/gsplat", "90d7b4b349e379ccf9ee6a8cef76aa40f48bb32e",
        "Apache-2.0", ["gsplat"], _gsplat, ("gsplat/**/*.py", "LICENSE"),
        needs=_GLM,
    ),
    Recipe(
        "pytorch3d", "Pulsar alone", "https://github.com/facebookresearch/pytorch3d",
        "9381c4016376345bb795b97c45a6c2de66db354a", "BSD-3-Clause", ["pytorch3d"], _pulsar,
        (f"{_PULSAR}/__init__.py", f"{_PULSAR}/renderer.py", "LICENSE"),
        prepare=_pulsar_binding,
    ),
    Recipe(
        "warp", "1.17.0.dev4", "https://github.com/NVIDIA/warp", "9934a4eb2c503399140daab09d256ccc7236d1d8",
        "Apache-2.0", ["warp"], _warp,
        ("warp/*.py", "warp/_src/**/*.py", "warp/native/**/*.h", "LICENSE.md"),
        prepare=_warp_stubs, for_torch=False,
    ),
    Recipe(
        "fused_ssim", "of the commit", "https://github.com/rahul-goel/fused-ssim",
        "0ac916a05f48f8e477dc8ce1651a346b65ce2072", "MIT", ["fused_ssim"], _fused_ssim,
        ("fused_ssim/*.py", "LICENSE"),
    ),
)  # fmt: skip
