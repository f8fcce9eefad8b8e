"""All listed configurations compile for sm_80 without spills."""
import full_proof
import pytest


@pytest.mark.parametrize("family", full_proof.FAMILIES)
def test_all_listed_configurations(nvcc, driver, tmp_path, family):
    full_proof.check(driver, tmp_path, family, "sm_80")
