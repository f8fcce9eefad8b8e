#!/usr/bin/env bash
# Parity and times of kvcc's kernels on one GPU. Needs nvcc and g++ (C++20), nothing else of the project's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'TEXT'
usage: tests/gpu/run.sh [options]
Builds the kernels with nvcc (KVCC_NVCC names one) and g++ (CXX), checks every family against the reference on the device, then times every family against fp16
kernels written as well and against KVQuant-like ones, on contexts of 2K to 128K tokens. Under six minutes on one GPU.
  --quick          parity only
  --json FILE      everything as one JSON document (schema_version 1)
  --only TEXT      the cases whose name contains TEXT; builds the sets (tests/gpu/units) that can match, and times those
  --list           names of the tests: builds what they are named by, for the emulator and without nvcc; runs none
  --tokens N,N     contexts that are timed, multiples of 64
  --seconds N      what is left after N seconds of timing is not timed (270)
  --build DIR      where objects go and stay (a temporary folder)
  --arch ARCH      e.g. sm_90, one of nvcc --list-gpu-code; default the device's, sm_80 without one
  --jobs N         compilers at a time (one a processor)
  --emulate        compiles for kvcc's CPU emulator instead, by g++ alone: proves this script, times nothing
  --help
Exit code: 0 all tests passed, or there is no device (the tests are counted as skipped) or no nvcc; 1 a test failed, or
a source does not compile; 2 wrong options.
TEXT
}

refuse() {
  echo "$1 (tests/gpu/run.sh --help)" >&2
  exit 2
}

