"""Removes packages that come along with vLLM and cannot be imported.

Next to a CPU build of torch, the torchvision that pip picks may fail at import ("operator
torchvision::nms does not exist"), and transformers then fails too. No model used here needs
torchvision, torchaudio or torchcodec.
"""

import subprocess
import sys
from importlib.util import find_spec

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


def imports(statement: str) -> bool:
    """Whether `statement` runs in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, check=False)
    return done.returncode == 0


def main() -> int:
    """Repairs the environment; the exit status says whether the engine's libraries import now."""
    present = [name for name in COMPANIONS if find_spec(name)]
    if "torchvision" in present and not imports("import torchvision"):
        print(f"torchvision does not import here: removing {', '.join(present)}")
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "-qy", *present], check=True)
    # A class that pulls in torchvision where it is installed: the import that used to fail.
    if imports("from transformers import AutoConfig, AutoTokenizer, PreTrainedModel; import vllm"):
        return 0
    print("vLLM or transformers does not import: delete .venv and run `make venv` again")
    return 1


if __name__ == "__main__":
    sys.exit(main())
