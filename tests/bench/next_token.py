"""Prints, as JSON, stock vLLM's log-probabilities of the next token after each of several prompts.

A script, since engines are started in processes of their own. Argument: JSON with the checkpoint,
the dtype, and lists of token ids.
"""

import json
import sys


def main() -> None:
    request = json.loads(sys.argv[1])
    from vllm import LLM, SamplingParams

    engine = LLM(
        request["model"],
        dtype=request["dtype"],
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_logprobs=1024,
        enable_prefix_caching=False,
    )
    greedy = SamplingParams(temperature=0, max_tokens=1, logprobs=1024, detokenize=False)
    answers = [
        engine.generate([{"prompt_token_ids": prompt}], greedy, use_tqdm=False)[0].outputs[0]
        for prompt in request["prompts"]
    ]
    found = [
        [logprob.logprob for _, logprob in sorted(answer.logprobs[0].items())] for answer in answers
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
