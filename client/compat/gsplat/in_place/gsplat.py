"""Stands for gsplat in the processes that a program starts: importing it imports `lumigrad.client.compat.gsplat`."""

import sys

from lumigrad.client.compat.gsplat import install

# An import returns the entry of `sys.modules` once the module has run.
sys.modules.pop("gsplat", None)
install()
