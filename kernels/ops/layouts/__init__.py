"""The KV layouts, one file each. `registry.py` is the list of them."""
