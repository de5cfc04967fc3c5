"""The command ``lockstep bench``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep._config import positive
from lockstep._errors import ConfigError
from lockstep.bench import gpus as bench_gpus
from lockstep.bench.cases import DTYPES, OPS, parse_sizes
from lockstep.bench.job import IMPLEMENTATIONS, NCCL, PLAIN
from lockstep.bootstrap import mpi_backend
from lockstep.launch import host_options
from lockstep.launch.usage import checked

if TYPE_CHECKING:
    from lockstep.bench.hosts import Hosts

INTERRUPTED = 128 + signal.SIGINT

_DESCRIPTION = """\
Measures all_reduce, all_gather, reduce_scatter, all_to_all and permute over all devices of a job,
for several implementations in one run, and the machine's copy rate for comparison. With --hosts,
between hosts, as lockstep run starts processes there, and their links' rates for comparison. With
--platform cuda, NCCL on GPUs.
"""
_EXAMPLES = """\
examples:
  lockstep bench                                              2 processes of 1 device
  lockstep bench -n 2 -d 4 --plot bench.png
  lockstep bench --ops all_reduce --sizes 1KiB,1MiB --json bench.json
  lockstep bench --platform cuda                              a process for each GPU
"""


def _listed(choices: tuple[str, ...], what: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is not {what}; known: {', '.join(choices)}"
                )
        return names

    return parse


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return parse_sizes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plot_file(text: str) -> str:
    if not text.endswith((".png", ".svg")):
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png or .svg")
    return _output_file(text)


def _output_file(text: str) -> str:
    """A file that can be written: an error comes before minutes of measuring, not after."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no directory {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return text


def _json_file(text: str) -> str:
    return text if text == "-" else _output_file(text)


