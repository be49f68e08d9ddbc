"""Imported last by a fork server: collections of garbage in its forks pass over what it imported."""

import gc

gc.collect()
gc.freeze()
