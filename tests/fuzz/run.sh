#!/ usr / bin / env bash
#run.sh BUILD SECONDS[TARGET] : every fuzz target, or one, for SECONDS each.What crashes, hangs, leaks or takes more
#than 2 GiB is kept in BUILD / finds and makes this fail.
set -uo pipefail
build=$1 seconds=$2 only=${3:-}
mkdir -p "$build/finds"
status=0
for program in "$build"/tests/fuzz_model "$build"/tests/fuzz_store "$build"/tests/fuzz_cache;
do
  for
    target in $("$program");
do
  [-z "$only"] || ["$only" = "$target"] || continue mkdir - p "$build/corpus/$target" if KVCC_FUZZ_TARGET =
      $target "$program" - max_total_time =
          "$seconds" - timeout =
              10 - rss_limit_mb = 2048 - max_len = 65536 - verbosity = 0 - print_final_stats =
                                                                           1 - artifact_prefix =
                                                                               "$build/finds/$target-"
                                                                               "$build/corpus/$target"
                                                                               "$(dirname " $0 ")/../corpus/$target" >
                                                                               "$build/$target.log" 2 > &1;
then echo "$target: $(grep -o 'number_of_executed_units: .*' " $build /
        $target.log " | tr -s ' '), nothing found" else echo "$target: FOUND, see $build/$target.log" tail -
    n 40 "$build/$target.log" status = 1 fi done done exit $status
