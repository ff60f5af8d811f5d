"""The most bytes of tensors alive during a step, as torch's allocator counts them.

Resident memory (`timing.peak_megabytes`) also has what glibc keeps of freed tensors: it changes
by tens of megabytes from run to run. These bytes do not change.
"""

import json
import tempfile
from pathlib import Path

import torch

from benchmarks.timing import Step


def allocated_megabytes(step: Step) -> float:
    """How far the bytes of all tensors rise during the step."""
    return profiled(step)[0]


def profiled(step: Step) -> tuple[float, torch.profiler.profile]:
    """Return how far the bytes of all tensors rise during the step, in MB, and the profile of
    its operators.
    """
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [event for event in events if event["name"] == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    totals = [event["args"]["Total Allocated"] for event in changes]
    return (max(totals) - totals[0] + changes[0]["args"]["Bytes"]) / 2**20, profile
