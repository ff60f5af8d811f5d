"""The loop that every fuzzer of seeds runs: try each seed, count how it ended, print findings."""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

Check = Callable[[int], str]
"""Try the input of a seed and return how it ended; any exception is a finding."""


def main(
    described: str | None, checks: Mapping[str, Check], *, inputs: int = 2_000, slow: float = 60.0
) -> None:
    """Run the checks that the command line names, and exit with 1 if there is a finding.

    Args:
        described: The module's docstring; its first line is the help.
        checks: Every check by name.
        inputs: Seeds of each check, unless the command line says otherwise.
        slow: An input that takes more seconds is a finding.
    """
    parser = argparse.ArgumentParser(description=(described or "").partition("\n")[0])
    parser.add_argument("checks", nargs="*", default=list(checks), metavar="|".join(checks))
    parser.add_argument("--inputs", type=int, default=inputs, help="Of each check.")
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--seconds", type=float, default=3600, help="Most seconds per check.")
    args = parser.parse_args()
    if unknown := set(args.checks) - set(checks):
        parser.error(f"no check is called {', '.join(sorted(unknown))}")
    seeds = range(args.first, args.first + args.inputs)
    findings = sum(run(name, checks[name], seeds, args.seconds, slow) for name in args.checks)
    sys.exit(1 if findings else 0)


def run(name: str, check: Check, seeds: range, seconds: float, slow: float) -> int:
    """Try seeds until the time is over, print a line of counts, return the number of findings."""
    until, ended, findings = time.monotonic() + seconds, Counter[str](), 0
    for seed in seeds:
        started = time.monotonic()
        try:
            ended[check(seed)] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            findings += 1
            _say(f"{name}, seed {seed}: {kind(error)}: {ascii(' '.join(str(error).split()))[:300]}")
        if time.monotonic() - started > slow:
            findings += 1
            _say(f"{name}, seed {seed}: took {time.monotonic() - started:.0f} s")
        if time.monotonic() > until:
            break
    counts = ", ".join(f"{count:,} {how}" for how, count in ended.most_common())
    _say(f"{name}: {ended.total():,} of {len(seeds):,} inputs: {counts}; findings: {findings}")
    return findings


def kind(error: BaseException) -> str:
    """Return an exception's class and the last line of the package, or of anything, it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/headscape/" in frame.filename] or list(frames)
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "nowhere"
    return f"{type(error).__name__} in {where}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
