"""kvcc data, with a manifest whose mirrors are files on this machine."""
import fcntl
import hashlib
import json
import os
import pathlib
import resource
import subprocess
import zipfile

import pytest

BUILD = pathlib.Path(os.environ["KVCC_BUILD"])
PROGRAM = BUILD / "libexec" / "kvcc" / "kvcc-data"
TEXTS = {"train": b"= A =\n some train text \n" * 50, "test": "= B =\n test é\n".encode()}
ELSEWHERE = b"calibration text\n"


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Place:
    def __init__(self, folder):
        self.folder = folder
        self.cache, self.data = folder / "cache é", folder / "data"
        archive = folder / "the archive.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as z:
            for name, text in TEXTS.items():
                z.writestr(f"inner/{name}.raw", text)
        self.archive = archive.read_bytes()
        self.mirrors = [(folder / "absent.zip").as_uri(), archive.as_uri()]
        self.splits = [{"name": n, "file": f"{n}.raw", "bytes": len(t), "sha256": sha(t), "flavour": "raw",
                        "archive": "a.zip", "member": f"inner/{n}.raw"} for n, t in TEXTS.items()]
        self.splits.append({"name": "calibration", "file": "calibration.txt", "bytes": len(ELSEWHERE),
                            "sha256": sha(ELSEWHERE), "flavour": "tokens"})
        self.splits.append({"name": "evaluation", "file": "evaluation.txt", "bytes": 3, "sha256": sha(b"abc"),
                            "flavour": "raw", "otherwise": "test"})
        self.sha256 = sha(self.archive)
        self.environment = {k: v for k, v in os.environ.items() if k != "KVCC_DATA"}

    def run(self, *words, **more):
        manifest = {"schema_version": 1, "datasets": [{
            "name": "tiny", "title": "Tiny", "licence": "none", "folder": "tiny", "default": ["train", "calibration"],
            "archives": [{"file": "a.zip", "bytes": len(self.archive), "sha256": self.sha256, "mirrors": self.mirrors}],
            "splits": self.splits}]}
        path = self.folder / "manifest.json"
        path.write_text(json.dumps(manifest))
        return subprocess.run([PROGRAM, *words, "--manifest", path, "--cache-dir", self.cache], capture_output=True,
                              text=True, env=self.environment, **more)

    def states(self, *words):
        out = self.run(*words, "--json")
        assert out.returncode == 0, out.stderr
        document = json.loads(out.stdout)
        assert document["schema_version"] == 1
        return {s["name"].split(":")[1]: s for s in document["splits"]}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_fetch_goes_through_the_mirrors_and_is_done_once(place):
    assert {n: s["state"] for n, s in place.states("list").items()} == dict.fromkeys(
        ["train", "test", "calibration", "evaluation"], "absent")
    out = place.run("fetch", "tiny")
    assert out.returncode == 0, out.stderr
    assert "failed: curl" in out.stderr and place.mirrors[1] in out.stderr  # the first mirror is dead
    for name, text in TEXTS.items():
        assert (place.cache / "tiny" / f"{name}.raw").read_bytes() == text
    assert sorted(p.name for p in (place.cache / "tiny").iterdir()) == ["a.zip", "test.raw", "train.raw"]
    before = (place.cache / "tiny" / "train.raw").stat().st_mtime_ns
    again = place.run("fetch", "tiny")
    assert again.returncode == 0 and "downloading" not in again.stderr and "extracting" not in again.stderr
    assert (place.cache / "tiny" / "train.raw").stat().st_mtime_ns == before
    assert place.run("check", "tiny").returncode == 0


def test_one_split_is_fetched_alone(place):
    assert place.run("fetch", "tiny:test").returncode == 0
    assert place.states("list")["train"]["state"] == "absent" and place.states("list")["test"]["state"] == "present"


def test_nothing_reachable_exits_3_with_every_reason(place):
    place.mirrors = [(place.folder / "x.zip").as_uri(), "https://localhost:1/y.zip"]
    out = place.run("fetch", "tiny")
    assert out.returncode == 3
    assert "no mirror could be used" in out.stderr and "x.zip" in out.stderr and "localhost:1" in out.stderr
    assert "KVCC_DATA" in out.stderr
    assert not list((place.cache / "tiny").iterdir())
    error = json.loads(place.run("fetch", "tiny", "--json").stdout)["error"]
    assert error["code"] == 3 and "no mirror" in error["message"]


