"""A tokenizer of one token per byte, so that a generated model can be served and sent text.

Written as the two JSON files that transformers reads; no library is needed to make them. Tokens
0..255 are the bytes, 256 begins and 257 ends a text. Ids beyond have no text.
"""

import json
from pathlib import Path

BEGIN, END = "<|begin|>", "<|end|>"
CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_characters() -> list[str]:
    """The visible character that stands for each byte (the alphabet of GPT-2)."""
    visible = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), 256),
    ]
    characters = {byte: chr(byte) for byte in visible}
    hidden = [byte for byte in range(256) if byte not in characters]
    characters |= {byte: chr(256 + position) for position, byte in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]


def write_byte_tokenizer(folder: Path, max_positions: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json into `folder`."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 256, "content": BEGIN, **special},
            {"id": 257, "content": END, **special},
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary | {BEGIN: 256, END: 257}, "merges": []},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "chat_template": CHAT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
