#!/bin/sh
# environment.sh PYTHON FOLDER: an environment of a Python that privdd runs on. A folder that holds one of another
# Python, or a broken one, is made anew: venv over an old environment would keep its links to the old Python.
set -eu
cd "$(dirname "$0")/.."
needed=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)
version() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
found=$(version "$1") || { echo "PYTHON=$1: does not run; Python $needed or newer is needed" >&2; exit 1; }
if ! "$1" -c 'import sys; sys.exit(list(sys.version_info) < [int(n) for n in sys.argv[1].split(".")])' "$needed"; then
    echo "PYTHON=$1: is Python $found; Python $needed or newer is needed, as in make audit PYTHON=python$needed" >&2
    exit 1
fi
held=$(version "$2/bin/python" || true)
if [ -e "$2" ] && [ "${held%.*}" != "${found%.*}" ]; then
    [ -f "$2/pyvenv.cfg" ] || { echo "VENV=$2: exists and is no environment; name another folder" >&2; exit 1; }
    echo "$2: held an environment of Python ${held:-that does not run}, made anew with $found" >&2
    "$1" -m venv --clear "$2"
else
    "$1" -m venv "$2"
fi
