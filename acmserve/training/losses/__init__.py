"""Losses in plain torch. This is the one folder of the training layer that imports it."""
