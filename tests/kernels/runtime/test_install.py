"""The installed library as others use it: by pkg-config from C99, by CMake from C++, wherever the tree is moved."""
import os
import subprocess

import pytest
from runtime_api import make_artifact
from support import BUILD, SOURCE

PROGRAM = '''#include <kvcc_runtime.h>
#include <stdio.h>
int main(int argc, char** argv) {
  KvccArtifact* artifact = NULL;
  KvccSequence* cache = NULL;
  KvccOptions options = {sizeof(KvccOptions), 1, 0, 0, 0, NULL};
  KvccShape shape;
  float row[2 * 64], query[6 * 64], out[6 * 64];
  int i;
  for (i = 0; i < 2 * 64; ++i) row[i] = (float)i / 64;
  for (i = 0; i < 6 * 64; ++i) query[i] = 1;
  if (argc != 2 || kvcc_artifact_open(argv[1], &artifact) != KVCC_OK) {
    fprintf(stderr, "%s\\n", kvcc_error_message());
    return 1;
  }
  if (kvcc_artifact_shape(artifact, &shape) != KVCC_OK || shape.head_dim != 64) return 2;
  if (kvcc_create(artifact, &options, &cache) != KVCC_OK) return 3;
  if (kvcc_append(cache, 0, row, row, 1) != KVCC_OK) return 4;
  if (kvcc_attend(cache, 0, query, 0, 0, out) != KVCC_OK) return 5;
  printf("%s %.6f\\n", kvcc_version(), out[1]);
  kvcc_free(cache);
  kvcc_artifact_free(artifact);
  return 0;
}
'''


def run(*command, **kw):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **kw)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def installed(tmp_path):
    run("cmake", "--install", BUILD, "--component", "kvcc_runtime", "--prefix", tmp_path / "first")
    prefix = tmp_path / "moved tree"
    (tmp_path / "first").rename(prefix)
    return prefix


@pytest.fixture
def artifact(tmp_path):
    make_artifact(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def sanitised():
    return "KVCC_SANITIZE:STRING=\n" not in (BUILD / "CMakeCache.txt").read_text()


def test_header_is_c99_and_cpp(tmp_path):
    (tmp_path / "a.c").write_text('#include "kvcc_runtime.h"\nint x = KVCC_OK;\n')
    for compiler, language, standards in (("gcc", "c", ("c99", "c11")), ("g++", "c++", ("c++11", "c++20"))):
        for standard in standards:
            run(compiler, "-x", language, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                "-I", SOURCE / "kernels/host", tmp_path / "a.c")


def test_tree_has_what_it_should(installed):
    found = {str(p.relative_to(installed)) for p in installed.rglob("*") if not p.is_dir()}
    assert {"include/kvcc_runtime.h", "lib/libkvcc_runtime.so", "lib/libkvcc_runtime.so.0", "lib/pkgconfig/kvcc-runtime.pc",
            "lib/cmake/kvcc/kvccConfig.cmake", "lib/cmake/kvcc/kvccConfigVersion.cmake",
            "lib/cmake/kvcc/kvccTargets.cmake"} <= found
    assert not any(part.endswith(".a") for part in found)
    for text in installed.rglob("*.cmake"):
        assert str(BUILD) not in text.read_text() and str(SOURCE) not in text.read_text()


def test_pkg_config_and_c99(installed, artifact, tmp_path):
    if sanitised():
        pytest.skip("SKIPPED: the library is built with sanitisers")
    (tmp_path / "a.c").write_text(PROGRAM)
    env = {**os.environ, "PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
    assert run("pkg-config", "--modversion", "kvcc-runtime", env=env).strip() == "0.1.0"
    flags = "$(pkg-config --cflags --libs kvcc-runtime)"
    run("sh", "-c", f"eval gcc -std=c99 -pedantic -Wall -Wextra -Werror a.c -o a {flags}", cwd=tmp_path, env=env)
    out = run("./a", artifact, cwd=tmp_path, env={**env, "LD_LIBRARY_PATH": str(installed / "lib")})
    assert out == "0.1.0 0.015625\n"  # the sink, which is kept exactly


def test_cmake_package(installed, artifact, tmp_path):
    if sanitised():
        pytest.skip("SKIPPED: the library is built with sanitisers")
    (tmp_path / "a.cc").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(user CXX)\nfind_package(kvcc 0.1 REQUIRED)\n"
        "add_executable(a a.cc)\ntarget_link_libraries(a PRIVATE kvcc::runtime)\n")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build/a", artifact) == "0.1.0 0.015625\n"
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nproject(user CXX)\n"
                                             "find_package(kvcc 9.0 REQUIRED)\n")
    wrong = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "later", f"-DCMAKE_PREFIX_PATH={installed}"],
                           capture_output=True, text=True)
    assert wrong.returncode != 0 and "0.1.0" in wrong.stderr
