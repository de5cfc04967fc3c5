"""The watchdog: a thread in each process that finds out why a collective does not come to its end.

The engine compares what it can see in passing (native/core/collective_context.cc). It does not know
that a peer has died, what the peer does instead, or the lines of the user's program. All that is in
the records that the processes keep (native/recorder/recorder.h), and the records of one host can be
read by all. So the engine notifies when a rank waits long or finds a difference, and this thread
reads all records, draws the conclusion (`lockstep.flight_recorder`), and fails the job with it.
Peers' deaths come from the system (a pidfd each), not from a heartbeat. What happens on other hosts
their watchdogs report (`lockstep.watchdog.remote`), and the engine that a connection is lost.

Why a thread and not a process: it needs this process's compiled programs for the lines, and must
not outlive it. It sleeps in poll(); its calls into JAX are the lists of live executables and of
live arrays, no more. A process whose main thread holds the GIL for long cannot read the records;
the others can, and the engine's deadline needs no Python.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._run_files import PROGRAMS_VARY, ErrorRecord, Exit
from lockstep._stderr import complain
from lockstep.engine import bindings
from lockstep.flight_recorder.diagnose import Diagnosis
from lockstep.job import current_job
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.system import exit_status
from lockstep.watchdog import (
    abort_message,
    ending,
    first_to_judge,
    program_equality,
    shutdown_hook,
)
from lockstep.watchdog.own_waits import OwnWaits
from lockstep.watchdog.program_equality import Comparison
from lockstep.watchdog.program_questions import ProgramQuestions
from lockstep.watchdog.record_reader import Records, SiteWriter
from lockstep.watchdog.remote import RemoteHosts
from lockstep.watchdog.scanner import Scanner
from lockstep.watchdog.without_collectives import Comparison as WithoutCollectives

_POLL_SECONDS = 1.0
_STOP_TIMEOUT = 10.0
"""Seconds that the end of the program waits for the watchdog, which may be asking for stacks."""
_PAUSE_SECONDS = 0.01
_HOST_REPORT_TIMEOUT = 0.25
"""Seconds for the processes of a lost process's host to report how it died."""


