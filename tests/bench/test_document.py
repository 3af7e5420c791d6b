"""Long prompts: exact length, same text every time, the question at the end."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_vpp.bench.byte_tokenizer import byte_characters, write_byte_tokenizer
from vllm_vpp.bench.document import QUESTION, document
from vllm_vpp.bench.smollm2 import POSITIONS, long_context
from vllm_vpp.errors import InputError


class Bytes:
    """One token per byte, with an optional chat format."""

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        assert not tokenize
        assert add_generation_prompt
        return f"<user>{conversation[0]['content']}<assistant>"


@pytest.mark.parametrize("tokens", [100, 101, 5000, 200_000])
def test_prompt_has_exactly_the_tokens_asked_for(tokens: int) -> None:
    assert len(document(Bytes(), tokens)) == tokens


def test_prompt_is_text_then_question_in_the_chat_format() -> None:
    text = bytes(document(Bytes("chat"), 3000)).decode()
    assert text.startswith("<user># abc.py\n")
    assert text.endswith(f"\n\n{QUESTION}<assistant>")


def test_prompt_is_the_same_every_time_and_differs_by_start() -> None:
    assert document(Bytes(), 3000) == document(Bytes(), 3000)
    assert document(Bytes(), 3000)[:50] != document(Bytes(), 3000, start=1)[:50]


def test_too_short_and_too_long_prompts_say_what_is_possible() -> None:
    least = len(QUESTION) + 3
    with pytest.raises(InputError, match=f"needs {least} or more"):
        document(Bytes(), least - 1)
    with pytest.raises(InputError, match="has text for"):
        document(Bytes(), 10**9)


def test_long_context_only_beyond_the_models_positions() -> None:
    assert long_context(POSITIONS) == {}
    overrides = long_context(2 * POSITIONS)
    assert overrides["max_position_embeddings"] == 2 * POSITIONS
    # The slowest frequency, theta ** (-62 / 64), halves: twice the positions, the same angle.
    slowest = overrides["rope_parameters"]["rope_theta"] ** (-62 / 64)
    assert slowest == pytest.approx(100_000.0 ** (-62 / 64) / 2)


def test_byte_tokenizer_has_a_character_for_every_byte() -> None:
    assert len(set(byte_characters())) == 256


def test_byte_tokenizer_round_trips_any_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    write_byte_tokenizer(tmp_path, 100)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "def f(x):\n\treturn 'é — 漢字'  # \x00\x7f"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 100
