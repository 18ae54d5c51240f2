#!/usr/bin/env bash
# One command from a fresh machine to the studio. See `./run.sh --help`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

TORCH_VERSION=2.13.0
CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu
OLD_DRIVER_TORCH_INDEX=https://download.pytorch.org/whl/cu126
NEW_DRIVER=580  # what the default build (CUDA 13) needs
VENV=${COSYVOICE_VENV:-.venv}
LOG=$VENV/install.log

say() { printf '%s\n' "$*" >&2; }
die() { say "run.sh: $*"; exit 1; }

usage() {
    cat <<'TEXT'
./run.sh [flags]              start the studio on http://127.0.0.1:7860
                              Without --model-dir the public model is fetched (3.1 GB) if a hub can be reached, else the
                              small bundled one is taken; --model-dir assets/nano takes the small one at once.
./run.sh synthesize|check|download|build-engines …
                              the command line; `./run.sh synthesize --help` tells more
./run.sh test [pytest flags]  run the tests
./run.sh install [--dev]      only prepare .venv
The first start makes .venv and fills it (a few minutes); later ones start at once.
PYTHON=/path/to/python3 chooses the interpreter.
TEXT
}

# The flags are told by app.py itself, which needs no package for that.
help() {
    usage
    local python
    python=$(find_python 2>/dev/null) || return 0
    printf '\n'
    "$python" app.py --help
}

# The newest tested Python first. A pyenv shim may exist and yet not run, so each one is asked.
find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.10 python3 python}; do
        if "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    local found
    found=$("${PYTHON:-python3}" --version 2>&1) || found="none"
    die "Python 3.10 to 3.13 is needed (found: ${found}); install one, or name it with PYTHON=/path/to/python3."
}

has_gpu() { nvidia-smi -L >/dev/null 2>&1; }
gigabytes_needed() { if has_gpu; then echo 10; else echo 4; fi; }
free_gigabytes() { df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }'; }

make_venv() {
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        return
    fi
    local python
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$python has no venv module; on Debian or Ubuntu: apt-get install python3-venv."
    say "Making $VENV with $("$python" --version) …"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || die "could not make $VENV (is the disk full or the folder read-only?)."
}

# Runs pip quietly; its words go to the log.
pip_install() { "$VENV/bin/python" -m pip install --disable-pip-version-check "$@" >>"$LOG" 2>&1; }

install_failed() {
    tail -n 5 "$LOG" >&2
    if [ "$(free_gigabytes)" -lt 1 ]; then
        die "the disk is full: $(gigabytes_needed) GB are needed for $VENV."
    fi
    die "$1 could not be installed; the end of $LOG is above. Check the network and start again."
}

has_torch() {
    "$VENV/bin/python" -c 'import sys; from importlib.metadata import version
sys.exit(int(version("torch").split(".")[0]) != 2)' 2>/dev/null
}

# The default torch for Linux brings gigabytes of CUDA: without an NVIDIA GPU the CPU build is taken, from a folder
# that pip is set up with, else from PyTorch's own index. What torch needs comes with requirements.txt.
install_torch() {
    has_torch && return
    if [ "$(uname)" = Linux ] && ! has_gpu; then
        say "Installing PyTorch $TORCH_VERSION for the CPU …"
        pip_install --no-deps --no-index "torch==$TORCH_VERSION" && return
        pip_install --no-deps --index-url "$CPU_TORCH_INDEX" "torch==$TORCH_VERSION" && return
        say "The CPU build cannot be had here; taking the default build (several GB) …"
    elif has_gpu && [ "$(driver)" -lt "$NEW_DRIVER" ]; then
        say "Installing PyTorch $TORCH_VERSION for the NVIDIA driver $(driver) …"
        pip_install --index-url "$OLD_DRIVER_TORCH_INDEX" "torch==$TORCH_VERSION" && return
        say "A build for this driver cannot be had here; with the default one the GPU may lie idle. Update the driver."
    else
        say "Installing PyTorch …"
    fi
    pip_install "torch==$TORCH_VERSION" || install_failed "PyTorch"
}

# Main number of the NVIDIA driver; a large one where it cannot be read.
driver() {
    local version
    version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d. -f1)
    case "$version" in '' | *[!0-9]*) echo 99999 ;; *) echo "$version" ;; esac
}

fingerprint() { cat run.sh "$@" | cksum; }

# install_requirements STAMP FILE…: nothing to do when the stamp still fits the files.
install_requirements() {
    local stamp=$VENV/$1 wanted file
    shift
    wanted=$(fingerprint "$@")
    if [ -x "$VENV/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ ! -e "$stamp" ] && [ "$(free_gigabytes)" -lt "$(gigabytes_needed)" ]; then
        die "only $(free_gigabytes) GB are free here and $(gigabytes_needed) GB are needed; free some space and start again."
    fi
    make_venv
    install_torch
    local flags=()
    for file in "$@"; do flags+=(-r "$file"); done
    if [ $# -eq 1 ]; then say "Installing what $1 names …"; else say "Installing what $* name …"; fi
    pip_install "${flags[@]}" || install_failed "A package of $*"
    printf '%s\n' "$wanted" >"$stamp"
}

# A misspelt flag is told before minutes are spent on the first installation.
check_flags() {
    if [ -e "$VENV/.stamp" ]; then return; fi
    local python
    python=$(find_python)
    "$python" -m webui.flags --check "$@" || exit
}

# A test's workers and browser take a gigabyte or two.
test_processes() { if [ "$(nproc 2>/dev/null || echo 2)" -gt 3 ]; then echo 4; else echo 2; fi; }

install() { install_requirements .stamp requirements.txt; }
install_dev() { install_requirements .stamp-dev requirements.txt requirements-dev.txt; }

main() {
    case "${1:-}" in
    -h | --help) help ;;
    install)
        if [ "${2:-}" = --dev ]; then install_dev; else install; fi
        ;;
    test)
        install_dev
        exec "$VENV/bin/python" -m pytest -n "$(test_processes)" --dist loadfile "${@:2}"
        ;;
    synthesize | check | download | build-engines)
        install
        exec "$VENV/bin/python" -m inference "$@"
        ;;
    "" | -*)
        check_flags "$@"
        install
        exec "$VENV/bin/python" app.py "$@"
        ;;
    *)
        usage >&2
        die "unknown command: $1"
        ;;
    esac
}

main "$@"
