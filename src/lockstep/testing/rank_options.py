"""The options of the sessions of the ranks, from those of the session that asks. Pure."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

OVERRIDDEN: dict[str, Any] = {
    # The session that asks has applied these options, or applies them to the verdicts.
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "maxfail": 0,
    "usepdb": False,
    "trace": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "cacheclear": False,
    "stepwise": False,
    "stepwise_skip": False,
    "stepwise_reset": False,
    "xmlpath": None,
    "htmlpath": None,
    "log_file": None,
    "pastebin": None,
    # pytest-timeout: the pool has the deadline. pytest-cov: `remote` measures by itself.
    "timeout": 0,
    "cov_source": [],
    # pytest-xdist: a process runs its tests itself.
    "dist": "no",
    "distload": False,
    "numprocesses": None,
    "maxprocesses": None,
    "looponfail": False,
    "tx": [],
    "lockstep_is_rank": True,
}
_SEED = "hypothesis_seed"


def of_session(config: pytest.Config, seed: int) -> dict[str, Any]:
    """The options with which a rank makes its session; its arguments come apart from them.

    ``seed`` is that of hypothesis, unless the session has one: all ranks are to draw the same.
    """
    options = {**vars(config.option), **OVERRIDDEN}
    if options.get(_SEED, "") is None:
        options[_SEED] = str(seed)
    # The session's parser adds it, and argparse warns of one that is there already.
    options.pop("file_or_dir", None)
    options["rootdir"] = str(config.rootpath)
    options["inifilename"] = str(config.inipath) if config.inipath else None
    options["plugins"] = [*config.option.plugins, "no:terminal"]
    return {name: value for name, value in options.items() if _is_plain(value)}


def timeout_of(item: pytest.Item) -> float | None:
    """Seconds that a test may take: by its mark, by pytest-timeout, or by ``--lockstep-timeout``.

    pytest-timeout watches this process too. A little earlier, the ranks can still say where they
    are.
    """
    mark = item.get_closest_marker("lockstep")
    if mark and mark.kwargs.get("timeout"):
        return float(mark.kwargs["timeout"])
    of_plugin = item.get_closest_marker("timeout")
    if of_plugin and (of_plugin.args or "timeout" in of_plugin.kwargs):
        value = of_plugin.args[0] if of_plugin.args else of_plugin.kwargs["timeout"]
        return 0.95 * float(value) or None
    for value in (item.config.getoption("timeout", None), _timeout_of_ini(item.config)):
        if value not in (None, ""):
            return 0.95 * float(value) or None
    return item.config.getoption("lockstep_timeout") or None


def _timeout_of_ini(config: pytest.Config) -> Any:
    with contextlib.suppress(ValueError, KeyError):  # without pytest-timeout
        return config.getini("timeout")
    return None


def coverage_of(config: pytest.Config) -> dict[str, Any] | None:
    """What pytest-cov measures in this process, as arguments of `coverage.Coverage`."""
    controller = getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)
    cov = getattr(controller, "cov", None)
    if cov is None:
        return None
    return {
        "data_file": os.path.abspath(cov.config.data_file),
        "source": cov.config.source,
        "branch": cov.config.branch,
        "config_file": cov.config.config_file or False,
    }


def _is_plain(value: Any) -> bool:
    """Whether a process of the pool can get the value of an option."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | int | float | bool | os.PathLike)
