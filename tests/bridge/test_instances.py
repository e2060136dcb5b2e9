"""Objects are found by their class, whatever the collector was told to leave out."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from tfmem.bridge import instances

class Kind: pass
class Derived(Kind): pass

one, other = Kind(), Derived()
assert {*instances.instances(Kind)} == {one, other}
assert instances.instances(Derived) == [other]
gc.freeze()
assert {*instances.instances(Kind)} == {one, other}
assert not gc.get_freeze_count()
instances.freeze()
assert gc.get_freeze_count() and not instances.instances(Kind)
younger = Kind()
assert instances.instances(Kind) == [younger] and gc.get_freeze_count()
gc.freeze()
assert {*instances.instances(Kind)} == {one, other, younger}
assert not gc.get_freeze_count()
"""
"""In a process of its own, because what is frozen is the process's."""


def test_what_others_froze_is_found_and_what_was_left_out_is_not() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
