"""The command `vllm-vpp`: one module per subcommand, imported when it is called."""

from vllm_vpp.cli.app import app

__all__ = ["app"]
