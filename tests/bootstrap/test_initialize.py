"""`lockstep.initialize`, bare `jax.distributed.initialize`, and how they find their place."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import pytest

import lockstep
from lanes import sample
from lockstep.engine import bindings
from processes import Ended, assert_all_well, free_port, python, run_processes
from support import run_lockstep

# Every process of a job prints one line of JSON; {} is filled in by each test.
REPORT = """
import json
from lockstep.engine import bindings
x = jax.pmap(lambda a: jax.lax.psum(a, "i"), "i")(
    jax.numpy.ones((jax.local_device_count(),)))
print("report", json.dumps({
    "place": [jax.process_index(), jax.process_count()],
    "devices": jax.device_count(),
    "sum": float(x.addressable_data(0)[0]),
    "calls": bindings.counts()["all_reduce"],
}))
"""


def reports(ended: Sequence[Ended]) -> list[dict]:
    assert_all_well(ended)
    lines = [line for end in ended for line in end.stdout.splitlines()]
    return [json.loads(line.removeprefix("report ")) for line in lines if "report " in line]


def places(env: Mapping[str, str]) -> tuple[list[dict[str, str]], list[list[str]]]:
    """(environments, arguments) of a job whose two processes are started by themselves."""
    address = f"127.0.0.1:{free_port()}"
    return [dict(env)] * 2, [[address, "2", str(i)] for i in range(2)]


def jax_arguments() -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(jax.distributed.initialize).parameters)


def test_every_argument_of_jax_is_taken_with_its_default() -> None:
    ours = dict(inspect.signature(lockstep.initialize).parameters)
    theirs = jax_arguments()
    # In the same order too: the first three are often given by position. An older jax has fewer.
    assert [name for name in ours if name in theirs] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name


def test_every_argument_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    wanted = {name: object() for name in jax_arguments()}
    monkeypatch.setattr(jax.distributed, "initialize", lambda **values: given.update(values))
    lockstep.initialize(**wanted, check=False)  # type: ignore[arg-type]
    assert given == wanted
    given.clear()
    lockstep.initialize("host:1", 2, 1, check=False, argument_of_the_future=3)
    # What is left out is left to jax: its default may change, and older ones know fewer arguments.
    assert given == {
        "coordinator_address": "host:1",
        "num_processes": 2,
        "process_id": 1,
        "argument_of_the_future": 3,
    }


def test_an_argument_that_this_jax_does_not_take_is_named() -> None:
    with pytest.raises(TypeError, match=r"of jax \d.* does not take argument_of_the_future\."):
        lockstep.initialize("host:1", 2, 1, check=False, argument_of_the_future=3)


def certificates(folder: Path) -> dict[str, str]:
    """Arguments for mutual TLS: an authority, and one certificate that all processes share."""
    uri = "spiffe://lockstep.test/"
    (folder / "names").write_text(f"subjectAltName=URI:{uri}process\n")
    new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for command in (
        f"req -x509 {new} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"req {new} -subj /CN=process -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
        "-extfile names -out certificate.pem",
    ):
        run = ["openssl", *command.split()]
        subprocess.run(run, cwd=folder, check=True, capture_output=True, timeout=50)
    files = {"cert_file": "certificate.pem", "key_file": "key.pem", "ca_file": "ca.pem"}
    paths = {f"mtls_{name}": str(folder / file) for name, file in files.items()}
    return {**paths, "mtls_peer_uri_prefix": uri}


def test_mutual_tls_of_the_coordination_service(tmp_path: Path) -> None:
    """Process 1 gets in with the certificate; without one it does not."""
    if "mtls_cert_file" not in jax_arguments():
        with pytest.raises(TypeError, match="does not take mtls_cert_file"):
            lockstep.initialize("host:1", 2, 1, check=False, mtls_cert_file="x")
        return
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl, which makes the certificates, is not on this machine")
    program = f"""
