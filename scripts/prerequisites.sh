#!/bin/sh
# Reports each missing prerequisite and how to install it. Usage: prerequisites.sh PYTHON
set -u

python=${1:-python3}
missing=0

say() {
    echo "citadel: $1" >&2
    missing=1
}

check_python() {
    if ! command -v "$python" >/dev/null 2>&1; then
        say "$python is missing: install it with 'apt install python3 python3-venv python3-dev'."
        return
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        say "$python is older than 3.11: install a newer one, for example with 'apt install python3.11 python3.11-venv python3.11-dev', and run 'make PYTHON=python3.11'."
        return
    fi
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        say "the venv module of $python is missing: install it with 'apt install python3-venv' (or $version-venv)."
    fi
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if [ ! -f "$include/Python.h" ]; then
        say "Python.h of $python is missing: install it with 'apt install python3-dev' (or $version-dev)."
    fi
}

check_compiler() {
    compiler=${CXX:-$(command -v c++ || command -v g++ || command -v clang++ || echo c++)}
    if ! command -v "$compiler" >/dev/null 2>&1; then
        say "the C++ compiler $compiler is missing: install one with 'apt install g++'."
        return
    fi
    if ! echo '#include <span>
int main() { return 0; }' | "$compiler" -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1; then
        say "the compiler $compiler does not support C++20: install a newer one with 'apt install g++' (11 or later)."
    fi
}

check_python
check_compiler
exit "$missing"
