"""The line of a cell at which a process is, from faulthandler's text."""

from __future__ import annotations

from lockstep.notebook.places import place, still_running

STACKS = """Thread 0x00007f1 [ZMQbg/IO] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f0 [python3] (most recent call first):
  File "/site-packages/jax/_src/array.py", line 631 in _value
  File "In[3]", line 6 in meet
  File "In[5]", line 4 in <module>
  File "/site-packages/IPython/core/interactiveshell.py", line 3579 in run_code"""


def test_the_innermost_line_of_a_cell_and_what_it_calls() -> None:
    assert place(STACKS) == "In[3]:6 in meet, which calls _value (array.py:631)"
    own = STACKS.replace('  File "/site-packages/jax/_src/array.py", line 631 in _value\n', "")
    assert place(own) == "In[3]:6 in meet"
    top = own.replace('  File "In[3]", line 6 in meet\n', "")
    assert place(top) == "In[5]:4"


def test_a_process_that_runs_no_cell_or_cannot_answer_has_no_place() -> None:
    assert place(STACKS.replace("In[", "in[")) == ""
    assert place("No Python stacks: there is no process 5.") == ""


def test_equal_places_are_said_once() -> None:
    found = still_running({0: "In[5]:4", 1: "In[5]:6", 2: "In[5]:4", 3: ""})
    assert found == "[0,2] still run at In[5]:4; [1] still runs at In[5]:6; [3] still runs"
