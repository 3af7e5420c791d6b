"""Generated checkpoints: same spec, same bytes; weights of the scale they claim."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vllm_vpp.bench.architectures import Architecture, ModelSpec, weights_of
from vllm_vpp.bench.cache import build_once
from vllm_vpp.bench.models import checkpoint, tiny
from vllm_vpp.bench.safetensors_file import encode, write
from vllm_vpp.errors import InputError

ARCHITECTURES = [member.value for member in Architecture]
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_same_spec_gives_same_bytes(architecture: str, tmp_path: Path) -> None:
    spec = tiny(architecture, layers=3)
    one, other = checkpoint(spec, tmp_path / "one"), checkpoint(spec, tmp_path / "other")
    assert one.name == other.name
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_seed_changes_weights_and_name(tmp_path: Path) -> None:
    one, other = (checkpoint(tiny("llama", layers=2, seed=seed), tmp_path) for seed in (0, 1))
    assert one.name != other.name
    assert (one / FILES[1]).read_bytes() != (other / FILES[1]).read_bytes()


def test_weights_do_not_depend_on_the_number_of_layers(tmp_path: Path) -> None:
    """What is drawn for a tensor depends on its name, so layer 0 is the same up to its scale."""
    from vllm_vpp.bench.models import draw

    names = ("model.layers.0.self_attn.q_proj.weight", "lm_head.weight")
    for name in names:
        drawn = [
            draw(weight, 0)
            for layers in (2, 5)
            for weight in weights_of(tiny("llama", layers=layers))
            if weight.name == name
        ]
        assert np.array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_have_the_scale_they_claim(architecture: str) -> None:
    from vllm_vpp.bench.models import draw

    for weight in weights_of(tiny(architecture, layers=2)):
        values = draw(weight, 0)
        count = math.prod(weight.shape)
        assert abs(values.mean() - weight.mean) < 6 * weight.std / math.sqrt(count)
        if count > 1000:
            assert values.std() == pytest.approx(weight.std, rel=0.15)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_are_unique_and_files_complete(architecture: str, tmp_path: Path) -> None:
    spec = tiny(architecture, layers=2)
    names = [weight.name for weight in weights_of(spec)]
    assert len(set(names)) == len(names)
    found = header(checkpoint(spec, tmp_path) / "model.safetensors")
    assert set(found) == {"__metadata__", *names}


def test_tied_embeddings_have_no_head() -> None:
    spec = tiny("llama", layers=2, tied_embeddings=True)
    assert "lm_head.weight" not in {weight.name for weight in weights_of(spec)}


def test_bfloat16_rounds_to_nearest_even() -> None:
    # With u = 2^-8, a step is 2u: 1 + u and 1 + 3u are ties, the next value is just above one.
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -2.0], np.float32)
    assert encode(values, "bfloat16").tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC000]


def test_file_has_the_layout_of_the_format(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    write(tmp_path / "file", {"a": values, "b": values.T}, "float32")
    found = header(tmp_path / "file")
    assert found["b"] == {"dtype": "F32", "shape": [3, 2], "data_offsets": [24, 48]}
    data = (tmp_path / "file").read_bytes()
    assert np.array_equal(np.frombuffer(data[-24:], np.float32).reshape(3, 2), values.T)


@pytest.mark.parametrize(
    "changes", [{"layers": 0}, {"heads": 3}, {"active_experts": 9}, {"hidden": -1}]
)
def test_impossible_sizes_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        tiny("qwen3-moe", **changes)


def test_experts_of_deepseek_v3_must_fill_their_groups() -> None:
    with pytest.raises(InputError, match="multiple of 8"):
        tiny("deepseek-v3", experts=12)


def test_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="gemma3, llama"):
        tiny("gpt-2")


def test_unknown_dtype_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="float32"):
        checkpoint(ModelSpec(architecture=Architecture.LLAMA, dtype="int8"), tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_build_is_done_once_and_survives_a_race(tmp_path: Path) -> None:
    target = tmp_path / "target"

    def build(folder: Path) -> None:
        """Another process finishes the same folder in the meantime."""
        (folder / "file").write_text("late")
        target.mkdir()
        (target / "file").write_text("early")

    assert build_once(target, build) == target
    assert (target / "file").read_text() == "early"
    build_once(target, lambda folder: pytest.fail(f"built again in {folder}"))
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
