"""How sphinx lays out these pages; `make docs` builds them."""

from __future__ import annotations

import re
from pathlib import Path

_VERSION = Path(__file__).parents[1] / "jupyter_gpugate" / "_version.py"

project = "jupyter_gpugate"
author = "jupyter_gpugate contributors"
release = re.findall(r'"(.+)"', _VERSION.read_text(encoding="utf-8"))[0]
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_theme = "alabaster"
