"""Speculative decoding in the simulator.

test_drafts.py          drafts come and go, and no source names one
test_drafter_layers.py  a drafter with a layer of its own, which looks one token ahead
"""
