"""The speed of this tree against a different checkout, in two processes that take turns.

    python -m benchmarks.compare_trees ../other            all cases, 15 rounds
    python -m benchmarks.compare_trees ../other --only decode --rounds 41

    python -m benchmarks.compare_trees ../other --cpu      CPU time of one thread, on a busy machine
    python -m benchmarks.compare_trees ../other --count    calls of Python and operators of torch

Each process imports its own headscape and does one step when told to. The other tree's step is
timed right before or after ours, so a busy machine slows both alike; the number of a case is the
median over rounds of ours / theirs. Counts are exact, however busy the machine is. Only names that
both trees have are used. `import` starts a new interpreter for every round.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Step = Callable[[], object]
ENCODINGS = ("alibi", "rope", "cable")
LENGTH, TOKENS = 512, 8
COUNT = "count "
IMPORTS = {"import": "import headscape", "import attention": "from headscape import attention"}


def attention(name: str) -> Step:
    """Return ten calls of attention over 512 tokens."""
    import torch

    import headscape as hs

    q, k, v = torch.randn(3, 1, 12, LENGTH, 64).unbind()
    x = torch.randn(1, LENGTH, 768)
    made = hs.build(name, heads=12, head_dim=64, width=768, train_length=LENGTH)

    def step() -> None:
        with torch.no_grad():
            for _ in range(10):
                hs.attention(q, k, v, encoding=made, x=x)

    return step


def decode(size: str, name: str) -> Step:
    """Return a step that decodes a few tokens after 512."""
    import torch

    import headscape as hs
    from headscape.gpt2 import Cache

    model = hs.GPT2.from_preset(size, encoding=name, vocabulary=257)
    cache, one = Cache(capacity=4096), torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        model.hidden(torch.zeros(1, LENGTH, dtype=torch.long), cache=cache)

    def step() -> None:
        with torch.no_grad():
            for _ in range(TOKENS):
                model.logits(model.hidden(one, cache=cache)[:, -1])

    return step


def train(name: str) -> Step:
    """Return a training step of nano."""
    import torch

    import headscape as hs

    model = hs.GPT2.from_preset("nano", encoding=name, vocabulary=257)
    optimiser = torch.optim.AdamW(model.parameters())
    text = torch.randint(257, (4, 257))

    def step() -> None:
        logits = model(text[:, :-1]).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, text[:, 1:].flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


MAKES: dict[str, Callable[..., Step]] = {"attention": attention, "decode": decode, "train": train}
CASES = [
    *(f"attention {name}" for name in ENCODINGS),
    *(f"decode {size} {name}" for size in ("nano", "small") for name in ENCODINGS),
    *(f"train {name}" for name in ENCODINGS),
]


def counted(step: Step) -> tuple[int, int]:
    """Return how many calls Python makes in a step, and how many operators torch runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = operators = 0

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal operators
            operators += 1
            return function(*args, **(kwargs or {}))

    def enter(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    step()
    with Operators():
        step()
    sys.setprofile(enter)
    step()
    sys.setprofile(None)
    return calls, operators


def work(threads: int) -> None:
    """Do the steps named on standard input and print the wall and CPU seconds of each."""
    import torch

    torch.set_num_threads(threads)
    steps: dict[str, Step] = {}
    for line in sys.stdin:
        case, count = line.strip().removeprefix(COUNT), line.startswith(COUNT)
        if case not in steps:
            kind, *rest = case.split()
            steps[case] = MAKES[kind](*rest)
        if count:
            print(*counted(steps[case]), flush=True)
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        steps[case]()
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)


class Worker:
    """A process with one tree's headscape."""

    def __init__(self, tree: Path, threads: int) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", str(threads)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, case: str, *, cpu: bool) -> float:
        """Return how long one step took, by the wall clock or by the CPU's."""
        if case in IMPORTS:
            start = time.perf_counter()
            command = [sys.executable, "-c", IMPORTS[case]]
            subprocess.run(command, env=self.environment, check=True)
            return time.perf_counter() - start
        return float(self.answer(case)[cpu])

    def answer(self, case: str) -> list[str]:
        """Return the numbers that the process prints for a case."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """Print the ratio of every case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, nargs="?", help="folder of a different checkout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--cpu", action="store_true", help="CPU seconds, with one thread")
    parser.add_argument("--count", action="store_true", help="calls and operators, no times")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return
    if given.other is None or not (given.other / "src" / "headscape").is_dir():
        parser.error("give the folder of a checkout that contains src/headscape")
    threads = 1 if given.cpu else 2
    trees = (Path(__file__).parents[1], given.other.resolve())
    ours, theirs = (Worker(tree, threads) for tree in trees)
    for case in [*IMPORTS, *CASES]:
        if given.only not in case or (given.count and case in IMPORTS):
            continue
        if given.count:
            (a, b), (c, d) = (worker.answer(COUNT + case) for worker in (ours, theirs))
            print(f"{case:22} calls {a} (theirs {c})   operators {b} (theirs {d})", flush=True)
            continue
        ratios, own = [], []
        for turn in range(given.rounds + 2):
            pair = [ours, theirs]
            if random.Random(turn).random() < 0.5:
                pair.reverse()
            seconds = {worker: worker.seconds(case, cpu=given.cpu) for worker in pair}
            if turn > 1:
                ratios.append(seconds[ours] / seconds[theirs])
                own.append(seconds[ours])
        low, middle, high = statistics.quantiles(ratios, n=4)
        took = 1e3 * statistics.median(own)
        print(
            f"{case:22} {middle:6.3f}   quartiles {low:.3f} {high:.3f}   ours {took:.2f} ms",
            flush=True,
        )
    ours.close()
    theirs.close()


if __name__ == "__main__":
    main()
