"""A job to be interrupted or killed: two models at once; the argument is its settings as JSON."""

import json
import sys
from pathlib import Path

from headscape.paper.figure_job import Drawing, Job
from headscape.paper.job import run

if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    out = Path(settings.pop("out"))
    drawing = Drawing(out=out / "figures", length=32, formats=("png",))
    names = ("fox", "kerple")
    try:
        run(Job(drawing=drawing, run_folder=out / "runs", encodings=names, settings=settings), 2)
    except KeyboardInterrupt:
        sys.exit(130)
