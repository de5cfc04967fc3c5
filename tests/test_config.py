"""The environment variables: what each accepts, and the words for what it does not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import ConfigError, LockstepError
from lockstep._config import COLLECTIVES, Config, Link, current

NAMES = {field.metadata["name"]: field.name for field in dataclasses.fields(Config)}

GOOD = [
    ("LOCKSTEP_COLLECTIVES", "gloo", "gloo"),
    ("LOCKSTEP_COORDINATOR", "host-1:8476", "host-1:8476"),
    ("LOCKSTEP_COORDINATOR", "[::1]:1", "[::1]:1"),
    ("LOCKSTEP_NUM_PROCESSES", "12", 12),
    ("LOCKSTEP_PROCESS_ID", "0", 0),
    ("LOCKSTEP_LOCAL_PROCESS_ID", "3", 3),
    ("LOCKSTEP_LOCAL_NUM_PROCESSES", "4", 4),
    ("LOCKSTEP_NUM_HOSTS", "2", 2),
    ("LOCKSTEP_AUTO_INIT", "1", True),
    ("LOCKSTEP_AUTO_INIT", "0", False),
    ("LOCKSTEP_SINGLE_COPY", "1", True),
    ("LOCKSTEP_SINGLE_COPY", "0", False),
    ("LOCKSTEP_ENCRYPTION", "0", False),
    ("LOCKSTEP_CONNECTIONS", "8", 8),
    ("LOCKSTEP_ALGORITHMS", "all-reduce=ring", "all-reduce=ring"),
    ("LOCKSTEP_LINALG_LINK", "50us,4GB/s", Link(5e-5, 4e9)),
    ("LOCKSTEP_LINALG_LINK", "0.5us,0.125GB/s", Link(5e-7, 1.25e8)),
    ("LOCKSTEP_TRANSPORT", "ucx", "ucx"),
    ("LOCKSTEP_UCX_LIBRARY", "/lib/libucp.so.0", "/lib/libucp.so.0"),
    ("LOCKSTEP_COLLECTIVE_TIMEOUT", "0", 0.0),
    ("LOCKSTEP_COLLECTIVE_TIMEOUT", "2.5", 2.5),
    ("LOCKSTEP_STALL_WARNING", "0", 0.0),
    ("LOCKSTEP_START_TIMEOUT", "2.5", 2.5),
    ("LOCKSTEP_REACH_TIMEOUT", "60", 60.0),
    ("LOCKSTEP_CHECK_TIMEOUT", "1.5", 1.5),
    ("LOCKSTEP_STRICT", "1", True),
    ("LOCKSTEP_CHECK_REPLICAS", "20", 20),
    ("LOCKSTEP_FULL_TRACEBACKS", "1", True),
    ("LOCKSTEP_CHECK_PROGRAMS", "0", "off"),
    ("LOCKSTEP_RECORD", "0", False),
    ("LOCKSTEP_RUN_DIR", "/some/where", "/some/where"),
    ("LOCKSTEP_ATTEMPT", "2", 2),
    ("LOCKSTEP_AGENT", "5", 5),
    ("LOCKSTEP_HOST_ID", "this one", "this one"),
    ("LOCKSTEP_KEY_FILE", "/home/me/key", "/home/me/key"),
    ("LOCKSTEP_KEY_FILE", "", ""),
    ("LOCKSTEP_ENGINE", "/lib/x.so", "/lib/x.so"),
    ("LOCKSTEP_MPI_LIBRARY", "/lib/libmpi_abi.so", "/lib/libmpi_abi.so"),
]

WHOLE, ABOVE_ZERO = "a whole number, 0 or more", "a whole number, 1 or more"
SECONDS = "a number of seconds, 0 or more"
SOME_SECONDS = "a number of seconds, 1 or more"
CONNECTIONS = "a whole number from 1 to 8"
LINK = "a latency and a rate, both above 0, such as 50us,4GB/s"

BAD = [
    ("LOCKSTEP_COLLECTIVES", "Gloo", "one of lockstep, gloo, mpi"),
    ("LOCKSTEP_COLLECTIVES", "", "one of lockstep, gloo, mpi"),
    ("LOCKSTEP_COORDINATOR", "host", "HOST:PORT"),
    ("LOCKSTEP_COORDINATOR", ":80", "HOST:PORT"),
    ("LOCKSTEP_COORDINATOR", "host:", "HOST:PORT"),
    ("LOCKSTEP_COORDINATOR", "host:0", "HOST:PORT"),
    ("LOCKSTEP_COORDINATOR", "host:65536", "HOST:PORT"),
    ("LOCKSTEP_COORDINATOR", "host:http", "HOST:PORT"),
    ("LOCKSTEP_NUM_PROCESSES", "0", ABOVE_ZERO),
    ("LOCKSTEP_NUM_PROCESSES", "two", ABOVE_ZERO),
    ("LOCKSTEP_PROCESS_ID", "-1", WHOLE),
    ("LOCKSTEP_PROCESS_ID", "1.0", WHOLE),
    ("LOCKSTEP_LOCAL_PROCESS_ID", "", WHOLE),
    ("LOCKSTEP_LOCAL_NUM_PROCESSES", "0", ABOVE_ZERO),
    ("LOCKSTEP_NUM_HOSTS", "0", ABOVE_ZERO),
    ("LOCKSTEP_AUTO_INIT", "yes", "0 or 1"),
    ("LOCKSTEP_SINGLE_COPY", "no", "0 or 1"),
    ("LOCKSTEP_ENCRYPTION", "off", "0 or 1"),
    ("LOCKSTEP_CONNECTIONS", "0", CONNECTIONS),
    ("LOCKSTEP_CONNECTIONS", "9", CONNECTIONS),
    ("LOCKSTEP_CONNECTIONS", "many", CONNECTIONS),
    *(
        ("LOCKSTEP_LINALG_LINK", text, LINK)
        for text in ("", "50us", "4GB/s,50us", "0us,4GB/s", "50us,0GB/s", "50us,4", "-1us,4GB/s")
    ),
    ("LOCKSTEP_TRANSPORT", "rdma", "one of tcp, ucx"),
    ("LOCKSTEP_COLLECTIVE_TIMEOUT", "-1", SECONDS),
    ("LOCKSTEP_COLLECTIVE_TIMEOUT", "nan", SECONDS),
    ("LOCKSTEP_COLLECTIVE_TIMEOUT", "inf", SECONDS),
    ("LOCKSTEP_COLLECTIVE_TIMEOUT", "10 min", SECONDS),
    ("LOCKSTEP_STALL_WARNING", "soon", SECONDS),
    ("LOCKSTEP_START_TIMEOUT", "-1", SECONDS),
    ("LOCKSTEP_REACH_TIMEOUT", "0", SOME_SECONDS),
    ("LOCKSTEP_CHECK_TIMEOUT", "inf", SOME_SECONDS),
    ("LOCKSTEP_STRICT", "always", "0 or 1"),
    ("LOCKSTEP_CHECK_REPLICAS", "often", WHOLE),
    ("LOCKSTEP_FULL_TRACEBACKS", "always", "0 or 1"),
    ("LOCKSTEP_CHECK_PROGRAMS", "", "one of error, warn, off"),
    ("LOCKSTEP_RECORD", "off", "0 or 1"),
    ("LOCKSTEP_ATTEMPT", "first", WHOLE),
    ("LOCKSTEP_AGENT", "-1", WHOLE),
]


def test_every_variable_is_tried_below() -> None:
    assert {name for name, _, _ in GOOD} == set(NAMES)
    # What takes any text has no bad value.
    assert set(NAMES) - {name for name, _, _ in BAD} == {
        "LOCKSTEP_RUN_DIR",
        "LOCKSTEP_HOST_ID",
        "LOCKSTEP_KEY_FILE",
        "LOCKSTEP_ENGINE",
        "LOCKSTEP_MPI_LIBRARY",
        "LOCKSTEP_UCX_LIBRARY",
        "LOCKSTEP_ALGORITHMS",
    }


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_a_good_value(name: str, text: str, value: object) -> None:
    config = Config.from_environ({name: text})
    assert getattr(config, NAMES[name]) == value
    assert config == dataclasses.replace(Config(), **{NAMES[name]: value})


@pytest.mark.parametrize(("name", "text", "words"), BAD)
def test_a_bad_value_is_named_beside_the_good_ones(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_environ({name: text})
    assert str(caught.value) == f"{name}={text!r}: expected {words}."


def test_the_error_is_also_a_value_error() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, LockstepError)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_environ({"LOCKSTEP_COLLECTIVE": "gloo"})
    text = str(caught.value)
    assert text.startswith("LOCKSTEP_COLLECTIVE is not a variable of Lockstep. Known: ")
    for name in NAMES:
        assert name in text


def test_other_names_are_ignored() -> None:
    assert Config.from_environ({"LOCKSTEPS": "x", "JAX_PLATFORMS": "cpu"}) == Config()


def test_a_process_id_outside_the_job_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_environ({"LOCKSTEP_PROCESS_ID": "2", "LOCKSTEP_NUM_PROCESSES": "2"})
    assert str(caught.value) == (
        "LOCKSTEP_PROCESS_ID=2 but LOCKSTEP_NUM_PROCESSES=2: process ids run from 0 to 1."
    )


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
counts = st.integers(1, 10**6)
naturals = st.integers(0, 10**6)
latencies = st.integers(1, 10**6).map(lambda microseconds: microseconds / 1e6)
rates = st.integers(1, 10**6).map(lambda megabytes: megabytes * 1e6)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    size = draw(st.none() | counts)
    place = naturals if size is None else st.integers(0, size - 1)
    return Config(
        collectives=draw(st.sampled_from(COLLECTIVES)),
        coordinator=draw(st.none() | st.just("host:8476")),
        num_processes=size,
        process_id=draw(st.none() | place),
        local_process_id=draw(st.none() | naturals),
        local_num_processes=draw(st.none() | counts),
        auto_init=draw(st.booleans()),
        collective_timeout=draw(st.floats(0, 1e9)),
        run_dir=draw(st.none() | texts),
        attempt=draw(naturals),
        host_id=draw(st.none() | texts),
        engine=draw(st.none() | texts),
        linalg_link=draw(st.none() | st.builds(Link, latencies, rates)),
        mpi_library=draw(st.none() | texts),
    )


@given(configs())
def test_what_the_launcher_writes_is_what_a_process_reads(config: Config) -> None:
    environ = config.to_environ()
    assert environ.keys() <= NAMES.keys()
    assert Config.from_environ(environ) == config


def test_defaults_are_not_written() -> None:
    assert Config().to_environ() == {}


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    current.cache_clear()
    try:
        monkeypatch.setenv("LOCKSTEP_ATTEMPT", "5")
        first = current()
        monkeypatch.setenv("LOCKSTEP_ATTEMPT", "6")
        assert current() is first
        assert first.attempt == 5
    finally:
        monkeypatch.undo()
        current.cache_clear()


def test_no_other_module_reads_these_variables() -> None:
    import lockstep

    package = Path(lockstep.__file__).parent
    reading = re.compile(r"""(environ(\.get\()?|environ\[|getenv\()["']LOCKSTEP_\w""")
    readers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if reading.search(path.read_text())
    }
    assert readers == set()
