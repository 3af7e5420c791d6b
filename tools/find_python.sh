#!/bin/sh
# Prints the first Python 3.11 or 3.12 that can make a virtual environment.
for python in python3.11 python3.12 python3 python; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
echo "vllm-vpp needs Python 3.11 or 3.12 with venv and found none on PATH." >&2
exit 1
