"""Documentation that comes from code and from results agrees with them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.vllm
def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, "tools/make_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `make docs`:\n{done.stdout}{done.stderr}"
