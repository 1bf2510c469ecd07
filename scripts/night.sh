#!/bin/sh
# Run the long tests part by part, each under its own time limit. Usage: night.sh PYTEST JOBS PATH=LIMIT...
set -u

pytest=$1 jobs=$2
shift 2
passed=0
failures=

for entry in "$@"; do
    part=${entry%=*} limit=${entry##*=}
    # Tests of the server run one at a time: they load the whole machine.
    case $part in tests/server/*) workers=0 ;; *) workers=$jobs ;; esac
    echo "== $part (limit $limit)"
    start=$(date +%s)
    CITADEL_NIGHT=1 OMP_NUM_THREADS=1 timeout --kill-after=30s "$limit" \
        "$pytest" -q -n "$workers" --durations=3 "$part"
    code=$?
    seconds=$(($(date +%s) - start))
    case $code in
        0) passed=$((passed + 1)) result=passed ;;
        124 | 137) failures="$failures $part" result="stopped at the limit of $limit" ;;
        *) failures="$failures $part" result="failed with exit code $code" ;;
    esac
    echo "== $part: $result after $seconds s"
done

set -- $failures
for part in "$@"; do echo "night: $part failed"; done
echo "night: $passed parts passed, $# failed"
[ $# -eq 0 ]
