#!/usr/bin/env bash
# Sets up the virtual environment of a checkout. Called by the Makefile, which decides what is out of date:
#   requirements/install.sh packages VENV   checks the machine, makes VENV, installs requirements/cpu.lock into it
#   requirements/install.sh build VENV      compiles csrc/ and installs acmserve itself (editable)
#   requirements/install.sh wheel VENV      builds the sdist and a manylinux wheel into dist/, with the tools of VENV
# Quiet but for one line per step; the full output is in build/setup.log (of a wheel: build/wheel.log), and its end is
# shown when a step fails.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build
task=$1
venv=$2
log=build/setup.log
lock=requirements/cpu.lock
torch_cpu_index=https://download.pytorch.org/whl/cpu

step() { printf '[%s/5] %s\n' "$1" "$2" >&2; }

die() {
    printf 'setup failed: %s\n' "$1" >&2
    exit 1
}

# quietly REMEDY COMMAND...: run COMMAND into the log; on failure show the end of the log, then the remedy.
quietly() {
    local remedy=$1
    shift
    if ! "$@" >>"$log" 2>&1; then
        printf -- '--- end of %s ---\n' "$log" >&2
        tail -n 20 "$log" >&2
        die "$remedy"
    fi
}

pip_install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps "$@"
}

is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        is_supported "$PYTHON" || die "PYTHON=$PYTHON is not a Python from 3.11 to 3.14; name another: make setup PYTHON=python3.12"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no Python from 3.11 to 3.14 found (python3 is $(python3 --version 2>&1 || true)); install one, or name it: make setup PYTHON=/path/to/python3.12"
}

check_compiler() {
    local python=$1 include
    command -v "${CXX:-g++}" >/dev/null ||
        die "no C++ compiler: '${CXX:-g++}' not found; install one (Debian, Ubuntu: apt-get install g++), or name it in CXX"
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -f "$include/Python.h" ] ||
        die "Python.h not found in $include; install Python's headers (Debian, Ubuntu: apt-get install python3-dev)"
}

# vLLM's operators for CPUs are linked against it, and its wheel has no copy.
check_libraries() {
    "$1" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        die "libnuma.so.1 not found, which vLLM's CPU build loads; install it (Debian, Ubuntu: apt-get install libnuma1)"
}

make_venv() {
    local python=$1
    if is_supported "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    quietly "'$python -m venv' does not work here; install it (Debian, Ubuntu: apt-get install python3-venv)" \
        "$python" -m venv --clear "$venv"
}

# The local version +cpu is in the pin, so a machine never gets the CUDA build by accident. Where pip as it is set up
# knows no CPU build, PyTorch's own index is asked, for this one package only.
install_torch() {
    local pin
    pin=$(grep '^torch==' "$lock")
    if pip_install "$pin" >>"$log" 2>&1; then
        return
    fi
    quietly "pip cannot find $pin; it looked where it is set up to look and at $torch_cpu_index" \
        pip_install --retries 2 --timeout 30 --extra-index-url "$torch_cpu_index" "$pin"
}

install_packages() {
    local python
    : >"$log"
    step 1 "checking Python, the C++ compiler and libnuma"
    python=$(find_python)
    check_compiler "$python"
    check_libraries "$python"
    step 2 "making the virtual environment $venv ($("$python" --version))"
    make_venv "$python"
    step 3 "installing $(grep '^torch==' "$lock") (about 200 MB)"
    install_torch
    step 4 "installing $(grep -c '==' "$lock") pinned packages (one to three minutes)"
    quietly "pip could not install $lock; check the network and run the same command again, it goes on where it stopped" \
        pip_install --requirement "$lock"
}

build() {
    step 5 "compiling the C++ extension and installing acmserve"
    check_compiler "$venv/bin/python"
    quietly "the C++ extension did not compile; the compiler's messages are above" \
        pip_install --no-build-isolation --editable .
}

# The wheel is built from the unpacked sdist, so a file that the sdist lacks stops here. auditwheel names the oldest
# glibc that the extension runs on, and refuses libraries that other machines lack.
wheel() {
    local made=build/wheel
    [ -x "$venv/bin/auditwheel" ] || die "no auditwheel in $venv; \`make wheel\` installs it from requirements/wheel.lock"
    check_compiler "$venv/bin/python"
    rm -rf "$made" dist
    log=build/wheel.log
    : >"$log"
    quietly "the sdist or the wheel could not be built; the messages are above" \
        "$venv/bin/python" -m build --no-isolation --outdir "$made" .
    PATH="$venv/bin:$PATH" quietly "auditwheel found no manylinux tag for the extension; its reason is above" \
        "$venv/bin/auditwheel" repair --wheel-dir dist "$made"/*.whl
    cp "$made"/*.tar.gz dist/
    ls dist/*
}

case $task in
    packages) install_packages ;;
    build) build ;;
    wheel) wheel ;;
    *) die "unknown task '$task'; use packages, build or wheel" ;;
esac