import lockstep
lockstep.initialize(verify_secure_credentials=True, **{certificates(tmp_path)!r})
import jax
{REPORT}"""
    result = run_lockstep([], program, timeout=100, forked=True)
    for process in (0, 1):
        [line] = [x for x in result.by_process[process] if x.startswith("report ")]
        assert json.loads(line.removeprefix("report "))["sum"] == 2.0
    stranger = program.replace("lockstep.initialize(", "import os\nlockstep.initialize(", 1)
    stranger = stranger.replace(
        "lockstep.initialize(verify",
        "if os.environ['LOCKSTEP_PROCESS_ID'] == '1':\n"
        "    lockstep.initialize(initialization_timeout=10)\n"
        "lockstep.initialize(verify",
    )
    refused = run_lockstep([], stranger, timeout=100, expect_status=None, forked=True)
    assert refused.status != 0, refused
    assert "report" not in refused.stdout


def test_a_process_without_a_launcher_is_told_how_to_launch_it() -> None:
    ended = python("import lockstep; lockstep.initialize()")
    assert ended.status == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("lockstep.InitializationError: ")
    assert "does not know its place in a job" in last
    for words in ("lockstep run -n N", "lockstep worker", "coordinator_address", "process_id"):
        assert words in last


@sample(
    "call", ["lockstep.initialize(address, n, i)", "jax.distributed.initialize(address, n, i)"], 1
)
def test_a_program_that_starts_its_own_processes_uses_the_engine(call: str) -> None:
    program = f"""
import lockstep
import sys, jax
address, n, i = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
{call}
{REPORT}"""
    environs, args = places({"JAX_NUM_CPU_DEVICES": "2"})
    said = reports(run_processes(program, environs, args))
    assert said == [{"place": [i, 2], "devices": 4, "sum": 4.0, "calls": 2} for i in range(2)]


@pytest.mark.full
def test_inside_a_slurm_allocation_the_launchers_place_wins() -> None:
    # An interactive allocation of 8 tasks, in which somebody types `lockstep run -n 2`.
    allocation = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOBID": "77",
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "5",
        "SLURM_STEP_NODELIST": "node[1-4]",
        "SLURM_STEP_NUM_TASKS": "8",
    }
    program = f"import jax\njax.distributed.initialize()\n{REPORT}"
    result = run_lockstep([], program, d=1, env=allocation)
    for process in range(2):
        assert f'"place": [{process}, 2]' in result.by_process[process][-1], result


# Each case: what process 1 has that process 0 has not, and the columns that must differ.
DISAGREEMENTS = [
    ({"JAX_PLATFORMS": ""}, {"platforms": ("cpu", "default")}),
    ({"JAX_NUM_CPU_DEVICES": "3"}, {"devices": ("2", "3")}),
    ({"FAKE": "lockstep.__version__ = '9.9'"}, {"lockstep": (lockstep.__version__, "9.9")}),
    (
        {"FAKE": "lockstep.engine.bindings.interface = lambda: 'none'"},
        {"engine": (bindings.interface(), "none")},
    ),
    (
        {"FAKE": "jax.config.update('jax_cpu_collectives_implementation', 'gloo')"},
        {"collectives": ("lockstep", "gloo")},
    ),
    (
        {"FAKE": "jax.__version__ = '0.99'", "JAX_ENABLE_X64": "1"},
        {"jax": (jax.__version__, "0.99"), "x64": ("False", "True")},
    ),
    ({"PYTHONHASHSEED": "7"}, {"PYTHONHASHSEED": ("random", "7")}),
    (
        {"LOCKSTEP_LINALG_LINK": "20.0us,1GB/s"},
        {"LOCKSTEP_LINALG_LINK": ("none", "20us,1GB/s")},
    ),
    (
        {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
        {"matmul precision": ("default", "highest")},
    ),
    (
        {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
        {"random numbers": ("threefry2x32/True", "rbg/True")},
    ),
]


@sample(("theirs", "columns"), DISAGREEMENTS, 5, ids=["+".join(c) for _, c in DISAGREEMENTS])
def test_a_disagreement_is_shown_as_a_table_on_every_process(
    theirs: dict[str, str], columns: dict[str, tuple[str, str]]
) -> None:
    program = """
        import lockstep, os, sys
        import jax
        exec(os.environ.get("FAKE", ""))
        lockstep.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    """
    environs, args = places({"JAX_NUM_CPU_DEVICES": "2", "PYTHONHASHSEED": "random"})
    for ended in run_processes(program, [environs[0], {**environs[1], **theirs}], args):
        assert ended.status != 0, ended
        assert "DisagreementError: the processes of this job differ in " in ended.stderr, ended
        lines = ended.stderr.splitlines()
        header = next(line for line in lines if re.match(r" +process +", line))
        for name in columns:
            assert name in header, ended
        wanted = [
            [str(process), *(values[process] for values in columns.values())] for process in (0, 1)
        ]
        rows = [line.split() for line in lines if re.match(r"  [01] +", line)]
        assert rows == wanted, ended
        assert "Usual causes" in ended.stderr


@pytest.mark.full
def test_random_hashes_of_strings_are_a_warning_of_process_0() -> None:
    program = """
        import lockstep, sys
        lockstep.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    """
    for seed, warns in (("", True), ("3", False)):
        environs, args = places({"PYTHONHASHSEED": seed})
        ended = run_processes(program, environs, args)
        assert_all_well(ended)
        assert ["PYTHONHASHSEED=0" in end.stderr for end in ended] == [warns, False], ended


@pytest.mark.full
def test_processes_whose_engines_differ_share_no_memory() -> None:
    program = """
        import lockstep, os, sys
        exec(os.environ.get("FAKE", ""))
        import jax
        jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
        jax.devices()
    """
    environs, args = places({})
    other = {**environs[1], "FAKE": "lockstep.engine.bindings.interface = lambda: '12345678'"}
    for ended in run_processes(program, [environs[0], other], args):
        assert ended.status != 0, ended
        assert "the processes of this job differ in engine:" in ended.stderr, ended
        assert f"  0        {lockstep.__version__}/{bindings.interface()}\n" in ended.stderr, ended
        assert f"  1        {lockstep.__version__}/12345678\n" in ended.stderr, ended


def test_an_engine_is_told_by_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(*names: str) -> str:
        path = tmp_path / "engine.so"
        path.write_bytes(b"\0" + b"\0".join(name.encode() for name in names) + b"\0")
        monkeypatch.setattr(bindings, "library_path", lambda: path)
        return bindings.interface.__wrapped__()

    one = of("lockstep_start", "lockstep_abort", "other")
    assert of("lockstep_abort", "another", "lockstep_start") == one
    assert of("lockstep_start", "lockstep_abort", "lockstep_hemv") != one
    (tmp_path / bindings.KERNELS).write_bytes(b"\0lockstep_hemv\0")
    assert of("lockstep_start", "lockstep_abort") != one
    (tmp_path / "engine.so").unlink()
    assert bindings.interface.__wrapped__() == "none"


@pytest.mark.full
def test_hosts_that_share_no_memory_run_on_gloo_and_say_so_once() -> None:
    program = f"""
