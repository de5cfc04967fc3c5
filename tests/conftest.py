"""For every test: lockstep is imported before any test module can import jax."""

import signal

import lockstep  # noqa: F401

# Who starts the tests in the background may have had these ignored, and lockstep keeps to that.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
