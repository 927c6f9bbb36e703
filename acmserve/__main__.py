"""`python -m acmserve` is the `acmserve` command."""

from __future__ import annotations

import sys

from acmserve.cli import main

sys.exit(main())