def add_parser(subparsers: Any) -> None:
    """Adds ``bench`` to the subcommands of ``lockstep``."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the collectives on this machine or between hosts",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_job(parser)
    _add_cases(parser)
    _add_output(parser)
    _add_hosts(parser)
    parser.set_defaults(func=main)


def _add_job(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("job").add_argument
    add(
        "-n",
        "--processes",
        type=checked(positive),
        metavar="N",
        help="processes; default: 2; with --hosts, one for each slot",
    )
    add(
        "-d",
        "--devices",
        type=checked(positive),
        default=1,
        metavar="D",
        help="per process; default: 1",
    )
    add(
        "--collectives",
        type=_listed(IMPLEMENTATIONS, "an implementation"),
        metavar="LIST",
        help="implementations; the first is compared with the others; default: lockstep,gloo, "
        "and mpi if there is an MPI and D is 1; with --hosts: lockstep,plain,gloo; other choices: "
        "plain (lockstep --no-encryption, between hosts), xla (all devices in one process, without "
        "a library), unrecorded (lockstep without its "
        "recorder) and strict (lockstep --strict); with --platform: nccl; others: unrecorded, "
        "strict, xla",
    )
    bench_gpus.add_options(add)
    add("--bind", choices=("none", "cores"), help="passed on to lockstep run; default: as there")
    add(
        "--timeout",
        type=checked(positive),
        default=120,
        metavar="S",
        help="seconds that one step of a job may take; default: 120",
    )


def _add_cases(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("cases").add_argument
    add(
        "--ops",
        type=_listed(OPS, "a collective"),
        default=OPS,
        metavar="LIST",
        help=f"some of {', '.join(OPS)}; default: all",
    )
    add(
        "--sizes",
        type=_sizes,
        metavar="SIZES",
        help="input bytes per device: SMALLEST:LARGEST in steps of 4, or a list; "
        "default: 1KiB:64MiB; with --hosts 1KiB:16MiB",
    )
    add("--dtype", choices=tuple(DTYPES), default="f32", help="default: f32")
    add(
        "--repeats",
        type=checked(positive),
        default=5,
        metavar="B",
        help="blocks: how often each implementation is measured in a case; default: 5",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("output").add_argument
    add(
        "--json",
        type=_json_file,
        metavar="FILE",
        help="write all measurements to FILE, or - for stdout",
    )
    add(
        "--calibrate",
        action="store_true",
        help="write the costs from which `lockstep inspect` predicts times on this machine; "
        "measures lockstep alone, unless --collectives names others",
    )
    add("--plot", type=_plot_file, metavar="FILE", help="time against size, as .png or .svg")


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several hosts")
    host_options.add_reach(group)
    add = group.add_argument
    add(
        "--host-counts",
        type=_host_counts,
        metavar="LIST",
        help="also measure on the first K of the hosts, such as 2,4; default: all hosts alone",
    )
    add(
        "--gbit",
        type=checked(positive_number),
        metavar="G",
        help="the rate of a host's link in Gbit/s, for the share of it that is used; default: the "
        "slowest pair's rate over one TCP connection, which is measured first",
    )


def positive_number(text: str) -> float:
    """Raises ValueError."""
    number = float(text) if text.replace(".", "", 1).isdigit() else 0.0
    if not number > 0:
        raise ValueError("a number above 0")
    return number


def _host_counts(text: str) -> tuple[int, ...]:
    return tuple(checked(positive)(part) for part in text.split(","))


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that jobs are stopped and what was measured is shown."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _implementations(args: argparse.Namespace) -> tuple[str, ...]:
    if args.collectives:
        return args.collectives
    if args.platform:
        return (NCCL,)
    if args.calibrate:
        return ("lockstep",)
    if args.hosts or args.hostfile:
        return ("lockstep", PLAIN, "gloo")
    # A real MPI takes one device per process.
    with_mpi = args.devices == 1 and mpi_backend.available(os.environ)
    return ("lockstep", "gloo", "mpi") if with_mpi else ("lockstep", "gloo")


def _unusable(args: argparse.Namespace, hosts: Hosts | None) -> str | None:
    """Why the command cannot be carried out."""
    if args.processes * args.devices < 2:
        return "a collective needs at least 2 devices; use -n or -d"
    if text := bench_gpus.unusable(args):
        return text
    if args.platform is None and NCCL in (args.collectives or ()):
        return f"{NCCL} is for --platform cuda"
    if hosts is None and PLAIN in (args.collectives or ()):
        return f"{PLAIN} is for --hosts: on one host nothing is encrypted"
    if hosts is not None and "mpi" in (args.collectives or ()):
        return "mpi is for one host: an MPI library is started by its own launcher"
    if args.plot:
        from lockstep.bench.plot import missing

        return missing()
    return None


def main(args: argparse.Namespace) -> int:
    """Runs the benchmark.

    Returns 0 when the first implementation measured everything, 1 when it failed somewhere, 2 for
    a command that cannot be carried out, 130 after Ctrl-C (what was measured is still reported).
    """
    from lockstep.bench import hosts as bench_hosts

    try:
        hosts = bench_hosts.of(args)
    except ConfigError as error:
        print(f"lockstep bench: {error}", file=sys.stderr)
        return 2
    args.processes = hosts.processes if hosts else args.processes or bench_gpus.processes(args)
    args.sizes = args.sizes or parse_sizes("1KiB:16MiB" if hosts else "1KiB:64MiB")
    if (text := _unusable(args, hosts)) is not None:
        print(f"lockstep bench: {text}", file=sys.stderr)
        return 2
    from lockstep.bench import session

    links = session.Links.of(args, hosts) if hosts else None
    if hosts and links is None:
        return 2
    implementations = _implementations(args)
    parts: list[session.Part] = []
    interrupted = False
    with _terminate_like_interrupt():
        try:
            for count in bench_hosts.counts(args, hosts) if hosts else (1,):
                parts.append(
                    session.Part(args, implementations, hosts.first(count) if hosts else None)
                )
                parts[-1].measure()
        except KeyboardInterrupt:
            interrupted = True
            print("lockstep bench: interrupted; this is what was measured", file=sys.stderr)
    ok = session.publish(args, parts, links)
    if args.calibrate and not interrupted:
        from lockstep.bench import calibrate

        ok = calibrate.write(parts[-1].results, implementations[0], hosts is not None) and ok
    return INTERRUPTED if interrupted else 0 if ok else 1
