"""The report as tables for people. Reads the document of `lockstep.bench.summary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep._words import counted, format_seconds, format_size, three_digits, unit_of_time
from lockstep.bench.cases import OPS


def format_ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "-"
    middle, low, high = (three_digits(ratio[key]) for key in ("median", "q1", "q3"))
    return f"{middle}x ({low}-{high})"


def format_time(result: Mapping[str, Any]) -> str:
    """Median and quartiles, or the status of a measurement that failed."""
    if result["status"] != "ok":
        return result["status"]
    seconds = result["seconds"]
    factor, unit = unit_of_time(seconds["median"])
    middle, low, high = (three_digits(seconds[key] * factor) for key in ("median", "q1", "q3"))
    mark = " !" if result["wrong_blocks"] else ""
    return f"{middle} {unit} ({low}-{high}){mark}"


def _bandwidth(result: Mapping[str, Any]) -> str:
    rate = result["bus_bytes_per_second"]
    return "-" if rate is None else three_digits(rate / 1e9)


def _titled(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold")


def _op_table(report: Mapping[str, Any], op: str) -> Table:
    first, *others = report["implementations"]
    entries = [entry for entry in report["cases"] if entry["op"] == op]
    with_share = any(any(entry["share_of_limit"].values()) for entry in entries)
    with_line = any(any(entry.get("share_of_line", {}).values()) for entry in entries)
    table = _titled(op)
    table.add_column("per device", justify="right")
    for name in report["implementations"]:
        table.add_column(name, justify="right")
        table.add_column("GB/s", justify="right")
    for other in others:
        table.add_column(f"{other} / {first}", justify="right")
    if with_share:
        table.add_column("of limit", justify="right")
    if with_line:
        for name in report["implementations"]:
            table.add_column(f"{name} of line", justify="right")
    for entry in entries:
        cells = [format_size(entry["bytes"])]
        for name in report["implementations"]:
            result = entry["results"][name]
            cells += [format_time(result), _bandwidth(result)]
        cells += [format_ratio(entry["ratio"][other]) for other in others]
        share = entry["share_of_limit"][first]
        if with_share:
            cells.append(f"{share['median']:.0%}" if share else "")
        if with_line:
            lines = entry["share_of_line"].values()
            cells += ["" if line is None else f"{line:.0%}" for line in lines]
        table.add_row(*cells)
    return table


def _means_table(report: Mapping[str, Any]) -> Table:
    first = report["implementations"][0]
    table = _titled(f"how many times faster {first} is (geometric means)")
    for column in ("", "than", "up to 64 KiB", "1 MiB and more", "all sizes", "least"):
        table.add_column(column, justify="right" if column not in ("", "than") else "left")
    for row in report["geometric_means"]:
        numbers = [row[name] for name in ("small", "large", "all", "least")]
        cells = ["-" if n is None else f"{three_digits(n)}x" for n in numbers]
        table.add_row(row["op"], row["implementation"], *cells)
    return table


def _calls_table(report: Mapping[str, Any]) -> Table:
    table = _titled("one call from Python, smallest size")
    table.add_column("")
    table.add_column("per device", justify="right")
    for name in report["implementations"]:
        table.add_column(name, justify="right")
    seen = set()
    for entry in report["cases"]:
        if entry["op"] in seen:
            continue
        seen.add(entry["op"])
        calls = [entry["results"][name]["call_seconds"] for name in report["implementations"]]
        cells = [format_seconds(call["median"]) if call else "-" for call in calls]
        table.add_row(entry["op"], format_size(entry["bytes"]), *cells)
    return table


def _problems(report: Mapping[str, Any]) -> list[str]:
    """A line for each distinct problem, with the cases that had it."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for entry in report["cases"]:
        for name, result in entry["results"].items():
            if result["reason"]:
                status = "wrong blocks" if result["status"] == "ok" else result["status"]
                where = f"{entry['op']} {format_size(entry['bytes'])}"
                lines.setdefault((name, status, result["reason"]), []).append(where)
    return [
        f"{name} {status}: {reason} [{', '.join(cases)}]"
        for (name, status, reason), cases in lines.items()
    ]


def _line_text(hosts: Mapping[str, Any]) -> str:
    """What the shares of the line are shares of."""
    rate = f"{three_digits(hosts['line']['bytes_per_second'] * 8 / 1e9)} Gbit/s"
    where = {
        "given": "as given",
        "measured": "the slowest pair's over one TCP connection",
    }[hosts["line"]["source"]]
    latencies = [pair["latency"] for pair in hosts["pairs"] if pair["latency"]]
    ends = [format_seconds(seconds) for seconds in sorted(latencies)]
    trips = f" Round trips between hosts: {' to '.join({ends[0]: 0, ends[-1]: 0})}." if ends else ""
    return (
        f"line: {rate}, {where}. 'of line': the bytes that have to cross a host's link, over time "
        f"and rate.{trips}"
    )


