"""A job to be interrupted or killed: two models at once; the argument is its settings as JSON."""

import json
import sys
from pathlib import Path

from headscape.paper.figure_files import Look
from headscape.paper.figure_job import Job
from headscape.paper.job import run

if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    out = Path(settings.pop("out"))
    look = Look(out=out / "figures", length=32, formats=("png",))
    names = ("fox", "kerple")
    try:
        run(Job(look=look, run_folder=out / "runs", encodings=names, settings=settings), 2)
    except KeyboardInterrupt:
        sys.exit(130)
