#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tool and judges the CUDA implementation on whatever GPU is here; writes one folder of
# results with a summary. Exit code 0 only if every part that ran passed.
set -uo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
build=${DROPLESS_BUILD:-$root/build-gpu}
out=$root/results-gpu/$(date -u +%Y%m%d-%H%M%S)
parts=build,info,tests,smoke,standard,fuzz,faults,sanitizer,bench
limit=3600 fuzz_seconds=120 fuzz_seed=1 jobs="" implementation=cuda faults_tier=standard sanitizer_shard=1/1

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [OPTION...]

  --parts LIST       of build,info,tests,smoke,standard,fuzz,faults,sanitizer,bench (default: all)
  --out FOLDER       results (default: results-gpu/<date>)
  --limit SECONDS    for everything; what no longer fits is reported as left out (default: 3600)
  --fuzz-seconds N   (default: 120)
  --fuzz-seed N      (default: 1)
  --faults-tier T    smoke or standard (default)
  --sanitizer-shard I/N   only this part of the sanitizer's cases (default: 1/1)
  --jobs N           compilations and worker processes (default: all cores)
  --implementation X another one than cuda, such as a shared library

  DROPLESS_BUILD=folder       builds there (default: build-gpu)
  DROPLESS_COMMIT=name        of a tree that was copied without its history
  CMAKE_PREFIX_PATH=folder    where libraries lie that are not installed, such as RapidCheck: unpack
                              Debian's package with  dpkg -x librapidcheck-dev*.deb .deps  and name
                              .deps/usr
TEXT
}

while (($#)); do
  case $1 in
    --parts) parts=$2 ;;
    --out) out=$2 ;;
    --limit) limit=$2 ;;
    --fuzz-seconds) fuzz_seconds=$2 ;;
    --fuzz-seed) fuzz_seed=$2 ;;
    --faults-tier) faults_tier=$2 ;;
    --sanitizer-shard) sanitizer_shard=$2 ;;
    --jobs) jobs=$2 ;;
    --implementation) implementation=$2 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift 2 || { usage >&2; exit 2; }
done
jobs=${jobs:-$(nproc)}
workers=$((jobs < 8 ? jobs : 8)) # each holds a CUDA context of its own
mkdir -p "$out"
out=$(cd "$out" && pwd)
summary=$out/summary.md
tool=$build/dropless
failed=0

wanted() { [[ ,$parts, == *,$1,* ]]; }

# part NAME COMMAND...: runs it within the time that is left, keeps its output, notes how it ended.
part() {
  local name=$1 code began=$SECONDS left=$((limit - SECONDS))
  shift
  wanted "$name" || return 0
  if ((left < 10)); then
    echo "| $name | left out, no time | |" >>"$summary"
    failed=1
    return 0
  fi
  timeout --kill-after=10 "$left" "$@" >"$out/$name.log" 2>&1
  code=$?
  case $code in
    0) echo "| $name | passed | $((SECONDS - began)) s |" >>"$summary" ;;
    77) echo "| $name | skipped: $(tail -n 1 "$out/$name.log") | $((SECONDS - began)) s |" >>"$summary" ;;
    124 | 137)
      echo "| $name | stopped at the time limit | $((SECONDS - began)) s |" >>"$summary"
      failed=1
      ;;
    *)
      echo "| $name | FAILED ($code) | $((SECONDS - began)) s |" >>"$summary"
      failed=1
      ;;
  esac
  echo "=== $name: exit $code, $((SECONDS - began)) s"
  tail -n "${lines:-15}" "$out/$name.log"
}

build_all() {
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDROPLESS_CUDA=ON -DDROPLESS_NCCL=OFF \
    -DDROPLESS_MPI=OFF -DDROPLESS_LIBFUZZER=OFF -DDROPLESS_QUICK_BUILD=ON -DDROPLESS_CHECK_CLAUSES=OFF \
    ${DROPLESS_ARCHITECTURES:+"-DDROPLESS_CUDA_WANTED=$DROPLESS_ARCHITECTURES"} || return
  local targets=(dropless)
  if wanted tests; then targets+=(gpu_programs); fi
  cmake --build "$build" -j "$jobs" --target "${targets[@]}"
}

sanitize() {
  local check code worst=0
  for check in memcheck racecheck initcheck synccheck; do
    echo "--- $check"
    DROPLESS_IMPLEMENTATION=$implementation "$root/scripts/gpu_sanitizer.sh" "$tool" $check "$sanitizer_shard"
    code=$?
    ((code != 77)) || return 77
    ((code == 0)) || worst=1
  done
  return $worst
}

# Small cases of several processes: under MPS their kernels run side by side, and three workers are
# the fastest that was seen on an H200; without it the GPU changes between processes, and two are.
fuzz_all() {
  local folder="" code fuzzers=2
  if command -v nvidia-cuda-mps-control >/dev/null && folder=$(mktemp -d /tmp/dropless-mps.XXXX); then
    export CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder
    if nvidia-cuda-mps-control -d; then fuzzers=3; else unset CUDA_MPS_PIPE_DIRECTORY; fi
  fi
  "$tool" fuzz --seconds "$fuzz_seconds" --seed "$fuzz_seed" --shrink-seconds 5 -i "$implementation" \
    -j $((jobs < fuzzers ? jobs : fuzzers)) --out "$out/fuzz"
  code=$?
  if ((fuzzers == 3)); then echo quit | nvidia-cuda-mps-control; fi
  [[ -z $folder ]] || rm -rf "$folder"
  return $code
}

bench_all() {
  rm -f "$out/bench.json"
  "$tool" bench -i "$implementation" --json "$out/bench.json" \
    --peer "python3 '$root/scripts/torch_peer.py'" # which says so where torch is not installed
}

{
  echo "# GPU check"
  echo
  echo "* commit: ${DROPLESS_COMMIT:-$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)}"
  echo "* GPU: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo none)"
  echo "* nvcc: $(nvcc --version 2>/dev/null | sed -n 's/.*release //p' || echo none)"
  echo "* system: $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), $(nproc) cores"
  echo "* date: $(date -u +%FT%TZ)"
  echo
  echo "| part | result | time |"
  echo "|---|---|---|"
} >"$summary"

# `timeout` runs programs only: functions go through a shell of their own.
export -f wanted build_all sanitize fuzz_all bench_all
export parts build root jobs tool implementation sanitizer_shard out fuzz_seconds fuzz_seed

lines=25 part build bash -c build_all
if [[ ! -x $tool ]]; then
  cat "$summary"
  exit 1
fi
lines=60 part info "$tool" info -i "$implementation"
part tests ctest --test-dir "$build" -L gpu -LE compute_sanitizer --output-on-failure
lines=150 part smoke "$tool" run --tier smoke -i "$implementation" -j "$workers" --results "$out/smoke.jsonl"
lines=150 part standard "$tool" gate -i "$implementation" -j "$workers" --results "$out/standard.jsonl"
lines=60 part fuzz bash -c fuzz_all
part faults "$tool" faults --gpu --tier "$faults_tier" -j 2
lines=80 part sanitizer bash -c sanitize
lines=60 part bench bash -c bench_all
cat "$summary"
exit $failed
