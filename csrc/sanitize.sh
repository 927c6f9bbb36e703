#!/usr/bin/env bash
# Runs the tests of the C++ extension with address and undefined-behaviour sanitizers: csrc/sanitize.sh VENV [pytest flags].
# A copy of the checkout is built in build/sanitize, so that the extension in use stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(realpath "$1")
shift
folder=build/sanitize
rm -rf "$folder"
mkdir -p "$folder"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create --file=- | tar --extract --file=- --directory="$folder"
cd "$folder"

flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"
if ! CFLAGS="$flags" LDFLAGS="-fsanitize=address,undefined" "$venv/bin/python" setup.py -q build_ext --inplace >build.log 2>&1; then
    tail -n 20 build.log >&2
    exit 1
fi

# Python itself has no sanitizers, so they are loaded before it. What the interpreter never frees is no finding.
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
export LD_PRELOAD
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:abort_on_error=0
export UBSAN_OPTIONS=print_stacktrace=1
export PYTHONMALLOC=malloc PYTHONPATH=$PWD ACMSERVE_SANITIZED=1
exec "$venv/bin/python" -m pytest tests/kernels tests/plan/test_match.py tests/plan/test_hostile_tokens.py "$@"
