"""The plan layer: a new prompt against what was served, cut into Keep, Move and Compute.

Pure Python beside the C++ matcher.
"""
