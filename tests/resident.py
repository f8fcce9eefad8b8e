"""Memory of a run from outside: its peak as /usr/bin/time has it, and what of it is its own and what is pages of files."""
import subprocess
import sys
import time


def watch(*command, interval=0.02, **kw):
    """Runs a command; {"peak", "anonymous", "file", "seconds"}: the largest resident set (exact, from the kernel), and the
    largest anonymous and file-backed parts of it (sampled). Fails as the command does.

    The command is started by a small process: a child's peak counts that of the process it was forked from."""
    script = ("import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL); print(p.pid, flush=True); "
              "_, status, usage = os.wait4(p.pid, 0); print(usage.ru_maxrss * 1024); sys.exit(os.waitstatus_to_exitcode(status))")
    start = time.perf_counter()
    starter = subprocess.Popen([sys.executable, "-c", script, *map(str, command)], stdout=subprocess.PIPE, text=True, **kw)
    pid = int(starter.stdout.readline())
    most = {"RssAnon": 0, "RssFile": 0}
    while starter.poll() is None:
        try:
            with open(f"/proc/{pid}/status") as status:
                for line in status:
                    name, _, rest = line.partition(":")
                    if name in most:
                        most[name] = max(most[name], int(rest.split()[0]) * 1024)
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(interval)
    if starter.wait() != 0:
        raise subprocess.CalledProcessError(starter.returncode, list(map(str, command)))
    return {"peak": int(starter.stdout.read()), "anonymous": most["RssAnon"], "file": most["RssFile"],
            "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    print({name: value if name == "seconds" else f"{value / 2**20:.1f} MiB" for name, value in watch(*sys.argv[1:]).items()})