import lockstep
import sys, jax
jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
{REPORT}
assert jax.config.jax_cpu_collectives_implementation == "gloo"
"""
    _, args = places({})
    environs = [{"LOCKSTEP_HOST_ID": f"host {i}", "JAX_NUM_CPU_DEVICES": "2"} for i in range(2)]
    ended = run_processes(program, environs, args)
    assert [(r["sum"], r["calls"]) for r in reports(ended)] == [(4.0, 0)] * 2
    said = [line for end in ended for line in end.stderr.splitlines() if "lockstep" in line]
    assert len(said) == 1, said
    assert said[0].startswith("lockstep: the processes sit on 2 hosts (")
    assert "have no key, so this run uses gloo. For the engine: make a key file, " in said[0]
    assert said[0].endswith("set LOCKSTEP_KEY_FILE to its path for all processes.")
    assert said[0] in ended[0].stderr


@pytest.mark.full
def test_a_program_may_choose_gloo_itself() -> None:
    program = f"""
import lockstep
import sys, jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
lockstep.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
{REPORT}"""
    environs, args = places({})
    said = reports(run_processes(program, environs, args))
    assert [(r["sum"], r["calls"]) for r in said] == [(2.0, 0)] * 2


@pytest.mark.full
def test_uneven_devices_have_no_process_mesh() -> None:
    program = """
        import lockstep
        import sys, jax
        lockstep.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), check=False)
        try:
            lockstep.process_mesh()
        except ValueError as error:
            print(error)
    """
    environs, args = places({})
    environs = [{"JAX_NUM_CPU_DEVICES": str(i + 1)} for i in range(2)]
    ended = run_processes(program, environs, args)
    assert_all_well(ended)
    for end in ended:
        assert "the processes have different numbers of devices: {0: 1, 1: 2}." in end.stdout


def test_a_process_mesh_has_two_axes() -> None:
    with pytest.raises(ValueError, match=r"process_mesh has two axes; got the names \('x',\)\."):
        lockstep.process_mesh(("x",))  # type: ignore[arg-type]
