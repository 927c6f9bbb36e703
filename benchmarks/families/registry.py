"""The families of models that people serve agents with, in the order of their numbers."""

from __future__ import annotations

from acmserve.bench.families.dense import DENSE
from acmserve.bench.families.family import Family
from acmserve.bench.families.latent import LATENT
from acmserve.bench.families.recurrent import RECURRENT
from acmserve.bench.families.windows import WINDOWS

FAMILIES: tuple[Family, ...] = tuple(sorted((*DENSE, *WINDOWS, *LATENT, *RECURRENT), key=lambda family: family.number))
