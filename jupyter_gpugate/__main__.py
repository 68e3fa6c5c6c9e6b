"""``python -m jupyter_gpugate``: the same as ``jupyter gpugate``."""

from __future__ import annotations

import sys

from jupyter_gpugate.terminal.cli import main

sys.exit(main())