def test_a_mirror_with_another_file_is_passed_over(place):
    other = place.folder / "other.zip"
    other.write_bytes(place.archive[:-1] + b"x")
    place.mirrors = [other.as_uri(), place.mirrors[1]]
    out = place.run("fetch", "tiny")
    assert out.returncode == 0 and "another sha256" in out.stderr
    place.sha256 = "0" * 64  # now no mirror is right
    (place.cache / "tiny" / "train.raw").unlink()
    out = place.run("fetch", "tiny")
    assert out.returncode == 3 and not (place.cache / "tiny" / "train.raw").exists()


def test_a_damaged_file_is_found_and_fetched_again(place):
    assert place.run("fetch", "tiny").returncode == 0
    file = place.cache / "tiny" / "train.raw"
    file.write_bytes(b"X" + TEXTS["train"][1:])
    out = place.run("check", "tiny")
    assert out.returncode == 3 and str(file) in out.stderr
    assert place.run("fetch", "tiny").returncode == 0 and file.read_bytes() == TEXTS["train"]


@pytest.mark.parametrize("limit", [100, 300])
def test_F43_full_disk_is_named_and_leaves_what_was_there(place, limit):
    """Room is asked for before a download: for the archive, and for what comes out of it."""
    assert len(place.archive) > 100 and len(TEXTS["train"]) > 300
    if limit > 100:  # the archive is there; what comes out does not fit
        (place.cache / "tiny").mkdir(parents=True)
        (place.cache / "tiny" / "a.zip").write_bytes(place.archive)
    out = place.run("fetch", "tiny", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert out.returncode == 4 and "file size limit" in out.stderr and "needed" in out.stderr, out.stderr
    assert sorted(p.name for p in (place.cache / "tiny").iterdir()) == (["a.zip"] if limit > 100 else [])
    assert place.run("fetch", "tiny").returncode == 0


def test_a_second_fetch_is_refused_by_name(place):
    (place.cache / "tiny").mkdir(parents=True)
    with open(place.cache / "tiny" / "a.zip.partial", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        out = place.run("fetch", "tiny")
        assert out.returncode == 3 and "a.zip: another process is writing it" in out.stderr
    assert place.run("fetch", "tiny").returncode == 0
    assert not list(place.cache.rglob("*.partial"))


def test_KVCC_DATA_comes_first_and_needs_no_network(place):
    (place.data / "tiny").mkdir(parents=True)
    for name, text in (("train.raw", TEXTS["train"]), ("test.raw", TEXTS["test"]), ("calibration.txt", ELSEWHERE)):
        (place.data / "tiny" / name).write_bytes(text)
    place.environment["KVCC_DATA"] = str(place.data)
    place.mirrors = []
    assert place.run("fetch", "tiny").returncode == 0
    states = place.states("check", "tiny")
    assert states["train"]["path"] == str(place.data / "tiny" / "train.raw") and states["evaluation"]["state"] == "absent"
    assert not place.cache.exists()


def test_what_cannot_be_fetched_says_so(place):
    out = place.run("fetch", "tiny:calibration")
    assert out.returncode == 3 and "not published for download" in out.stderr and "KVCC_DATA" in out.stderr


def test_unknown_names_are_wrong_usage(place):
    for words, text in ((("fetch", "tinny"), "did you mean tiny"), (("list", "tiny:trian"), "did you mean train"),
                        (("grab",), "grab"), ((), "action")):
        out = place.run(*words)
        assert out.returncode == 2 and text in out.stderr, (words, out.returncode, out.stderr)
    assert place.run("check", "tiny").returncode == 3


def test_a_manifest_cannot_write_outside_the_cache(place):
    place.splits[0]["file"] = "../../escaped"
    out = place.run("fetch", "tiny")
    assert out.returncode == 3 and "a plain file or folder name" in out.stderr


def test_installed_manifest_describes_wikitext_2():
    data = pathlib.Path(os.environ.get("KVCC_DATA") or pathlib.Path(os.environ["KVCC_SOURCE"]) / "../shared/datasets")
    out = subprocess.run([PROGRAM, "list", "--json"], capture_output=True, text=True,
                         env=os.environ | {"KVCC_DATA": str(data)})
    assert out.returncode == 0, out.stderr
    splits = {s["name"]: s for s in json.loads(out.stdout)["splits"]}
    assert splits["wikitext-2:train"]["fetchable"] and splits["wikitext-2:test"]["bytes"] == 1290590
    sums = data / "wikitext-2" / "SHA256SUMS"
    if not sums.exists():
        pytest.skip(f"no {sums}: set KVCC_DATA")
    known = {s["sha256"] for s in splits.values()}
    assert all(line.split()[0] in known for line in sums.read_text().splitlines())
    assert splits["wikitext-2:calibration"]["state"] == splits["wikitext-2:evaluation"]["state"] == "present"
    assert splits["wikitext-2:test"]["state"] != "wrong"  # the CRLF flavour under the same name is known
