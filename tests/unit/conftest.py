"""Garbage is collected less often: a tenth of the time of all unit tests went into searching the objects of libraries for it."""

import gc

gc.set_threshold(20_000, 20, 20)
