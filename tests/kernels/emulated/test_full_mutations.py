"""Every error sown into the device text is found by the emulated tests, and the text as it is passes them."""

import pytest
from mutations import BUILD, MUTATIONS, run_mutation, run_unmutated

pytestmark = pytest.mark.skipif(not (BUILD / "tests/bin/emulated_races").exists(),
                                reason="built with other sanitizers: nothing for ThreadSanitizer")

BUILDS = sorted({(m.test, m.head_dim, m.tsan) for m in MUTATIONS})


@pytest.mark.parametrize("test,head_dim,tsan", BUILDS)
def test_text_as_it_is_passes(test, head_dim, tsan):
    code, output = run_unmutated(test, head_dim, tsan)
    assert code == 0, output


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_sown_error_is_found(mutation):
    code, output = run_mutation(mutation)
    assert code != 0, f"not found by the tests of {mutation.test}\n{output}"
    if mutation.tsan:
        assert "data race" in output, output
