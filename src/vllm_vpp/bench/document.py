"""Long prompts of real text that every machine has: the standard library's source, and a question.

The order of the files is the same everywhere, so the same Python version gives the same prompt.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from vllm_vpp.errors import InputError

__all__ = ["QUESTION", "Tokenizer", "document"]

QUESTION = "Which programming language is the text above written in?"
TEXT = "{text}"


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of `text`."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """The conversation as the model expects it."""
        ...


def document(
    tokenizer: Tokenizer, tokens: int, *, start: int = 0, question: str = QUESTION
) -> list[int]:
    """A prompt of exactly `tokens` token ids: source files, cut to fit, then the question.

    `start` is the position of the first file, so that prompts with different starts share no
    prefix but the chat template's. Raises InputError if so many tokens cannot be had.
    """
    before, after = frame(tokenizer, question)
    room = tokens - len(before) - len(after)
    if room < 1:
        least = len(before) + len(after) + 1
        raise InputError(f"tokens is {tokens}; the question alone needs {least} or more")
    body: list[int] = []
    for text in sources(start):
        body += tokenizer.encode(text, add_special_tokens=False)
        if len(body) >= room:
            return before + body[:room] + after
    most = tokens - room + len(body)
    raise InputError(f"tokens is {tokens}; the standard library here has text for {most}")


def frame(tokenizer: Tokenizer, question: str) -> tuple[list[int], list[int]]:
    """The token ids before and after the text, in the model's chat format if it has one."""
    content = f"{TEXT}\n\n{question}"
    if tokenizer.chat_template:
        message = {"role": "user", "content": content}
        content = tokenizer.apply_chat_template(
            [message], tokenize=False, add_generation_prompt=True
        )
    before, after = content.split(TEXT)
    return (
        tokenizer.encode(before, add_special_tokens=False),
        tokenizer.encode(after, add_special_tokens=False),
    )


def sources(start: int) -> Iterator[str]:
    """The standard library's public top-level modules by name, from position `start` around."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not paths:
        raise InputError(f"{folder} has no source files; use a Python with its standard library")
    first = start % len(paths)
    for path in paths[first:] + paths[:first]:
        yield f"# {path.name}\n{path.read_text(encoding='utf-8')}\n"
