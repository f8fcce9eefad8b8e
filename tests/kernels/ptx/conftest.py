from codegen.conftest import nvcc  # noqa: F401  (skips, and says so, where there is none)
