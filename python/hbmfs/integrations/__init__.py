"""Thin adapters between hbmfs and the programs that people train and serve with."""
