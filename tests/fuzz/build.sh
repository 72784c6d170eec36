#!/bin/sh
# Build the compiled modules with coverage into a folder, and fuzz the target of a name for some seconds.
#
#     tests/fuzz/build.sh FOLDER [SECONDS]
#
# Needs a clang (CC; `pip install ziglang` has one: CC="python -m ziglang cc") and, in the folder, a venv that
# this script fills with atheris, which is no dependency of anything else here.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1 seconds=${2:-1800}
mkdir -p "$folder/tree" "$folder/corpus"
test -x "$folder/venv/bin/python" || python3 -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install -q atheris "cython>=3.1" ziglang trio msgpack click structlog rich
cp -r "$root/natsproxy" "$root/tests" "$folder/tree/"
find "$folder/tree" \( -name "*.so" -o -name "*.c" \) -delete
cd "$folder/tree"
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
flags="-g -O1 -fno-strict-aliasing -fno-sanitize=all -fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp -w"
find natsproxy -name "*.pyx" | while read -r source; do
    "$python" -m cython -3 "$source" -o "${source%.pyx}.c"
    ${CC:-$python -m ziglang cc} -shared -fPIC $flags -I"$include" "${source%.pyx}.c" -o "${source%.pyx}$suffix"
done
# The modules find the counters' side of libFuzzer in what atheris has built for that.
LD_PRELOAD=$("$python" -c 'import atheris, pathlib; print(pathlib.Path(atheris.path(), "ubsan_with_fuzzer.so"))')
export LD_PRELOAD PYTHONPATH=.
"$python" -m tests.fuzz.seeds "$folder/corpus"
exec "$python" -m tests.fuzz.fuzz_wire -max_total_time="$seconds" -max_len=2048 -rss_limit_mb=2048 \
    -artifact_prefix="$folder/" "$folder/corpus"
