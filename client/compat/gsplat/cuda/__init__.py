"""The names of `gsplat.cuda`, none of which needs CUDA here."""
