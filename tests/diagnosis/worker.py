"""A diagnosis in a process of its own, to be killed: MODEL TOKENS OUT."""

import sys
from pathlib import Path

import numpy as np

import headscape as hs

if __name__ == "__main__":
    model, tokens, out = map(Path, sys.argv[1:])
    hs.diagnose(hs.load(model), 96, np.load(tokens), windows=3, questions=0, effects=1, out=out)
