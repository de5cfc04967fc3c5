"""Finding the coordinator on one host when the launcher names none."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from lockstep._errors import LaunchError
from lockstep.bootstrap import cluster_env, rendezvous
from lockstep.bootstrap.cluster_env import RankInfo
from lockstep.system import port_reservation
from processes import run_processes


def place(rank: int, size: int, local_size: int | None = None) -> RankInfo:
    return RankInfo(rank, size, rank, local_size or size, None, "MPICH (PMI)")


ASK = """
import sys
from lockstep.bootstrap import rendezvous
from lockstep.bootstrap.cluster_env import RankInfo
rank, size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
try:
    place = RankInfo(rank, size, rank, size, None, "test")
    print(rendezvous.coordinator(place, seconds))
except Exception as error:
    print(type(error).__name__, error)
"""


def together(ranks: list[int], size: int, seconds: float, shell: bool = False) -> list[str]:
    """What processes with these ranks find, started by this one as a launcher would."""
    environs = [{"PMI_RANK": str(rank), "PMI_SIZE": str(size)} for rank in ranks]
    args = [[str(rank), str(size), str(seconds)] for rank in ranks]
    prefix = ["sh", "-c", '"$@"; true', "sh"] if shell else []
    return [each.stdout.strip() for each in run_processes(ASK, environs, args, prefix=prefix)]


@pytest.mark.parametrize("shell", [False, True])
def test_all_processes_find_the_same_address(shell: bool) -> None:
    found = together([2, 0, 1], 3, 30, shell)
    assert len(set(found)) == 1
    assert found[0].startswith("127.0.0.1:")


def test_a_process_that_does_not_come_is_reported_by_all() -> None:
    found = together([0, 2], 3, 1.0)
    assert found[0].startswith("LaunchError process 0 of 3 waited in vain for 1 other(s)")
    (alone,) = together([1], 2, 0.5)
    assert alone.startswith("LaunchError process 1 of 2 waited in vain for process 0")


def test_several_hosts_need_an_address_from_the_user() -> None:
    with pytest.raises(LaunchError, match=r"MPICH \(PMI\) does not say .* Set LOCKSTEP_COORDINAT"):
        rendezvous.coordinator(place(0, 4, local_size=2))
    with pytest.raises(LaunchError, match="not all 4 processes are known to be on this host"):
        rendezvous.coordinator(RankInfo(0, 4, None, None, None, "MPICH (PMI)"))


def test_the_launcher_is_the_nearest_ancestor_without_our_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(pid: int, parent: int, environ: bytes | None) -> None:
        (tmp_path / str(pid)).mkdir()
        fields = ["S", str(parent), *["0"] * 17, str(1000 + pid)]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) (b c) {' '.join(fields)}")
        if environ is not None:
            (tmp_path / str(pid) / "environ").write_bytes(environ)

    own = os.getppid()
    process(own, 77_777_771, b"HOME=/h\0PMI_RANK=1\0")
    process(77_777_771, 77_777_772, b"PMI_RANK=1\0X=2\0")
    process(77_777_772, 1, b"HOME=/h\0")
    for name in cluster_env.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_RANK", "1")
    assert rendezvous.launcher_identity(tmp_path) == "77777772-77778772"
    (tmp_path / "77777772" / "environ").unlink()  # root's: cannot be read
    assert rendezvous.launcher_identity(tmp_path) == "77777772-77778772"


def test_a_second_program_under_the_same_launcher_waits_for_the_name() -> None:
    name = f"\0lockstep-{os.getuid()}-{rendezvous.launcher_identity()}"
    with socket.socket(socket.AF_UNIX) as earlier:
        earlier.bind(name)
        ended: list[str] = []

        def end() -> None:
            ended.append("the earlier one")
            earlier.close()

        threading.Timer(0.3, end).start()
        assert rendezvous.coordinator(place(0, 1), 20).startswith("127.0.0.1:")
        assert ended


def test_a_reserved_port_cannot_be_bound_by_another() -> None:
    with port_reservation.reserve() as held:
        host, port = port_reservation.address(held).split(":")
        with socket.socket() as outsider, pytest.raises(OSError, match="in use"):
            outsider.bind((host, int(port)))
        # The coordination service binds beside it, and gets the connections.
        with socket.socket() as service:
            service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            service.bind((host, int(port)))
            service.listen()
            with socket.create_connection((host, int(port)), 5), service.accept()[0]:
                pass
