"""Every configuration of every list of kernels/list, compiled for sm_80 and sm_90 (`make full`; about an hour on two cores)."""
import pytest

FAMILIES = ["pack_key", "pack_value", "key_scores", "value_mix", "dequantise_key", "dequantise_value"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_listed_configurations_compile_without_spills(nvcc, driver, tmp_path, family, arch):
    lines = driver("compile_proof", tmp_path, arch, 24, "@" + family).splitlines()
    assert len(lines) >= 256
    assert all(int(line.split()[3]) == 0 for line in lines)
