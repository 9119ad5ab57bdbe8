"""The client alone: what it imports, and what it does without the optional packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Imports of these names fail, as if they were not installed.
BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {blocked} or any(name.startswith(prefix) for prefix in {layers}):
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Absent())
"""


def run(script: str, blocked: tuple[str, ...], layers: tuple[str, ...] = ()) -> str:
    source = BLOCK.format(blocked=blocked, layers=layers) + script
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_needs_no_torch_and_nothing_optional():
    said = run(
        "import lumigrad.client.cli\nfrom lumigrad.client import Client, Spheres\n"
        "spheres = Spheres([[0, 0, 5]], [[1, 0, 0]], [1])\n"
        "print(spheres, Client('localhost:1'))\n",
        (
            *("torch", "plyfile", "trimesh", "pxr", "PIL", "matplotlib"),
            *("prometheus_client", "grpc_tools", "grpc_health", "grpc_status"),
        ),
        ("lumigrad.server", "lumigrad.kernels"),
    )
    assert said == "Spheres(1 spheres, 3 channels) Client('localhost:1')\n"


def test_large_packages_are_not_imported_by_the_client():
    assert run("import lumigrad.client, sys; print({'torch', 'trimesh'} & {*sys.modules})", ()) == "set()\n"


def test_files_without_their_package_say_what_to_install(tmp_path: Path):
    script = """
from lumigrad.client import Mesh, MissingPackage, Spheres
for load, name in ((Mesh.load, "part.stl"), (Spheres.load, "points.ply")):
    try: load(name)
    except MissingPackage as error: print(error)
"""
    (tmp_path / "part.stl").write_bytes(b"")
    axes = "".join(f"property float {axis}\n" for axis in "xyz")
    (tmp_path / "points.ply").write_text(f"ply\nformat ascii 1.0\nelement vertex 1\n{axes}end_header\n0 0 0\n")
    assert run(f"import os; os.chdir({str(tmp_path)!r})\n{script}", ("trimesh", "plyfile")).splitlines() == [
        'reading mesh files needs the package "trimesh"; install it with: pip install "lumigrad[mesh]"',
        'reading PLY files needs the package "plyfile"; install it with: pip install "lumigrad[io]"',
    ]


def test_the_client_shows_its_public_names_alone():
    script = """
import lumigrad.client, lumigrad.client.torch, lumigrad.client.aio
client = lumigrad.client
shown = {name for name in dir(client) if not name.startswith("__")}
print(sorted(shown ^ set(client.__all__)), all(hasattr(client, name) for name in dir(client)))
print({"DistanceSettings", "GaussianSettings", "SphereSettings"} <= shown)
"""
    assert run(script, ()) == "[] True\nTrue\n"


def test_operators_without_their_framework_say_what_to_install():
    needed = {"torch": "torch", "jax": "jax", "compat.pulsar": "torch", "compat.gsplat": "torch"}
    needed |= {"compat.diff_gaussian_rasterization": "torch", "compat.curobo": "torch"}
    attempt = "try: import lumigrad.client.{}\nexcept ImportError as error: print(error)\n"
    said = run("".join(map(attempt.format, needed)), ("torch", "jax")).splitlines()
    for framework, line in zip(needed.values(), said, strict=True):
        assert f'needs the package "{framework}"; install it with: pip install "lumigrad[{framework}]"' in line


def test_the_command_line_lists_commands_whose_packages_are_missing():
    script = "import sys; from lumigrad.client.cli import main; sys.exit(main(['--help']))"
    said = run(script, (), ("lumigrad.server",))
    assert "serve" in said
    assert 'needs more packages; install them with: pip install "lumigrad[server]"' in " ".join(said.split())


def test_a_command_whose_packages_are_missing_is_one_line():
    source = BLOCK.format(blocked=("torch",), layers=())
    script = source + "from lumigrad.client.cli import main; sys.exit(main(['serve', '--port', '0']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("lumigrad: error: `lumigrad serve` needs more packages; install them with: pip")
    assert done.stderr.count("\n") == 1


def test_a_command_that_the_client_alone_lacks_says_how_to_get_it():
    source = BLOCK.format(blocked=(), layers=("lumigrad.server",))
    absent = "from lumigrad.client.shell import catalog; catalog.find_spec = lambda name: None\n"
    script = f"{source}{absent}from lumigrad.client.cli import main; sys.exit(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    said = (
        "lumigrad: error: `lumigrad serve` is not part of the client alone; install a wheel for this platform, or build"
    )
    assert (done.returncode, done.stderr.count("\n"), done.stderr[: len(said)]) == (1, 1, said)
