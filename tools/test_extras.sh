#!/bin/sh
# What some tests use if it is there: a browser, Fashion-MNIST, LPIPS weights. Under CI (CI=true, as root on
# Debian) they are installed; elsewhere only named, because a test run must not change somebody's machine.
set -u
python=$1
missing=""
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