build="" arch="" jobs=$(nproc 2>/dev/null || echo 2) emulate=0 list=0 only="" json="" pass=()
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --quick) pass+=("$1"); shift; continue ;;
    --list) list=1; pass+=("$1"); shift; continue ;;
    --emulate) emulate=1; shift; continue ;;
    --json | --only | --tokens | --seconds | --build | --arch | --jobs) ;;
    *) refuse "$1: an unknown option" ;;
  esac
  [ $# -ge 2 ] || refuse "$1: wants a value"
  case $1 in
    --build) build=$2 ;;
    --arch) arch=$2 ;;
    --jobs) [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "$1: $2; wanted a number"; jobs=$2 ;;
    --only) only=$2; pass+=("$1" "$2") ;;
    --json) json=$2; pass+=("$1" "$2") ;;
    --seconds) [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "$1: $2; wanted a number of seconds"; pass+=("$1" "$2") ;;
    --tokens)
      for n in ${2//,/ }; do
        [[ $n =~ ^[1-9][0-9]{0,6}$ ]] || refuse "$1: $n; wanted multiples of 64"
        [ $((n % 64)) = 0 ] || refuse "$1: $n; wanted multiples of 64"
      done
      pass+=("$1" "$2")
      ;;
  esac
  shift 2
done

# Names are the same wherever the kernels run, and g++ alone makes those of the emulator sooner.
optimise=-O1
if [ $list = 1 ]; then
  [ $emulate = 1 ] || optimise=-O0
  emulate=1
fi

# Text as JSON has it: quotes, backslashes and control characters escaped.
json_text() {
  local text=$1 out="" c i
  for ((i = 0; i < ${#text}; ++i)); do
    c=${text:i:1}
    case $c in
      '"' | \\) out+="\\$c" ;;
      [[:cntrl:]]) printf -v c '\\u%04x' "'$c"; out+=$c ;;
      *) out+=$c ;;
    esac
  done
  printf '"%s"' "$out"
}

# As kvcc compile looks for it.
nvcc=""
if [ -n "${KVCC_NVCC:-}" ]; then
  reason="no nvcc: KVCC_NVCC is $KVCC_NVCC, which is no program"
  [ ! -x "$KVCC_NVCC" ] || nvcc=$KVCC_NVCC
else
  reason="no nvcc in PATH, CUDA_HOME, /usr/local/cuda or .venv (KVCC_NVCC names one)"
  for place in "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc \
    "$root"/.venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    [ -z "$nvcc" ] && [ -x "$place" ] && nvcc=$place
  done
fi
cxx=${CXX:-g++}
if [ $emulate = 0 ] && [ -z "$nvcc" ]; then
  echo "$reason: nothing was built, all tests are skipped"
  if [ -n "$json" ]; then
    echo "{\"schema_version\": 1, \"tool\": \"tests/gpu/run.sh\", \"device\": null, \"reason\": $(json_text "$reason")," \
      "\"parity\": null, \"copy_gb_per_s\": null, \"times\": [], \"not_timed\": []}" >"$json"
  fi
  exit 0
fi
command -v "$cxx" >/dev/null || { echo "no $cxx: set CXX to a C++20 compiler" >&2; exit 1; }
if [ -n "$arch" ] && [ $emulate = 0 ]; then
  known=$("$nvcc" --list-gpu-code | tr '\n' ' ')
  [[ $arch =~ ^[a-z0-9_]+$ && " $known" == *" $arch "* ]] || refuse "--arch: $arch; wanted one of ${known% }"
fi
if [ -z "$arch" ]; then
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ' || true)
  [[ $arch =~ ^[0-9]+$ ]] && arch=sm_$arch || arch=sm_80
fi
if [ -z "$build" ]; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
fi
mkdir -p "$build"
build=$(cd "$build" && pwd)
json_from=$PWD
cache=$(command -v ccache || true)

# Sources: device text, by nvcc or (emulated) g++; the harness and the reference, by g++.
cd "$root"
device=(tests/gpu/cuda_launcher.cu tests/gpu/baseline/fp16.cu tests/gpu/baseline/kvquant.cu tests/gpu/units/copy_pages.cu tests/gpu/units/fill.cu)
units=() matching=()
for unit in tests/gpu/units/*.cu; do
  name=$(basename "$unit" .cu)
  case $name in copy_pages | fill) continue ;; esac
  units+=("$unit")
  # A case is named after its set first, so a text that begins within a set's name needs that set only.
  [[ -z $only || $name != *"${only%%,*}"* ]] || matching+=("$unit")
done
if [ ${#matching[@]} -gt 0 ]; then
  device+=("${matching[@]}")
elif [[ $only != baseline* ]]; then
  device+=("${units[@]}")
fi
host=(tests/gpu/{main,parity,parity_packs,parity_readers,baseline_parity,case,device_tensor,sets,bench,bench_place,bench_sets,report}.cc
  formats/core/error.cc formats/codec/{checks,levels,reference,round_trip,tails}.cc kernels/reference/{attention,cache,mma_cache}.cc)
common="-std=c++20 -I."
if [ $emulate = 1 ]; then
  host+=(tests/gpu/fake/cuda_runtime.cc kernels/emulator/*.cc)
  common="$common -DKVCC_EMULATE"
  for_device="$cache $cxx $common -Itests/gpu/fake $optimise -ffp-contract=off -Wall -Wextra -x c++"
else
  for_device="$cache $nvcc $common -O3 -fmad=false -arch=$arch -ccbin $cxx"
fi
for_host="$cache $cxx $common -O2 -ffp-contract=off -Wall -Wextra"

objects=() commands=()
add() {  # compiler source
  local object="$build/${2//\//_}.o"
  objects+=("$object")
  commands+=("$1 -c -o '$object' $2")
}
for source in "${device[@]}"; do add "$for_device" "$source"; done
for source in "${host[@]}"; do add "$for_host" "$source"; done
began=$SECONDS
printf '%s\0' "${commands[@]}" | xargs -0 -n 1 -P "$jobs" bash -c || { echo "the build failed" >&2; exit 1; }
if [ $emulate = 1 ]; then
  "$cxx" -o "$build/kvcc-gpu-test" "${objects[@]}" -lpthread
else
  # The toolkit's wheels keep libraries where nvcc itself does not look.
  "$nvcc" -arch="$arch" -ccbin "$cxx" -L"$(dirname "$(readlink -f "$nvcc")")/../lib" -o "$build/kvcc-gpu-test" "${objects[@]}"
fi
echo "built ${#objects[@]} sources for $([ $emulate = 1 ] && echo the emulator || echo "$arch") in $((SECONDS - began)) s" >&2
cd "$json_from"
"$build/kvcc-gpu-test" ${pass[@]+"${pass[@]}"}