class Watchdog(threading.Thread):
    """Watches one process's side of the job until the process ends."""

    def __init__(
        self,
        peers: Sequence[Peer],
        records: Records,
        sites: SiteWriter,
        comparison: Comparison,
        without_collectives: WithoutCollectives,
        remote: RemoteHosts | None,
        store: Store,
    ) -> None:
        super().__init__(name="lockstep-watchdog", daemon=True)
        self._peers = peers
        self._process = records.own
        self._records = records
        self._sites = sites
        self._comparison = comparison
        self._remote = remote
        self._store = store
        self._alarm = bindings.alarm_fd()
        self._poll = select.poll()
        self._poll.register(self._alarm, select.POLLIN)
        self._has_devices = False
        self._dead: list[Peer] = []
        self._by_pidfd: dict[int, Peer] = {}
        here = peers[self._process].host_id
        for peer in peers:
            if peer.host_id == here and peer.process != self._process:
                self._watch_peer(peer)
        self._connected = [peer for peer in peers if peer.host_id != here]
        self._over = False
        self._hurried = False
        self._scanner = Scanner(peers, records, sites, comparison, remote)
        self._has_differed = ""
        """The error, where programs differ in what no rank was told in time."""
        self._questions = ProgramQuestions(
            comparison, records, self._refresh, self._note_that_programs_vary
        )
        self._without_collectives: WithoutCollectives | None = without_collectives

    def _watch_peer(self, peer: Peer) -> None:
        try:
            pidfd = os.pidfd_open(peer.pid)
        except ProcessLookupError:
            self._dead.append(peer)
            return
        except OSError:
            return  # no descriptor left: should it die, a rank that waits for it notifies
        self._by_pidfd[pidfd] = peer
        self._poll.register(pidfd, select.POLLIN)

    def hurry(self) -> None:
        """Has it look for the lines of what this process has met, at once."""
        self._hurried = True
        self.notify()

    def notify(self) -> None:
        os.eventfd_write(self._alarm, 1)

    def note_devices(self) -> None:
        """JAX has received all devices of the job: it waits for no process any more."""
        self._has_devices = True

    def hold(self, program: Any) -> None:
        # The compilation has succeeded, and goes on. A forked child has no watchdog thread.
        with contextlib.suppress(Exception):
            if self.is_alive():
                self._sites.hold(program)

    def run(self) -> None:
        bindings.set_watched(True)
        is_last = False
        while not is_last:
            is_last = self._over  # so that what was asked before the end has its answer
            try:
                self._poll_once()
            except Exception as error:
                # An error here must not end the program: the engine's own errors and its deadline
                # remain.
                complain(f"the watchdog failed: {error!r}")
                break
        bindings.set_watched(False)
        self._sites.close()
        while self._by_pidfd:
            os.close(self._by_pidfd.popitem()[0])

    def stop(self) -> None:
        """Ends the thread, before the interpreter ends.

        A daemon thread that comes back into an interpreter that ends is unwound by force, and
        jaxlib's functions, one of which it may be in, abort the process when that happens.
        """
        if self.is_alive():
            self._over = True
            self.notify()
            self.join(_STOP_TIMEOUT)
            if not self.is_alive() and not shutdown_hook.has_failed():
                with contextlib.suppress(Exception):  # the service is gone
                    self._compare_without_collectives(is_last=True)
                self._fail_where_programs_differed(program_equality.TIMEOUT_SECONDS)
                if self._has_differed:  # and the program has used no collective since
                    folder = self._records.folder(self._process)
                    ending.end_with(self._has_differed, folder, has_ended=True)

    def tell_end(self, how: str) -> None:
        if self._remote:
            self._remote.tell_end(how)

    def stop_responding(self) -> None:
        """Leaves what others ask, and what is compiled from now on, to the next watchdog."""
        self._without_collectives = None
        if self._remote:
            self._remote.stop()

    def close(self) -> None:
        """Releases what it reads; call it once it has stopped."""
        if self._remote is None or self._remote.stop():
            self._records.close()

    def _poll_once(self) -> None:
        ready = self._poll.poll(0 if self._dead or self._over else _POLL_SECONDS * 1000)
        self._refresh()
        for fd, _ in ready:
            if fd == self._alarm:
                self._on_alarm()
            else:
                self._poll.unregister(fd)
                try:
                    self._on_death(self._by_pidfd.pop(fd), fd)
                finally:
                    os.close(fd)
        while self._dead:
            self._on_death(self._dead.pop(), -1)
        self._fail_where_programs_differed()
        if not self._has_devices and bindings.abort_text():
            self._has_devices = True
            _jax_compat.end_wait_for_devices(self._store.client, len(self._peers))

    def _refresh(self) -> None:
        self._sites.update()
        # Without the service nothing can be compared, and the job is about to end.
        with contextlib.suppress(Exception):
            self._comparison.publish(self._sites.digests, self._sites.programs)
            self._compare_without_collectives()

    def _compare_without_collectives(self, is_last: bool = False) -> None:
        compared = self._without_collectives
        found = compared.difference(is_last) if compared else None
        if found is None or bindings.abort_text():
            return
        if _config.current().check_programs == _config.WARN:
            complain(f"warning: {found}.")
            return
        self._records.note_difference(found)
        self._fail_with(str(found))

    def _fail_where_programs_differed(self, seconds: float = 0.0) -> None:
        if not bindings.abort_text() and (found := self._questions.late_difference(seconds)):
            self._fail_with(found)

    def _fail_with(self, difference: str) -> None:
        diagnosis = self._scanner.diagnose()
        self._has_differed = abort_message.proof_or(f"lockstep: {difference}", diagnosis)
        if not self._over:
            abort_message.fail(self._has_differed, diagnosis)

    # A rank notifies

    def _on_alarm(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._alarm, 8)
        hurried, self._hurried = self._hurried, False
        self._find_losses()
        if self._respond_to_requests():
            pass  # a rank that still waits notifies again
        elif hurried:
            pass  # the lines are up to date by now, and a rank that waits notifies again
        elif self._scanner.is_due() and not bindings.abort_text():
            self._scanner.scan()

    def _respond_to_requests(self) -> bool:
        """Whether there were any. Several may have come with one notification."""
        some = False
        while request := bindings.request():
            some = True
            number, text = request
            if text.startswith("programs "):
                self._compare_programs(number, *map(int, text.split()[1:]))
            elif text.startswith("deadline "):
                self._explain_deadline(text.removeprefix("deadline "))
                bindings.respond(number, True)
            else:
                self._explain(text)
                bindings.respond(number, True)
        return some

    def _compare_programs(
        self, number: int, execution: int, channel: int, peer: int, theirs: int, their_channel: int
    ) -> None:
        same = self._questions.answer(execution, peer, theirs)
        if not bindings.respond(number, same) and same is False:
            # The rank has gone on without this answer.
            self._questions.ask_again(execution, peer, theirs)

    def _note_that_programs_vary(self) -> None:
        with contextlib.suppress(Exception):
            self._comparison.note_that_programs_vary()
        _run_files.leave_note(self._records.folder(self._process), PROGRAMS_VARY)

    def _explain(self, text_of_engine: str) -> None:
        """Fails the job with more than the engine knows of a difference that it has found."""
        found = self._scanner.diagnose_with_lines(by_numbers=True)
        text = self._with_ends(text_of_engine)
        abort_message.fail(abort_message.proof_or(text, found), found)

    def _with_ends(self, text: str) -> str:
        """``text`` with what programs of other hosts have said of their end."""
        for process, how in (self._remote.left if self._remote else {}).items():
            ended = f"{self._peers[process].label}, whose program has ended"
            text = text.replace(ended, f"{ended} by {how}")
        return text

    def _explain_deadline(self, text_of_engine: str) -> None:
        """Adds the lines of the program, and what was called before, to the missing processes."""
        # The engine waits 5 s for this, and a question to such a host may take a second.
        is_cut_off = bool(current_job.part(OwnWaits).unanswered)
        found = self._scanner.diagnose(asks_all=not is_cut_off)
        text = text_of_engine
        if cause := self._unanswered(found) or self._scanner.stopped(found):
            text = f"lockstep: {cause}: {text.removeprefix('lockstep: ')}"
        abort_message.fail(abort_message.beside(text, found), found)

    def _unanswered(self, found: Diagnosis) -> str:
        """Which process gets no answer from another host; "": none is known to.

        The process that another one waits for may wait itself, for one behind a broken link.
        """
        for row in found.rows:
            if hosts := row.process.waits.unanswered:
                return f"{self._peers[row.index].label} cannot reach {hosts}, which does not answer"
        return ""

    # A process ends

    def _on_death(self, peer: Peer, pidfd: int) -> None:
        self._scanner.scan_at_once()
        record = self._records.record(peer.process)
        launched = self._records.folder(peer.process) is not None
        written = (lambda: self._records.ending(peer.process)[1]) if launched else None
        ending = exit_status.ending(pidfd, written)
        clean = record.state == bindings.Leaving.ENDED and (ending is None or ending.exit_code == 0)
        if clean or self._has_failed_after_pause(peer):
            return  # a rank that waits for it notifies
        unknown = Exit(reason="it died, and only its parent process knows how")
        error, _ = self._records.ending(peer.process)
        how = abort_message.how_it_ended(record, ending, error)
        self._blame(peer, ending or unknown, how, error)

    def _is_first(self, peer: Peer) -> bool:
        return first_to_judge.is_first(self._process, peer.process, self._peers)

    def _has_failed_after_pause(self, peer: Peer) -> bool:
        """Leaves the death of ``peer`` to others for a while; whether the job has failed."""
        pause = 0.0 if self._is_first(peer) else first_to_judge.WAIT_SECONDS
        end = time.monotonic() + pause
        while not bindings.abort_text() and time.monotonic() < end:
            time.sleep(_PAUSE_SECONDS)
        return bool(bindings.abort_text())

    def _blame(self, peer: Peer, ending: Exit, how: str, error: ErrorRecord | None) -> None:
        self._records.gone[peer.process] = error, ending
        found = self._scanner.diagnose(asks_all=self._is_first(peer))
        words = abort_message.proof_or(f"lockstep: {peer.label} {how}.", found)
        abort_message.fail(words, found)

    def _find_losses(self) -> None:
        for peer in [peer for peer in self._connected if bindings.is_lost(peer.process)]:
            self._connected.remove(peer)
            self._on_loss(peer)

    def _on_loss(self, peer: Peer) -> None:
        """The connection from a process of another host has ended: asks the others of that host."""
        self._scanner.scan_at_once()
        if self._has_failed_after_pause(peer):
            return
        end = time.monotonic() + _HOST_REPORT_TIMEOUT
        received = None
        while (left := end - time.monotonic()) > 0 and not (received and received.exit):
            if bindings.abort_text() or not (self._remote and self._remote.reaches(peer)):
                break
            received = self._remote.report_of(peer, left)
            time.sleep(_PAUSE_SECONDS)
        if bindings.abort_text():
            return
        how = "has ended, or its host cannot be reached"
        ending = Exit(reason=f"it {how}; its own output may tell why")
        error = received.error if received else None
        if received and (received.exit or error):
            ending = received.exit or ending
            record = received.record or self._records.record(peer.process)
            how = abort_message.how_it_ended(record, ending, error)
        # The diagnosis asks again, and gets no answer where that host has ended meanwhile.
        self._blame(peer, ending, how, error)
