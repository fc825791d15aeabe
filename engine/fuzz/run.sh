#!/bin/sh
# Fuzzes the C++ reader of packed files.
#
#   engine/fuzz/run.sh [SECONDS [WORK]]      60 seconds, in build/fuzz
#
# The corpus begins with that of an earlier run (tests/attacks/fuzzed.zip) and grows in WORK/corpus,
# where the next run uses it again. Inputs that crash the reader, or take more than 10 s or 2 GB, are
# kept in WORK/crashes, and the exit status is then not 0. WORK/log holds the number of executions
# and the coverage. CXX and PYTHON choose the compiler and the interpreter.
set -eu

seconds=${1:-60}
work=${2:-build/fuzz}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work/corpus" "$work/crashes"

"${PYTHON:-python3}" "$here/seeds.py" "$work/seeds"
"${PYTHON:-python3}" -m zipfile -e "$here/../../tests/attacks/fuzzed.zip" "$work/corpus"
"${CXX:-clang++}" -std=c++17 -O1 -g -Wall -Wextra -Werror \
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    "$here/fuzz_format.cc" "$here/../src/format.cc" "$here/../src/json.cc" -o "$work/fuzz_format"

status=0
"$work/fuzz_format" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 \
    -malloc_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$work/crashes/" \
    "$work/corpus" "$work/seeds" >"$work/log" 2>&1 || status=$?

grep -E 'cov:' "$work/log" | tail -n 1
grep -E 'stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb)' "$work/log" || true
if [ "$status" -ne 0 ]; then
    grep -E -A 20 'ERROR|runtime error|SUMMARY' "$work/log" | head -n 60 || true
    echo "the fuzzer failed (status $status); what it found is in $work/crashes" >&2
fi
exit "$status"
