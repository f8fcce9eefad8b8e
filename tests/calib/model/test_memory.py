"""available_memory(): the least of the system's, the control groups' and the address space's limits."""
import resource
import subprocess

from support import BUILD

PROBE = BUILD / "tests/bin/memory_probe"
MIB = 1 << 20


def probe(root, address_space=None):
    limit = None if address_space is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    return int(subprocess.run([str(PROBE), str(root)], capture_output=True, text=True, check=True, preexec_fn=limit).stdout)


def put(root, **files):
    """A made /proc and /sys; 1 GiB available, of a process of 10 anonymous pages."""
    files = {"proc/meminfo": f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {1 << 20} kB\n", "proc/self/statm": "900 30 20 0 0 0 0\n",
             **{name.replace("__", "/"): text for name, text in files.items()}}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


OWN = 10 * resource.getpagesize()


def test_memory_that_is_available_without_the_page_cache(tmp_path):
    assert probe(put(tmp_path)) == (1 << 30) + OWN


def test_F67_control_groups_v2(tmp_path):
    put(tmp_path, **{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
                     "sys/fs/cgroup/a/memory.max": f"{300 * MIB}\n", "sys/fs/cgroup/a/memory.current": f"{120 * MIB}\n",
                     "sys/fs/cgroup/a/memory.stat": f"anon 7\ninactive_file {20 * MIB}\n"})
    assert probe(tmp_path) == 200 * MIB + OWN  # the limit is that of the group above; dropped page cache is free


def test_F67_control_groups_v2_inside_a_container(tmp_path):
    put(tmp_path, **{"proc/self/cgroup": "0::/docker/of/the/host\n", "sys/fs/cgroup/memory.max": f"{50 * MIB}\n",
                     "sys/fs/cgroup/memory.current": f"{60 * MIB}\n"})
    assert probe(tmp_path) == OWN


def test_F67_control_groups_v1(tmp_path):
    put(tmp_path, **{"proc/self/cgroup": "7:cpu,cpuacct:/x\n5:memory:/job\n",
                     "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                     "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{400 * MIB}\n",
                     "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{100 * MIB}\n",
                     "sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file {MIB}\n"})
    assert probe(tmp_path) == 301 * MIB + OWN


def test_F68_address_space(tmp_path):
    assert probe(put(tmp_path), address_space=900 * MIB) == 900 * MIB - 900 * resource.getpagesize() + OWN


def test_the_real_machine():
    assert 16 * MIB < probe("") < 1 << 50
