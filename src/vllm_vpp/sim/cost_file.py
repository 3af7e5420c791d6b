"""Cost models as files: what `vllm-vpp calibrate` writes and the other commands read.

Owns telling the kinds apart. A file may carry measured overheads beside the cost.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from vllm_vpp.errors import InputError
from vllm_vpp.sim.fitted import FittedCost
from vllm_vpp.sim.overheads import Overheads
from vllm_vpp.sim.splittable import Splittable
from vllm_vpp.sim.table import TableCost

__all__ = ["CostFile", "read_cost", "write_cost"]


class CostFile(NamedTuple):
    """A measured cost, the overheads measured with it, and where both come from."""

    cost: Splittable
    overheads: Overheads
    notes: dict[str, str]


def write_cost(cost: FittedCost | TableCost, overheads: Overheads) -> str:
    """JSON; inverse of `read_cost`."""
    data: dict[str, Any] = json.loads(cost.to_json())
    return json.dumps(data | {"overheads": overheads._asdict()}, indent=1) + "\n"


def read_cost(path: Path | str) -> CostFile:
    """Read a cost file. Raises InputError, one line, for anything else."""
    try:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cost={str(path)!r}: cannot be read ({error.strerror}); give a file that"
            " calibrate wrote"
        ) from None
    except ValueError as error:
        raise InputError(f"cost={str(path)!r}: not JSON ({error}); calibrate again") from None
    kinds: dict[object, Any] = {"fitted": FittedCost.from_data, "table": TableCost.from_data}
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in kinds:
        raise InputError(
            f"cost={str(path)!r}: kind={kind!r}: must be fitted or table; give a file that"
            " calibrate wrote"
        )
    cost = kinds[kind](data)
    return CostFile(cost, Overheads.from_data(data.get("overheads", {})), dict(cost.notes))
