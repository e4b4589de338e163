"""The data of `examples/gallery`, found from here: the programs of every library read the same."""

import runpy
from pathlib import Path

globals().update(runpy.run_path(str(Path(__file__).parents[2] / "examples" / "gallery" / "gallery_data.py")))
