"""The package in gsplat's place: `install`, the launcher, and a trainer that knows gsplat alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lumigrad.client.compat import gsplat
from lumigrad.client.compat.gsplat.__main__ import main
from lumigrad.client.compat.gsplat.distributed import cli
from support.workers.worker import WorkerProcess

# The imports and the loop of gsplat's trainers, by hand.
TRAINER = """
import json, sys
from dataclasses import dataclass
from typing import Optional
import torch
import beside
import gsplat, gsplat.experimental as experimental
from gsplat import export_splats, has_3dgs, rasterization_2dgs
from gsplat._helper import load_test_data
from gsplat.color_correct import color_correct_affine, color_correct_quadratic
from gsplat.compression import PngCompression
from gsplat.cuda._lidar import compute_tiling
from gsplat.cuda._torch_impl import _eval_sh_bases_fast
from gsplat.cuda._wrapper import CameraModel, RollingShutterType, spherical_harmonics
from gsplat.distributed import cli
from gsplat.exporter import load_ply_to_splats
from gsplat.losses import l1_loss, ssim_loss
from gsplat.optimizers import SelectiveAdam
from gsplat.rendering import RasterizeMode, rasterization, rasterization_2dgs_inria_wrapper
from gsplat.scene import GaussianScene
from gsplat.stage import Stage
from gsplat.relocation import compute_relocation
from gsplat.strategy import DefaultStrategy, MCMCStrategy
from gsplat.strategy import base, default, mcmc
from gsplat.strategy.base import Strategy
from gsplat.strategy.ops import _multinomial_sample, _update_param_with_optimizer, duplicate, remove, reset_opa, split
from gsplat.utils import depth_to_normal, depth_to_points, normalized_quat_to_rotmat, save_ply

assert (base.Strategy, default.DefaultStrategy, mcmc.MCMCStrategy) == (Strategy, DefaultStrategy, MCMCStrategy)

@dataclass
class Config:
    camera_model: CameraModel = "pinhole"
    rasterize_mode: RasterizeMode = "classic"

def main(local_rank, world_rank, world_size, options):
    torch.manual_seed(0)
    count, size = 60, 32
    start = {"means": torch.rand(count, 3) * 2 - 1, "scales": torch.full((count, 3), -2.0)}
    start |= {"quats": torch.rand(count, 4), "opacities": torch.zeros(count)}
    start |= {"sh0": torch.zeros(count, 1, 3), "shN": torch.zeros(count, 3, 3)}
    splats = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in start.items()})
    scene = GaussianScene.from_splats(splats, id="scene")
    splats = scene.splats
    optimizers = {name: torch.optim.Adam([{"params": splats[name], "lr": 0.02}]) for name in splats}
    strategy = DefaultStrategy(refine_start_iter=10, refine_every=10, refine_stop_iter=40, grow_grad2d=1e-4)
    strategy.check_sanity(splats, optimizers)
    state = strategy.initialize_state(scene_scale=1.0)
    view = torch.eye(4)[None].clone()
    view[:, 2, 3] = 4.0
    K = torch.tensor([[[32.0, 0, 16], [0, 32, 16], [0, 0, 1]]])
    target = torch.zeros(1, size, size, 3)
    target[:, 8:24, 8:24, 0] = 1.0

    def render(splats, **options):
        colors = torch.cat([splats["sh0"], splats["shN"]], 1)
        scales, opacities = splats["scales"].exp(), splats["opacities"].sigmoid()
        return rasterization(splats["means"], splats["quats"], scales, opacities, colors, view, K, size, size,
                             sh_degree=1, packed=False, distributed=world_size > 1, **options)

    stage = Stage()
    stage.add_scene(scene, render)
    losses = []
    for step in range(50):
        image, _, info = stage.render(scene.id, camera_model=options.camera_model)
        strategy.step_pre_backward(splats, optimizers, state, step, info)
        similarity = ssim_loss(image.permute(0, 3, 1, 2), target.permute(0, 3, 1, 2))
        loss = 0.8 * l1_loss(image, target).mean() + 0.2 * similarity
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        strategy.step_post_backward(splats, optimizers, state, step, info, packed=False, scene=scene)
    export_splats(**{name: splats[name] for name in start}, save_to=sys.argv[2])
    with torch.inference_mode():
        shown, _, info = stage.render(scene.id)
        assert info["radii"].shape == (1, len(splats["means"]), 2)
    assert color_correct_affine(shown, target).shape == shown.shape
    said = {"first": losses[0], "last": losses[-1], "count": len(splats["means"]), "ranks": world_size}
    said |= {"version": gsplat.__version__, "main": Config.__module__, "beside": beside.HERE, "args": sys.argv[1:]}
    print(json.dumps(said))

def version(_):
    return gsplat.__version__ if main.__module__ == "__mp_main__" else "not a new process"

if __name__ == "__main__":
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(version, [0]) == ["1.6.0"]
    cli(main, Config())
"""


def test_a_trainer_of_gsplat_runs_unchanged(worker_process: WorkerProcess, tmp_path: Path):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "trainer.py").write_text(TRAINER)
    (tmp_path / "programs" / "beside.py").write_text("HERE = 1\n")
    command = [sys.executable, "-m", "lumigrad.client.compat.gsplat", "programs/trainer.py", "default", "scene.ply"]
    environment = {**os.environ, "LUMIGRAD_TARGET": worker_process.target}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["last"] < 0.5 * found["first"] and found["count"] != 60, found
    assert (found["ranks"], found["version"], found["main"]) == (1, "1.6.0", "__main__")
    assert found["args"] == ["default", "scene.ply"]
    assert len(gsplat.load_ply_to_splats(tmp_path / "scene.ply")["means"]) == found["count"]


def test_the_launcher_needs_a_program():
    with pytest.raises(SystemExit, match=r"^usage: python -m lumigrad\.client\.compat\.gsplat PROGRAM\.py"):
        main([])


def test_gsplat_itself_is_not_replaced_once_it_is_imported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gsplat", sys)
    with pytest.raises(RuntimeError, match="gsplat itself has been imported; call install"):
        gsplat.install()


def test_all_public_names_exist_and_what_is_not_offered_says_what_to_use():
    assert all(hasattr(gsplat, name) for name in gsplat.__all__)
    assert gsplat.has_3dgs() and gsplat.has_2dgs() and gsplat.has_3dgut() and not gsplat.has_losses()
    from lumigrad.client.compat.gsplat import experimental

    for call, instead in (
        (gsplat.PngCompression, "lumigrad convert scene.ply scene.sog"),
        (gsplat.rasterization_2dgs_inria_wrapper, "use rasterization_2dgs"),
        (lambda: experimental.GaussianInferenceScene, "use rasterization, without"),
    ):
        with pytest.raises(NotImplementedError, match=instead):
            call()


def test_one_rank_runs_the_function(capsys: pytest.CaptureFixture[str]):
    calls: list[tuple[object, ...]] = []
    assert cli(lambda *given: calls.append(given), "options", verbose=True)
    assert calls == [(0, 0, 1, "options")] and capsys.readouterr().out == "Done.\n"
