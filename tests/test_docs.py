"""Documentation that comes from code and from results agrees with them."""

import re
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


def test_tests_that_the_failures_page_names_exist() -> None:
    page = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    classes = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(classes) == 14
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for line in classes:
        named = re.findall(r"`(\w+)`", line.split("|")[3])
        assert named, line
        for test in named:
            assert f"def {test}(" in source or f"class {test}(" in source, test
