"""Reads fields of a Hugging Face config.json, one clear line for each that is missing or absurd.

Owns checking of single values; `model` knows what they mean.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vllm_vpp.errors import InputError

__all__ = ["ConfigFile", "shipped_models"]

_MOST = 10**7  # no width, count or vocabulary is larger


def shipped_models() -> list[str]:
    """Names of the configs that come with the package."""
    folder = files("vllm_vpp.sim") / "data" / "models"
    return sorted(
        item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json")
    )


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The decoder part of a config, and where it came from."""

    source: str
    data: Mapping[str, Any]

    @classmethod
    def read(cls, name: str) -> "ConfigFile":
        """A shipped model's name, a config.json, or a folder that holds one."""
        if name in shipped_models():
            path: Any = files("vllm_vpp.sim") / "data" / "models" / f"{name}.json"
        else:
            path = Path(name)
            path = path / "config.json" if path.is_dir() else path
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"model={name!r}: cannot be read ({error.strerror}); must be a config.json, a"
                f" folder with one, or one of {', '.join(shipped_models())}"
            ) from None
        except ValueError as error:
            raise InputError(f"{path}: not JSON ({error}); give the model's config.json") from None
        if not isinstance(data, dict):
            raise InputError(f"{path}: must hold a JSON object; give the model's config.json")
        text = data.get("text_config", data)
        return cls(str(name), data | text if isinstance(text, dict) else data)

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """First of these fields that is present, a whole number from `least` to ten million."""
        for name in names:
            value = self.data.get(name)
            if value is not None:
                return self._checked(name, value, least)
        if default is None:
            raise InputError(
                f"{self.source}: {names[0]} is missing; must be a whole number of at least {least};"
                " add it to the config"
            )
        return default

    def optional(self, *names: str, least: int = 1) -> int | None:
        """Like `count`, but None where the field is absent or null."""
        present = [name for name in names if self.data.get(name) is not None]
        return self.count(*present, least=least) if present else None

    def _checked(self, name: str, value: object, least: int) -> int:
        good = isinstance(value, int) and not isinstance(value, bool)
        if not good or not least <= value <= _MOST:  # type: ignore[operator]
            raise InputError(
                f"{self.source}: {name}={value!r}: must be a whole number from {least} to {_MOST};"
                " correct the config"
            )
        assert isinstance(value, int)
        return value
