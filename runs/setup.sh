#!/usr/bin/env bash
# Set up .venv: locked packages, rustbpe built from source, nanochat itself. Safe to run at any time: it does nothing
# if nothing changed, and starts over if the last setup did not finish.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"
python=.venv/bin/python
# Line 1, written after the packages are installed: path and Python version; if it is missing, .venv is made again. The
# other lines, written last: checksums of all sources; if they differ, .venv is updated. So it is if packages were installed or
# removed since then, as `uv sync` and `uv run` do.
ready=.venv/ready

pip_install() { "$uv" pip install --quiet --python "$python" "$@"; }
say() { printf 'setup: %s\n' "$*"; }
stop() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

place() { printf '%s, %s\n' "$PWD" "$("$python" --version 2>&1)"; }
sources() {
  find requirements.lock pyproject.toml runs/setup.sh rustbpe \
    -name target -prune -o -name Cargo.lock -prune -o -type f -exec cksum {} + | LC_ALL=C sort
}

find_uv() {
  if uv --version >/dev/null 2>&1; then uv=uv; return; fi
  uv=.venv/bin/uv
  if [ -x "$uv" ]; then return; fi
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 python3.10 ''; do
    if [ -z "$candidate" ]; then stop "no uv and no Python 3.10 to 3.13 found: install either one, then run this again."; fi
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then break; fi
  done
  say "no uv: installing the locked one into .venv with pip"
  "$candidate" -m venv --clear .venv ||
    stop "$candidate has no venv module: install it (Debian: apt install python3-venv), then run this again."
  sed -n '/^uv==/,/[^\\]$/p' requirements.lock >.venv/uv-only.lock
  "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .venv/uv-only.lock ||
    stop "uv could not be installed (pip's message is above): is the network there? Then run this again."
}

find_cargo() {
  if cargo --version >/dev/null 2>&1; then return; fi
  say "no cargo: installing Rust with rustup"
  # Download it completely before running it: a broken connection must not run half a script.
  local installer
  if installer=$(curl -fsS --proto '=https' --connect-timeout 20 https://sh.rustup.rs 2>/dev/null) &&
    sh -s -- -y --quiet --profile minimal --default-toolchain stable --no-modify-path <<<"$installer" >&2 &&
    cargo --version >/dev/null 2>&1; then return; fi
  stop "Rust is missing and rustup could not be installed: install Rust (cargo) 1.85 or newer, then run this again."
}

make_environment() {
  rm -rf .venv
  find_uv
  if [ ! -x "$python" ]; then "$uv" venv --quiet --python '>=3.10,<3.14' .venv; fi
  say "made .venv with $("$python" --version)"
}

# Sizes of the wheels of requirements.lock with torch 2.15.0 for Python 3.11, summed on 2026-11-26; docs/install.md has more.
first_download() {
  printf 'the first installation downloads '
  case $(uname -sm) in
    Darwin*) printf '0.4 GB (docs/install.md)' ;;
    *aarch64) printf '3.5 GB, most of it CUDA libraries (docs/install.md)' ;;
    *) printf '3.3 GB and takes 6 GB on disk, most of it CUDA libraries (docs/install.md)' ;;
  esac
}

install_locked() {
  # If .venv is on a different file system than its cache, uv cannot link files: copy mode avoids the warning.
  local cache probe
  cache=$("$uv" cache dir)
  mkdir -p "$cache"
  probe=$(mktemp "$cache/link-XXXXXX")
  ln "$probe" .venv/link-probe 2>/dev/null || export UV_LINK_MODE="${UV_LINK_MODE:-copy}"
  rm -f "$probe" .venv/link-probe
  say "installing requirements.lock: $(first_download)"
  pip_install --require-hashes -r requirements.lock ||
    stop "the packages of requirements.lock could not be installed (uv's message is above): is the network there? Then run this again."
}

# Where Python may not write bytecode, as in many containers, each process would spend seconds compiling torch's sources.
compile_bytecode() {
  env -u PYTHONDONTWRITEBYTECODE "$python" -c '
import httpx, huggingface_hub, numpy, pyarrow.parquet, safetensors.torch, scipy.stats, tyro, uvicorn
import torch._inductor.compile_fx, torch.distributed.run, torch.utils.checkpoint' ||
    stop "the installed packages cannot be imported (Python's message is above): remove .venv, then run this again."
}

build_rustbpe() {
  say "building rustbpe"
  rm -rf rustbpe/target/wheels
  if ! .venv/bin/maturin build --release --manifest-path rustbpe/Cargo.toml \
    --interpreter "$python" --out rustbpe/target/wheels 2>.venv/build-rustbpe.log; then
    cat .venv/build-rustbpe.log >&2
    stop "rustbpe did not build; cargo's message is above."
  fi
  # Distributions of this name, ours before November 2026 or the index's, have files at the same places.
  "$uv" pip uninstall --quiet --python "$python" rustbpe
  pip_install --no-deps --reinstall rustbpe/target/wheels/nanochat_rustbpe-*.whl
}

found=$(cat "$ready" 2>/dev/null || true)
packages_changed() { [ -n "$(find .venv/lib/python*/site-packages -maxdepth 0 -newer "$ready")" ]; }
if [ "$found" = "$(place && sources)" ] && ! packages_changed; then
  say "nothing changed"
  exit 0
fi

command -v cc >/dev/null ||
  stop "no C linker (cc): install one (Debian: build-essential; macOS: xcode-select --install), then run this again."
find_cargo
if [ "${found%%$'\n'*}" = "$(place)" ]; then find_uv; else make_environment; fi
rm -f "$ready"
install_locked
place >"$ready"
compile_bytecode & compiling=$!
trap wait EXIT # after a failed build no process may still write into .venv
build_rustbpe
wait "$compiling"
pip_install --no-deps --no-build-isolation --editable .
env -u PYTHONDONTWRITEBYTECODE "$python" -m compileall -q nanochat scripts tasks tracks
sources >>"$ready"
say "done; start with: source .venv/bin/activate"
