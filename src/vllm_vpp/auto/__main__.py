"""`python -m vllm_vpp.auto`: a question on standard input, the answer on standard output."""

import sys

from vllm_vpp.auto.choice import choose
from vllm_vpp.auto.question import Question

if __name__ == "__main__":
    answer = choose(Question.model_validate_json(sys.stdin.read()))
    sys.stdout.write(answer.model_dump_json() + "\n")
