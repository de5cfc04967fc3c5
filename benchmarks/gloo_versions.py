"""How often gloo's `psum_scatter` is wrong, by release of jax (jax-ml/jax#40830).

    python benchmarks/gloo_versions.py [--pythons PYTHON ...] [--rates 0 100] [--executions 30]

Each PYTHON is the interpreter of an environment with another jax, and with no Lockstep: two stock
processes of one device run `gloo_reduce_scatter.py`, which checks each result. Process 1 sends at
most so many MB/s on a connection (0: no limit), as behind a slow link; then it overwrites what it
has not sent yet, where gloo has the fault. The environments take turns, so that all of them see the
same machine. Also printed: whether jaxlib contains the algorithm of gloo's that has the fault.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import stock_job

HERE = Path(__file__).resolve().parent
ALGORITHM = b"ReduceScatterHalvingDoubling"
WHERE = "import jaxlib; print(jaxlib.__version__, jaxlib.__path__[0])"
TIMEOUT = 300.0


def describe(python: str) -> tuple[str, bool]:
    """The release of jaxlib, and whether it has the algorithm."""
    said = subprocess.check_output([python, "-c", WHERE], text=True, timeout=60)
    version, folder = said.split(maxsplit=1)
    with open(Path(folder.strip(), "libjax_common.so"), "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return version, data.find(ALGORITHM) >= 0


def count(python: str, rate: int, folder: Path, args: argparse.Namespace) -> tuple[int, int]:
    """Wrong results and all results of one job, on the process that saw more wrong ones."""
    program = [str(HERE / "gloo_reduce_scatter.py"), "--dtype", "float64", "--mib", args.mib]
    program += ["--executions", str(args.executions)]
    place = f"127.0.0.1:{stock_job.free_port()} 2"
    slow = stock_job.limited_connections(rate * 10**6, folder) if rate else {}
    running = [
        stock_job.start(f"{place} {process}", program, python, **(slow if process else {}))
        for process in range(2)
    ]
    try:
        said = "".join(process.communicate(timeout=TIMEOUT)[0] for process in running)
    finally:
        for process in running:
            process.kill()
    found = re.findall(r"(\d+) of (\d+) executions wrong", said)
    assert len(found) == len(running), said
    return max((int(wrong), int(results)) for wrong, results in found)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 100], help="MB/s")
    parser.add_argument("--mib", default="32", help="a device")
    parser.add_argument("--executions", type=int, default=30, help="in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a JSON file for all counts")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    described = {python: describe(python) for python in args.pythons}
    total: dict[tuple[str, int], list[int]] = collections.defaultdict(lambda: [0, 0])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for rate in args.rates * args.rounds:
            for python, (version, _) in described.items():
                wrong, results = count(python, rate, Path(folder), args)
                total[version, rate][0] += wrong
                total[version, rate][1] += results
                rows.append({"jaxlib": version, "rate": rate, "wrong": wrong, "results": results})
                rows[-1] |= {"load": os.getloadavg()[0], "date": f"{datetime.date.today()}"}
                limit = f"at {rate} MB/s" if rate else "no limit"
                print(f"jaxlib {version:9} {limit:11} {wrong} of {results} wrong", flush=True)
    print("| jaxlib | gloo's algorithm |", *(f" {rate} MB/s |" for rate in args.rates), sep="")
    for version, has in described.values():
        cells = (" of ".join(map(str, total[version, rate])) for rate in args.rates)
        print(f"| {version} | {'yes' if has else 'no'} | {' | '.join(cells)} |")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
