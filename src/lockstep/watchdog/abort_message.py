"""What the job fails with, in words: from the records, and from how a process has ended."""

from __future__ import annotations

from lockstep import _config, _words
from lockstep._run_files import ErrorRecord, Exit
from lockstep._stderr import complain
from lockstep.engine import bindings
from lockstep.flight_recorder import diagnose, format, text_report

_MAX_TEXT = 980
"""What an exception has room for, less what is put in front."""


def proof(found: diagnose.Diagnosis) -> str:
    """The text of the exception, where the records prove a fault."""
    return "lockstep: " + text_report.short(found, _MAX_TEXT)


def beside(words: str, found: diagnose.Diagnosis) -> str:
    """``words``, and what the records add to them."""
    if found.kind is diagnose.Kind.NOTHING:
        return words
    return f"{words}\n{text_report.short(found, max(0, _MAX_TEXT - len(words.encode())))}"


def proof_or(words: str, found: diagnose.Diagnosis) -> str:
    return proof(found) if found.kind.is_fault else beside(words, found)


def fail(text: str, found: diagnose.Diagnosis) -> None:
    """Fails the job with ``text``, which says what was ``found``.

    What an exception has no room for is printed here, where no launcher prints the whole report.
    """
    bindings.abort(text)
    config = _config.current()
    # A process with an agent is started by `lockstep worker`, which prints no report.
    launched = config.run_dir is not None and config.agent is None
    if _words.is_cut(text) and not launched and bindings.abort_text() == text:
        complain(text_report.table(found))


def how_it_ended(
    record: format.ProcessRecord, ending: Exit | None, error: ErrorRecord | None = None
) -> str:
    """Half a sentence about a process that has ended."""
    if error is not None:
        return f"failed{_after(record)}: {error.summary}"
    if ending is not None and ending.is_seen:
        return ending.words(_after(record))
    if record.state == bindings.Leaving.FAILED:
        return f"failed{_after(record)}"
    return f"died{_after(record)}; only its parent process knows how"


def _after(record: format.ProcessRecord) -> str:
    count = max((ring.written for ring in record.rings), default=0)
    return f" after {count} collective{'' if count == 1 else 's'}" if count else ""
