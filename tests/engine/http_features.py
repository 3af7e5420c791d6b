"""What clients may ask of a server, each as a function of a client: an answer to be compared.

Owns requests, and what of an answer can be compared: identifiers and times are left out, and the
pieces of a stream are joined. Each function also sees to it that its answer shows the feature.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from engine_runs import prompt
from served import REQUEST_S, events

Json = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "What is a V, and which of its ranks owns the turn? " * 16  # more than one chunk
SHORT = "Once upon a turn"
LETTERS = list(range(32, 127))  # tokens whose texts can be read
IGNORED = {"id", "created", "prompt_tokens_details", "request_id", "system_fingerprint"}
JOINED = {"text", "content", "arguments", "reasoning", "reasoning_content"}
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "fold",
        "description": "Folds a pipeline.",
        "parameters": {
            "type": "object",
            "properties": {"sweeps": {"enum": [2, 3, 4]}, "name": {"enum": ["v", "wave"]}},
            "required": ["sweeps", "name"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "turn": {"type": "boolean"},
        "ranks": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 4},
        "name": {"enum": ["linear", "v", "wave"]},
    },
    "required": ["turn", "ranks", "name"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Client:
    """Of one server. `adapters`: the folder of LoRA adapters."""

    url: str
    adapters: Path

    def raw(self, path: str, **request: Any) -> Json:
        """The answer as it came."""
        answer = httpx.post(self.url + path, json=defaults(request), timeout=REQUEST_S)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def ask(self, path: str, **request: Any) -> Json:
        """What can be compared of it."""
        found: Json = comparable(self.raw(path, **request))
        return found

    def stream(self, path: str, **request: Any) -> Json:
        """The same of a streamed answer, its pieces joined."""
        asked = defaults(request) | {"stream": True, "stream_options": {"include_usage": True}}
        joined: Json = {"choices": {}}
        with httpx.stream("POST", self.url + path, json=asked, timeout=REQUEST_S) as answer:
            assert answer.status_code == 200, answer.read()
            for event in events(answer):
                for choice in event.pop("choices"):
                    join(joined["choices"].setdefault(str(choice["index"]), {}), choice)
                join(joined, event)
        found: Json = comparable(joined)
        return found

    def get(self, path: str) -> str:
        """A page."""
        answer = httpx.get(self.url + path, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.text


def defaults(request: Json) -> Json:
    return {"model": "m", "temperature": 0, "max_tokens": 24, "ignore_eos": True} | request


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: comparable(part) for key, part in value.items() if key not in IGNORED}
    if isinstance(value, list):
        return [comparable(part) for part in value]
    return value


def join(whole: Json, piece: Json) -> None:
    """Add the next piece of a stream to what came before."""
    for key, part in piece.items():
        before = whole.get(key)
        if part is None or before is None:
            whole[key] = before if part is None else part
        elif isinstance(part, dict):
            join(before, part)
        elif key == "tool_calls":
            join_calls(before, part)
        elif isinstance(part, list) or key in JOINED:
            whole[key] = before + part
        else:
            whole[key] = part


def join_calls(calls: list[Json], pieces: Iterable[Json]) -> None:
    known = {call["index"]: call for call in calls}
    for piece in pieces:
        if piece["index"] in known:
            join(known[piece["index"]], piece)
        else:
            calls.append(piece)


def only(answer: Json) -> Json:
    """The one choice of an answer."""
    choices = answer["choices"]
    (choice,) = choices.values() if isinstance(choices, dict) else choices
    assert isinstance(choice, dict)
    return choice


def user(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


def completion(client: Client) -> Any:
    whole = client.ask(COMPLETIONS, prompt=TEXT, return_token_ids=True)
    pieces = client.stream(COMPLETIONS, prompt=TEXT, return_token_ids=True)
    assert only(pieces)["token_ids"] == only(whole)["token_ids"]
    assert only(pieces)["text"] == only(whole)["text"]
    assert len(only(whole)["token_ids"]) == 24
    return whole, pieces


def chat(client: Client) -> Any:
    whole = client.ask(CHAT, messages=user(TEXT), return_token_ids=True)
    pieces = client.stream(CHAT, messages=user(TEXT), return_token_ids=True)
    assert only(pieces)["delta"]["content"] == only(whole)["message"]["content"]
    assert len(whole["prompt_token_ids"]) > 512
    return whole, pieces


def samples(client: Client) -> Any:
    asked = {"prompt": TEXT[:300], "n": 3, "temperature": 0.9, "seed": 5}
    answer = client.ask(COMPLETIONS, **asked, allowed_token_ids=LETTERS)
    assert len({choice["text"] for choice in answer["choices"]}) == 3
    streamed = client.stream(COMPLETIONS, **asked, allowed_token_ids=LETTERS)
    texts = [streamed["choices"][str(i)]["text"] for i in range(3)]
    assert texts == [choice["text"] for choice in answer["choices"]]
    return answer


def seeds(client: Client) -> Any:
    asked = {"prompt": TEXT[:400], "temperature": 0.8, "top_p": 0.9, "return_token_ids": True}
    answers = [client.ask(COMPLETIONS, **asked, seed=seed) for seed in (7, 7, 8)]
    first, again, other = (only(answer)["token_ids"] for answer in answers)
    assert first == again
    assert first != other
    return answers


def stop_strings(client: Client) -> Any:
    asked = {"prompt": TEXT, "max_tokens": 40, "allowed_token_ids": LETTERS}
    text = only(client.ask(COMPLETIONS, **asked))["text"]
    stop = text[20:23]  # spans three tokens
    answer = client.ask(COMPLETIONS, **asked, stop=[stop])
    streamed = client.stream(COMPLETIONS, **asked, stop=[stop])
    for choice in (only(answer), only(streamed)):
        assert choice["finish_reason"] == "stop"
        assert choice["text"] == text[: text.index(stop)]
    return answer, streamed


def logprobs(client: Client) -> Any:
    readable = {"allowed_token_ids": LETTERS, "return_tokens_as_token_ids": True}
    completed = client.ask(COMPLETIONS, prompt=TEXT, logprobs=4, **readable)
    asked = {"messages": user(TEXT), "logprobs": True, "top_logprobs": 3, **readable}
    whole, pieces = client.ask(CHAT, **asked), client.stream(CHAT, **asked)
    assert len(only(completed)["logprobs"]["token_logprobs"]) == 24
    assert len(only(whole)["logprobs"]["content"]) == 24
    assert len(only(pieces)["logprobs"]["content"]) == 24
    return completed, whole, pieces


def prompt_logprobs(client: Client) -> Any:
    tokens = prompt(1100, seed=61)
    answer = client.ask(COMPLETIONS, prompt=tokens, prompt_logprobs=2, max_tokens=3)
    assert len(only(answer)["prompt_logprobs"]) == len(tokens)
    return answer


def json_schema(client: Client) -> Any:
    schema = {"type": "json_schema", "json_schema": {"name": "layout", "schema": SCHEMA}}
    answer = client.ask(
        CHAT, messages=user(TEXT), response_format=schema, max_tokens=100, ignore_eos=False
    )
    found = json.loads(only(answer)["message"]["content"])
    assert found.keys() == SCHEMA["properties"].keys()
    assert found["name"] in SCHEMA["properties"]["name"]["enum"]
    return answer


def regex(client: Client) -> Any:
    pattern = "(abc|b){6}[0-9]{3}"
    answer = client.ask(
        COMPLETIONS, prompt=TEXT, structured_outputs={"regex": pattern}, ignore_eos=False
    )
    assert re.fullmatch(pattern, only(answer)["text"])
    return answer


def tool_calls(client: Client) -> Any:
    asked = {"messages": user(TEXT), "tools": [TOOL], "max_tokens": 80}
    ended = {**asked, "ignore_eos": False}
    by_name = {"type": "function", "function": {"name": "fold"}}
    named = client.ask(CHAT, tool_choice=by_name, **ended)
    streamed = client.stream(CHAT, tool_choice="required", parallel_tool_calls=False, **ended)
    (call,) = only(named)["message"]["tool_calls"]
    assert call["function"]["name"] == "fold"
    assert json.loads(call["function"]["arguments"])["sweeps"] in (2, 3, 4)
    assert only(streamed)["delta"]["tool_calls"]
    return named, streamed, client.ask(CHAT, tool_choice="auto", **asked)


def cached_prefix(client: Client) -> Any:
    """The hit ends after 640 tokens, in the second chunk of 512."""
    shared = prompt(700, seed=62)
    answers = [
        client.raw(COMPLETIONS, prompt=[*shared, *prompt(n, seed=63)], return_token_ids=True)
        for n in (100, 900)
    ]
    found = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert found == [0, 640]
    return [only(answer)["token_ids"] for answer in answers]


def pages(client: Client) -> Any:
    client.ask(COMPLETIONS, prompt=SHORT)
    client.get("/health")
    names = set(re.findall(r"^(vllm:\w+)", client.get("/metrics"), re.MULTILINE))
    served = [model["id"] for model in json.loads(client.get("/v1/models"))["data"]]
    assert {"m", "one", "two"} <= set(served)
    return sorted(name for name in names if not name.startswith("vllm:vpp_")), served


def adapters(client: Client) -> Any:
    answers = [with_adapter(client, model) for model in ("m", "one", "two", "m", "one")]
    tokens = [only(answer)["token_ids"] for answer in answers]
    assert tokens[3:] == tokens[:2]
    assert len({tuple(one) for one in tokens}) == 3, "an adapter changes nothing"
    return answers


def with_adapter(client: Client, model: str) -> Json:
    return client.ask(COMPLETIONS, prompt=TEXT, model=model, return_token_ids=True, logprobs=0)


def adapters_by_request(client: Client) -> Any:
    """Loaded and unloaded while serving; takes the place of one that is there."""
    asked = {"lora_name": "three", "lora_path": str(client.adapters / "three")}
    told = httpx.post(f"{client.url}/v1/load_lora_adapter", json=asked, timeout=60)
    assert told.status_code == 200, told.text
    answer = with_adapter(client, "three")
    assert answer["choices"] != with_adapter(client, "one")["choices"]
    unload = f"{client.url}/v1/unload_lora_adapter"
    assert httpx.post(unload, json={"lora_name": "three"}, timeout=60).status_code == 200
    gone = httpx.post(
        client.url + COMPLETIONS, json={"model": "three", "prompt": SHORT}, timeout=60
    )
    assert gone.status_code == 404
    return answer
