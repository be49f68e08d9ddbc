"""The version of the package: in a wheel that of the release, which the build writes here; in a clone none."""

__version__ = "devel"
