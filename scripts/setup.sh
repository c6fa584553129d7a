#!/usr/bin/env bash
# Sets up everything that `make demo` and `make test` need, and nothing that is there already:
# Slurm and shellcheck from the distribution, .venv with the project, torch and the test tools,
# .venv-peers with the launcher we are compared with (its wheel is tagged for a newer Python; on CPU it runs on this one).
set -euo pipefail
cd "$(dirname "$0")/.."

quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        echo "setup: failed: $*" >&2
        tail -n 30 "$log" >&2
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
}

install_system_packages() {
    local program package missing=()
    while read -r program package; do
        command -v "$program" >/dev/null 2>&1 || [ -x "/usr/sbin/$program" ] || missing+=("$package")
    done <<'LIST'
slurmctld slurmctld
slurmd slurmd
squeue slurm-client
slurmdbd slurmdbd
munged munge
mariadbd mariadb-server
shellcheck shellcheck
unshare util-linux
ip iproute2
LIST
    "${PYTHON:-python3}" -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3 python3-venv)
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: missing packages; run: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update
    quietly apt-get install -y --no-install-recommends "${missing[@]}"
}

install_project() {
    local stamp=.venv/.installed
    if [ -e "$stamp" ] && [ "$stamp" -nt pyproject.toml ]; then
        return
    fi
    echo "setup: installing the project into .venv"
    [ -x .venv/bin/python ] || quietly "${PYTHON:-python3}" -m venv .venv
    # torch by itself and first: a range asked for by another package takes a build with gigabytes of CUDA.
    .venv/bin/python -c 'import torch' 2>/dev/null || quietly .venv/bin/pip install "torch==2.13.0"
    quietly .venv/bin/pip install -e ".[launcher,dev]"
    touch "$stamp"
}

install_peer() {
    local stamp=.venv-peers/.installed site
    if [ -e "$stamp" ] && [ "$stamp" -nt scripts/setup.sh ]; then
        return
    fi
    echo "setup: installing nvidia-resiliency-ext 0.7.0 into .venv-peers"
    [ -x .venv-peers/bin/python ] || quietly "${PYTHON:-python3}" -m venv .venv-peers
    site=$(.venv-peers/bin/python -c 'import site; print(site.getsitepackages()[0])')
    # The peer sees torch and the project of .venv without a second copy of either.
    printf 'import site; site.addsitedir(%s)\n' \
        "$(.venv/bin/python -c 'import site; print(repr(site.getsitepackages()[0]))')" >"$site/zz_project.pth"
    quietly .venv-peers/bin/pip install grpcio protobuf nvidia-ml-py pyyaml packaging defusedxml httpx pydantic \
        pydantic-settings fastapi slowapi "uvicorn[standard]"
    quietly .venv-peers/bin/pip install --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        --platform manylinux_2_39_x86_64 --target "$site" nvidia-resiliency-ext==0.7.0
    touch "$stamp"
}

# The batch script's run-task and every command start faster from compiled modules, and an environment may forbid Python
# to write them by itself.
compile_modules() {
    quietly .venv/bin/python -m compileall -q nvrx_chain nvrx_watch
}

install_system_packages
install_project
install_peer
compile_modules
