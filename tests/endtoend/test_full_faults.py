"""Faults at every place where a verb writes, and fifty kills in a row (test_faults.py says what is asserted)."""
import errno

import pytest

from faults import killed_chain
from test_faults import ALL, check_failing, check_killed, files, library, undisturbed  # noqa: F401  (fixtures)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("verb", ALL)
def test_F43_every_call_fails_once(files, library, undisturbed, tmp_path, verb, code):  # noqa: F811
    check_failing(files, library, undisturbed, verb, tmp_path, code, share=5 if verb == "collect" else 1)


@pytest.mark.parametrize("verb", ALL)
def test_F45_killed_at_every_call(files, library, undisturbed, tmp_path, verb):  # noqa: F811
    check_killed(files, library, undisturbed, verb, tmp_path, share=3 if verb == "collect" else 1)


def test_F45_fifty_kills_in_a_row(files, tmp_path):  # noqa: F811
    assert killed_chain(files, tmp_path, 50, seed=2) == 50
