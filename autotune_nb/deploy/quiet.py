"""Keeps TVM's virtual machine from printing a meaningless warning for each constant."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_NOISE = (b"Warning: Scope Saving:", b"Warning: Scope Loaded:")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what is written to standard error meanwhile; pass on all but the noise after.

    TVM writes its warnings past Python, so this is done with the file descriptor itself.
    """
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:  # no standard error at all
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            rest = [line for line in held if not any(noise in line for noise in _NOISE)]
            with contextlib.suppress(OSError):
                os.write(2, b"".join(rest))
