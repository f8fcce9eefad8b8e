#!/usr/bin/env bash
# run.sh BUILD SECONDS [TARGET] [JOBS]: every fuzz target, or one ("" is all), for SECONDS each, JOBS (1) at a time.
# What crashes, hangs, leaks or takes more than 2 GiB is kept in BUILD/finds and makes this fail.
set -uo pipefail
build=$1 seconds=$2 only=${3:-} jobs=${4:-1}
corpus=$(cd "$(dirname "$0")/../corpus" && pwd)
mkdir -p "$build/finds"

# fuzz PROGRAM TARGET: one line of what came of it.
fuzz() {
  local program=$1 target=$2 log=$build/$2.log begin=$SECONDS slow status=1
  local limits=(-timeout=10 -rss_limit_mb=2048 -max_len=65536 "-artifact_prefix=$build/finds/$target-")
  mkdir -p "$build/corpus/$target"
  : >"$log"
  while [ $((SECONDS - begin)) -lt "$seconds" ]; do
    KVCC_FUZZ_TARGET=$target "$program" "${limits[@]}" -max_total_time=$((seconds - SECONDS + begin)) -print_final_stats=1 \
      "$build/corpus/$target" "$corpus/$target" >>"$log" 2>&1
    status=$?
    # A machine that was busy or suspended makes timeouts too: one counts when the input alone makes it again.
    slow=$(grep -oE 'Test unit written to .*-timeout-[0-9a-f]+$' "$log" | tail -n 1 | sed 's/Test unit written to //')
    if [ "$status" = 0 ] || [ ! -f "$slow" ]; then break; fi
    KVCC_FUZZ_TARGET=$target "$program" "${limits[@]}" "$slow" >>"$log" 2>&1 || break
    rm "$slow"
    status=0
  done
  if [ "$status" = 0 ]; then
    echo "$target: $((SECONDS - begin)) s, $(awk '/stat::number_of_executed_units/ {n += $2} END {print n + 0}' "$log") runs," \
      "$(grep -oE 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -n 1), nothing found"
  else
    echo "$target: FOUND, see $log"
    tail -n 40 "$log"
  fi
  return "$status"
}

names=()
declare -A program_of
for program in "$build"/tests/fuzz_{model,store,cache,data}; do
  targets=$("$program") || exit 1
  for target in $targets; do
    [ -z "$only" ] || [ "$only" = "$target" ] || continue
    names+=("$target")
    program_of[$target]=$program
  done
done
if [ ${#names[@]} = 0 ]; then
  echo "no fuzz target $only" >&2
  exit 2
fi

status=0 running=0
for target in "${names[@]}"; do
  if [ "$running" -ge "$jobs" ]; then
    wait -n || status=1
    running=$((running - 1))
  fi
  fuzz "${program_of[$target]}" "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || status=1
  running=$((running - 1))
done
exit $status
