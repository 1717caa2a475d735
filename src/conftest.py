"""Doctests are collected from every module; those of the GPU kernels can be imported only where triton is."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["rotationout/kernels/triton/*"]