def _algorithms_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _titled("algorithms for this network")
    table.add_column("")
    table.add_column("per device", justify="right")
    table.add_column("algorithm")
    table.add_column("by the model")
    ops = [row["op"] for row in rows]
    for row in rows:
        rest = "larger" if ops.count(row["op"]) > 1 else "all sizes"
        size = rest if row["up_to"] is None else f"up to {format_size(row['up_to'])}"
        faster = f"up to {three_digits(row['gain'])}x as fast as the engine's own"
        own = "the engine's own"
        table.add_row(row["op"], size, row["algorithm"], faster if row["gain"] > 1 else own)
    return table


def _show_algorithms(report: Mapping[str, Any], console: Console) -> None:
    """What the measurements say about the engine's choice of algorithms between hosts."""
    found = report["algorithms"]
    text = (
        f"model: fitted to {report['implementations'][0]}, a message between hosts takes "
        f"{format_seconds(found['latency'])}, and bytes go at "
        f"{three_digits(8e-9 / found['seconds_per_byte'])} Gbit/s. The model is off by a factor of "
        f"{three_digits(found['error'])} in the median."
    )
    if found["text"] is None:
        text += " That is too much to compare algorithms by it."
    elif not found["text"]:
        text += (
            f" By it, nothing is {three_digits(found['least_gain'])} times as fast as the engine's "
            "own algorithms."
        )
    console.print(Text(text))
    if found["text"]:
        console.print(_algorithms_table(found["rows"]))
        console.print(Text(f"LOCKSTEP_ALGORITHMS={found['text']}"), soft_wrap=True)
        console.print(
            Text(
                "This setting prescribes the algorithms of the table. Their times are predicted: "
                "measure again with it. The algorithm decides about the bits of sums, so set it "
                "for all runs that are to be compared."
            )
        )


def heading(report: Mapping[str, Any]) -> str:
    """The line above the tables: job, machine, versions."""
    job, machine, versions = report["job"], report["machine"], report["versions"]
    memory = f", {format_size(machine['memory'])}" if machine["memory"] else ""
    hosts = report.get("hosts")
    where = (
        f"{counted(len(hosts['processes']), 'host')} ({', '.join(hosts['processes'])}), "
        if hosts
        else ""
    )
    return (
        f"{where}{counted(job['processes'], 'process')} x {counted(job['devices'], 'device')}, "
        f"{job['dtype']}, {machine['cpu']}, {counted(machine['usable_cores'], 'core')}{memory}; "
        f"jax {versions.get('jax', '?')}, jaxlib {versions.get('jaxlib', '?')}, "
        f"lockstep {versions.get('lockstep', '?')}"
    )


def show(report: Mapping[str, Any], console: Console) -> None:
    """Prints the tables and their legend."""
    console.print(Text(heading(report)))
    for op in OPS:
        if any(entry["op"] == op for entry in report["cases"]):
            console.print(_op_table(report, op))
    if report["cases"]:
        console.print(_calls_table(report))
    if report["geometric_means"]:
        console.print(_means_table(report))
    copy = report["copy_bytes_per_second"]
    if copy:
        console.print(
            Text(
                f"copy: {copy['median'] / 1e9:.1f} GB/s read and written "
                f"({copy['q1'] / 1e9:.1f}-{copy['q3'] / 1e9:.1f}) by all devices at once. "
                f"'of limit': {report['implementations'][0]} moving every input and every result "
                "through memory once, against that."
            )
        )
    if (hosts := report.get("hosts")) and hosts["line"]:
        console.print(Text(_line_text(hosts)))
    console.print(Text("times: median (quartiles) of one collective; GB/s: bus bandwidth."))
    if link := report.get("linalg_link"):
        console.print(
            Text(
                "lockstep.linalg chooses tiles and grids by constants. By the all-gathers of "
                f"{report['implementations'][0]} on {counted(report['job']['ranks'], 'device')}:"
            )
        )
        console.print(Text(f"LOCKSTEP_LINALG_LINK={link}"), soft_wrap=True)
    if report.get("algorithms"):
        _show_algorithms(report, console)
    for line in _problems(report):
        console.print(Text(line, style="yellow"), soft_wrap=True)
