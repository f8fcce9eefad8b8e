"""Every configuration of every list of linear-1 and vector-1 (kernels/list) compiled for one architecture (`make full`; a quarter of an
hour each on two cores)."""
FAMILIES = ["pack_key", "pack_value", "key_scores", "value_mix", "dequantise_key", "dequantise_value"]


def check(driver, folder, family, arch):
    lines = driver("compile_proof", folder, arch, 24, "@" + family, "@vector:" + family).splitlines()
    assert len(lines) >= 256 + 16
    for line in lines:
        *_, spill, _, min_blocks, stated = line.split()
        assert spill == "0" and min_blocks == stated, line
