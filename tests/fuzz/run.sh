#!/usr/bin/env bash
# run.sh PROGRAM CORPUS RUNS: a fuzz target over its corpus and RUNS inputs more; BYPASS_TEST_LONG=1: for a minute. The
# same inputs each time, from one seed. An input that fails stays in the folder that is named at the end.
set -u
found=$(mktemp -d)
trap 'rmdir "$found" 2>/dev/null || echo "inputs that fail: $found"' EXIT
how=(-runs="$3")
[ "${BYPASS_TEST_LONG:-}" = 1 ] && how=(-max_total_time=60)
scratch=$(mktemp -d)  # what is new goes there and is forgotten
"$1" -seed=1 -max_len=16384 -timeout=20 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 -artifact_prefix="$found/" \
  "${how[@]}" "$scratch" "$2"
status=$?
rm -rf "$scratch"
exit $status
