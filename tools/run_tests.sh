#!/bin/sh
# run_tests.sh PYTHON MARKS [ARGUMENTS of pytest]: all tests of these marks as on a bare machine (PRIVDD_BARE=1: no network but
# loopback, an empty home; data sets, browsers and pretrained weights are hidden), then those that ask for more (the mark extra), with
# what this machine has or, under CI, what test_extras.sh installs between the two. Fails if either pass does.
set -u
python=$1
marks=$2
shift 2
cd "$(dirname "$0")/.."
NO_TESTS=5 # the status of pytest if none was chosen, as none of the tests that ARGUMENTS name may ask for more
pass() {
    "$python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
}
echo "== 1 of 2: a bare machine"
PRIVDD_BARE=1 pass -m "$marks" "$@"
bare=$?
sh tools/test_extras.sh "$python"
echo "== 2 of 2: tests that need what a machine may lack"
# of their files alone: to collect all takes longer than to run these
[ $# -eq 0 ] && set -- $(grep -rl --include='test_*.py' 'mark\.extra(' tests benchmarks)
pass -m "extra and ($marks)" "$@"
extra=$?
[ "$extra" -eq "$NO_TESTS" ] && extra=0
echo "== bare machine: status $bare; extras: status $extra"
[ "$bare" -eq 0 ] && [ "$extra" -eq 0 ]
