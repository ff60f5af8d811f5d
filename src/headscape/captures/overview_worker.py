"""One process of an overview: python -m headscape.captures.overview_worker WORDS."""

import json
import os
import sys
from pathlib import Path

from headscape.captures.overview_file import compute_parts

if __name__ == "__main__":
    capture, layer, head, level, folder, index, of = json.loads(sys.argv[1])
    os.nice(10)
    compute_parts(Path(capture), layer, head, level, Path(folder), index, of)
