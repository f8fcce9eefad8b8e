"""The emulated tests find a few sown errors; test_full_mutations.py sows all of them."""

import pytest
from mutations import BUILD, MUTATIONS, SAMPLE, run_mutation

pytestmark = pytest.mark.skipif(not (BUILD / "tests/bin/emulated_races").exists(),
                                reason="built with other sanitizers: nothing for ThreadSanitizer")


@pytest.mark.parametrize("name", SAMPLE)
def test_sown_error_is_found(name):
    mutation = next(m for m in MUTATIONS if m.name == name)
    code, output = run_mutation(mutation)
    assert code != 0, f"not found by the tests of {mutation.test}\n{output}"
    if mutation.tsan:
        assert "data race" in output, output


def test_there_are_enough_and_all_differ():
    assert len(MUTATIONS) >= 20
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)
    assert len({(m.file, m.old, m.new) for m in MUTATIONS}) == len(MUTATIONS)


def test_the_sample_exists():
    assert not set(SAMPLE) - {m.name for m in MUTATIONS}
